package protocol

import (
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

func (s *jsonSource) text() ([]byte, error) {
	if err := s.expect(KindString); err != nil {
		return nil, err
	}
	s.i++
	start := s.i
	ascii := true
	for ; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; {
		case c == '"':
			text := s.b[start:s.i]
			s.i++
			if !ascii && !utf8.Valid(text) {
				return nil, errNotUTF8
			}
			return text, nil
		case c == '\\':
			return s.escapedText(start)
		case c < ' ':
			return nil, s.unexpected()
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, errTruncated
}

// escapedText continues text at its first backslash.
func (s *jsonSource) escapedText(start int) ([]byte, error) {
	s.scratch = append(s.scratch[:0], s.b[start:s.i]...)
	for s.i < len(s.b) {
		c := s.b[s.i]
		switch {
		case c == '"':
			s.i++
			if !utf8.Valid(s.scratch) {
				return nil, errNotUTF8
			}
			return s.scratch, nil
		case c == '\\':
			if err := s.escape(); err != nil {
				return nil, err
			}
		case c < ' ':
			return nil, s.unexpected()
		default:
			s.scratch = append(s.scratch, c)
			s.i++
		}
	}
	return nil, errTruncated
}

func (s *jsonSource) escape() error {
	if s.i+1 >= len(s.b) {
		return errTruncated
	}
	c := s.b[s.i+1]
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		return s.unicodeEscape()
	default:
		return s.unexpected()
	}
	s.scratch = append(s.scratch, c)
	s.i += 2
	return nil
}

func (s *jsonSource) unicodeEscape() error {
	r, err := s.hex4()
	if err != nil {
		return err
	}
	if utf16.IsSurrogate(r) {
		low, err := s.hex4()
		if err != nil {
			return err
		}
		if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
			return fmt.Errorf("unpaired surrogate before offset %d", s.i)
		}
	}
	s.scratch = utf8.AppendRune(s.scratch, r)
	return nil
}

// hex4 reads one \uXXXX.
func (s *jsonSource) hex4() (rune, error) {
	if s.i+6 > len(s.b) {
		return 0, errTruncated
	}
	if s.b[s.i] != '\\' || s.b[s.i+1] != 'u' {
		return 0, s.unexpected()
	}
	var r rune
	for _, c := range s.b[s.i+2 : s.i+6] {
		switch {
		case isDigit(c):
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, fmt.Errorf("malformed escape at offset %d", s.i)
		}
	}
	s.i += 6
	return r, nil
}
