package tinymodel

import (
	"strings"
	"unicode/utf8"
)

// Detokenizer turns the ids of one answer into text, piece by piece. It gives out whole characters only: the first bytes of
// one wait for the rest. All pieces and the flush together are the text that the Hugging Face tokenizer decodes from all ids
// at once, specials skipped. The zero value is ready. It belongs to one stream.
type Detokenizer struct {
	held []byte // the valid beginning of a character; at most 3 bytes
}

// Push returns the text that the ids complete; it may be empty. Specials and ids outside the vocabulary have none.
func (d *Detokenizer) Push(ids ...uint32) string {
	buf := d.held
	for _, id := range ids {
		buf = append(buf, TokenBytes(id)...)
	}
	var text strings.Builder
	for len(buf) > 0 {
		r, n := utf8.DecodeRune(buf)
		if r != utf8.RuneError || n > 1 {
			text.Write(buf[:n])
			buf = buf[n:]
			continue
		}
		n = brokenPrefix(buf)
		if n == len(buf) && !utf8.FullRune(buf) {
			break // may still become a character
		}
		text.WriteRune(utf8.RuneError)
		buf = buf[n:]
	}
	d.held = append(d.held[:0], buf...)
	return text.String()
}

// Flush ends the text: what is still held becomes one U+FFFD.
func (d *Detokenizer) Flush() string {
	if len(d.held) == 0 {
		return ""
	}
	d.held = d.held[:0]
	return string(utf8.RuneError)
}

// brokenPrefix returns how many of the bytes that do not begin a whole character are replaced by one U+FFFD: the longest
// beginning of a character, or one byte. This is the Unicode standard's rule and Rust's; Go's own conversions replace byte
// by byte, or a whole run at once.
func brokenPrefix(b []byte) int {
	n := 1
	for n < len(b) && !utf8.FullRune(b[:n+1]) {
		n++
	}
	if n > 1 || !utf8.FullRune(b[:1]) {
		return n
	}
	return 1
}
