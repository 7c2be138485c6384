package tinymodel

import (
	"strings"
	"unicode/utf8"
)

// splitPattern is the pre-tokenizer's regular expression, for tokenizer.json; nextWord is the same by hand. It names ASCII
// only, so that no two Unicode tables can disagree about it, and it bounds a word, so that merging stays linear.
const splitPattern = ` ?[A-Za-z]{1,32}|[0-9]{1,3}|[ \t\r\n]{1,32}|[^A-Za-z0-9 \t\r\n]{1,32}`

// The bounds in splitPattern, in characters.
const (
	maxWord   = 32
	maxDigits = 3
)

// Encode turns text into token ids as the Hugging Face tokenizer of the folder does: specials that occur in the text become
// their ids, nothing is added. Bytes that are not UTF-8 become their byte tokens.
func Encode(text string) []uint32 {
	v := vocabulary()
	ids := make([]uint32, 0, len(text)/2+8)
	for text != "" {
		at, id := nextSpecial(text)
		plain := text[:at]
		for plain != "" {
			n := nextWord(plain)
			ids = v.appendWord(ids, plain[:n])
			plain = plain[n:]
		}
		text = text[at:]
		if text != "" {
			ids = append(ids, id)
			text = text[len(SpecialText(id)):]
		}
	}
	return ids
}

// nextSpecial finds the first special in text; without one, at is the length of text.
func nextSpecial(text string) (at int, id uint32) {
	for at = 0; at < len(text); at++ {
		n := strings.Index(text[at:], "<|")
		if n < 0 {
			break
		}
		at += n
		for i, special := range specialTexts() {
			if strings.HasPrefix(text[at:], special) {
				return at, uint32(firstSpecial + i)
			}
		}
	}
	return len(text), 0
}

// class sorts characters as splitPattern does.
type class uint8

const (
	letter class = iota
	digit
	blank
	other
)

func classOf(c byte) class {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		return letter
	case '0' <= c && c <= '9':
		return digit
	case c == ' ', c == '\t', c == '\r', c == '\n':
		return blank
	default:
		return other
	}
}

// nextWord returns the length in bytes of the first word of text, which must not be empty.
func nextWord(text string) int {
	kind, limit, n := classOf(text[0]), maxWord, 0
	switch {
	case text[0] == ' ' && len(text) > 1 && classOf(text[1]) == letter:
		kind, n = letter, 1
	case kind == digit:
		limit = maxDigits
	}
	for ; limit > 0 && n < len(text) && classOf(text[n]) == kind; limit-- {
		_, width := utf8.DecodeRuneInString(text[n:])
		n += width
	}
	return n
}

// appendWord spells word in bytes and merges neighbours, the strongest merge first and the leftmost of equals, until none is
// left. A word has at most 4*maxWord bytes, so the square of its length is a constant.
func (v *vocab) appendWord(ids []uint32, word string) []uint32 {
	start := len(ids)
	for i := range len(word) {
		ids = append(ids, uint32(word[i]))
	}
	for {
		best, at := uint32(firstSpecial), 0
		for i := start; i+1 < len(ids); i++ {
			if id, ok := v.byPair[pair{ids[i], ids[i+1]}]; ok && id < best {
				best, at = id, i
			}
		}
		if best == firstSpecial {
			return ids
		}
		ids[at] = best
		ids = append(ids[:at+1], ids[at+2:]...)
	}
}
