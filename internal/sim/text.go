package sim

import (
	"strings"
	"unicode/utf8"

	"remora/internal/tinymodel"
)

// writer makes the text of one answer out of its tokens: whole characters only, and nothing that may still become part of a
// stop string. The zero value has no stop strings and skips specials.
type writer struct {
	detok        tinymodel.Detokenizer
	keepSpecials bool
	stops        stopper
}

// prompt tells the writer what came before: if the prompt ends inside a character, the answer begins with all of it.
func (w *writer) prompt(ids []uint32) {
	tail := ids[max(0, len(ids)-utf8.UTFMax+1):]
	for i, id := range tail {
		if id > 0xFF || !utf8.RuneStart(byte(id)) {
			continue
		}
		var open []byte
		for _, t := range tail[i:] {
			if t > 0xFF {
				open = nil
				break
			}
			open = append(open, byte(t))
		}
		if len(open) > 0 && !utf8.FullRune(open) {
			w.detok.Push(tail[i:]...)
			return
		}
	}
}

// push returns the text that a token completes, and the stop string that it completes, if any.
func (w *writer) push(id uint32, mayStop bool) (text, stop string) {
	text = w.detok.Push(id)
	if w.keepSpecials && tinymodel.IsSpecial(id) {
		text += w.detok.Flush() + tinymodel.SpecialText(id)
	}
	return w.stops.push(text, mayStop)
}

// flush returns the rest at the end of an answer.
func (w *writer) flush() string {
	text, stop := w.stops.push(w.detok.Flush(), true)
	if stop != "" {
		return text
	}
	return text + w.stops.flush()
}

// stopper looks for stop strings in a growing text. When the match is to be cut off, as many bytes as may still belong to one
// are held back: always the longest stop string less one byte, as the engine does, not only while they look like a beginning.
type stopper struct {
	list    []string
	include bool // the match stays in the text
	window  string
	sent    int // bytes of window that have been given out
	from    int // bytes of window that cannot take part in a match
}

func (s *stopper) reach() int {
	longest := 1
	for _, stop := range s.list {
		longest = max(longest, len(stop))
	}
	return longest - 1
}

func (s *stopper) push(text string, mayStop bool) (out, stop string) {
	if len(s.list) == 0 {
		return text, ""
	}
	s.window += text
	if !mayStop {
		s.from = len(s.window)
	}
	for _, stop := range s.list {
		at := strings.Index(s.window[s.from:], stop)
		if at < 0 {
			continue
		}
		end := s.from + at
		if s.include {
			end += len(stop)
		}
		return s.window[min(s.sent, end):end], stop
	}
	end := len(s.window)
	if !s.include {
		end = max(s.sent, end-s.reach())
		for end > s.sent && end < len(s.window) && !utf8.RuneStart(s.window[end]) {
			end--
		}
	}
	out = s.window[s.sent:end]
	s.sent = end
	// Forget what can neither be sent nor matched any more.
	gone := min(s.sent, max(0, len(s.window)-s.reach()))
	s.window = s.window[gone:]
	s.sent -= gone
	s.from = max(0, s.from-gone)
	return out, ""
}

func (s *stopper) flush() string {
	out := s.window[s.sent:]
	s.window, s.sent = "", 0
	return out
}
