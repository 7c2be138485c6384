package protocol

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
)

// jsonSource reads RFC 8259 text: strict grammar, valid UTF-8, paired surrogates. "-0" is a float, as a reader in Rust has it.
type jsonSource struct {
	b       []byte
	i       int // next byte
	stack   []jsonLevel
	scratch []byte // holds a text that had escapes
}

type jsonLevel struct {
	closer  byte
	started bool // an element has been read, so a comma must come before the next
}

func (s *jsonSource) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// next skips white space and returns the byte there without consuming it.
func (s *jsonSource) next() (byte, error) {
	s.space()
	if s.i >= len(s.b) {
		return 0, errTruncated
	}
	return s.b[s.i], nil
}

func (s *jsonSource) unexpected() error {
	return fmt.Errorf("unexpected byte %q at offset %d", s.b[s.i], s.i)
}

func (s *jsonSource) peek() (Kind, error) {
	c, err := s.next()
	if err != nil {
		return KindNull, err
	}
	switch {
	case c == '"':
		return KindString, nil
	case c == '-' || c >= '0' && c <= '9':
		return KindInt, nil
	case c == '{':
		return KindMap, nil
	case c == '[':
		return KindList, nil
	case c == 'n':
		return KindNull, nil
	case c == 't' || c == 'f':
		return KindBool, nil
	default:
		return KindNull, s.unexpected()
	}
}

func (s *jsonSource) expect(want Kind) error {
	return want.check(s.peek())
}

func (s *jsonSource) word(w string) error {
	if len(s.b)-s.i < len(w) {
		return errTruncated
	}
	if string(s.b[s.i:s.i+len(w)]) != w {
		return s.unexpected()
	}
	s.i += len(w)
	return nil
}

func (s *jsonSource) null() (bool, error) {
	kind, err := s.peek()
	if err != nil || kind != KindNull {
		return false, err
	}
	return true, s.word("null")
}

func (s *jsonSource) boolean() (bool, error) {
	if err := s.expect(KindBool); err != nil {
		return false, err
	}
	if s.b[s.i] == 't' {
		return true, s.word("true")
	}
	return false, s.word("false")
}

func (s *jsonSource) number() (number, error) {
	if err := s.expect(KindInt); err != nil {
		return number{}, err
	}
	start := s.i
	negative := s.b[s.i] == '-'
	if negative {
		s.i++
	}
	first := s.i
	magnitude, fits := uint64(0), true
	for ; s.i < len(s.b) && isDigit(s.b[s.i]); s.i++ {
		digit := uint64(s.b[s.i] - '0')
		if magnitude > (math.MaxUint64-digit)/10 {
			fits = false
		}
		magnitude = magnitude*10 + digit
	}
	switch digits := s.i - first; {
	case digits == 0:
		return number{}, s.badNumber(start)
	case digits > 1 && s.b[first] == '0':
		return number{}, s.badNumber(start)
	}
	fractional, err := s.fraction(start)
	if err != nil {
		return number{}, err
	}
	if !fractional && fits {
		switch {
		case !negative && magnitude <= math.MaxInt64:
			return number{kind: KindInt, i: int64(magnitude)}, nil
		case !negative:
			return number{kind: KindUint, u: magnitude}, nil
		case magnitude != 0 && magnitude <= 1<<63:
			return number{kind: KindInt, i: int64(-magnitude)}, nil
		}
	}
	f, err := strconv.ParseFloat(string(s.b[start:s.i]), 64)
	if err != nil {
		return number{}, fmt.Errorf("number at offset %d is out of range", start)
	}
	return number{kind: KindFloat, f: f}, nil
}

// fraction reads the part of a number behind its integer digits; ok is false where there is none.
func (s *jsonSource) fraction(start int) (ok bool, err error) {
	if s.i < len(s.b) && s.b[s.i] == '.' {
		ok = true
		s.i++
		if s.digits() == 0 {
			return false, s.badNumber(start)
		}
	}
	if s.i < len(s.b) && (s.b[s.i] == 'e' || s.b[s.i] == 'E') {
		ok = true
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if s.digits() == 0 {
			return false, s.badNumber(start)
		}
	}
	return ok, nil
}

func (s *jsonSource) digits() int {
	start := s.i
	for s.i < len(s.b) && isDigit(s.b[s.i]) {
		s.i++
	}
	return s.i - start
}

func (s *jsonSource) badNumber(start int) error {
	return fmt.Errorf("malformed number at offset %d", start)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// blob always fails: JSON has no bytes.
func (s *jsonSource) blob() ([]byte, error) {
	return nil, s.expect(KindBytes)
}

func (s *jsonSource) enter(kind Kind) error {
	if err := s.expect(kind); err != nil {
		return err
	}
	if len(s.stack) >= maxDepth {
		return errTooDeep
	}
	s.stack = append(s.stack, jsonLevel{closer: s.b[s.i] + 2}) // in ASCII ']' is '[' + 2, and '}' is '{' + 2
	s.i++
	return nil
}

func (s *jsonSource) more() (bool, error) {
	c, err := s.next()
	if err != nil {
		return false, err
	}
	level := &s.stack[len(s.stack)-1]
	if c == level.closer {
		s.i++
		s.stack = s.stack[:len(s.stack)-1]
		return false, nil
	}
	if level.started {
		if c != ',' {
			return false, s.unexpected()
		}
		s.i++ // whatever follows must be an element: a closer there is refused by peek or key
	}
	level.started = true
	return true, nil
}

func (s *jsonSource) key() ([]byte, error) {
	start := s.i
	key, err := s.text()
	if err != nil {
		return nil, err
	}
	if s.i-start > len(key)+2 { // maybe escaped, then it lives in the scratch that the value will reuse
		key = bytes.Clone(key)
	}
	c, err := s.next()
	if err != nil {
		return nil, err
	}
	if c != ':' {
		return nil, s.unexpected()
	}
	s.i++
	return key, nil
}

func (s *jsonSource) plainU32s(dst []uint32) []uint32 {
	level := &s.stack[len(s.stack)-1]
	for {
		i := s.i
		if level.started {
			if i >= len(s.b) || s.b[i] != ',' {
				return dst
			}
			i++
		}
		first, v := i, uint64(0)
		for ; i < len(s.b) && isDigit(s.b[i]) && i-first < 10; i++ {
			v = v*10 + uint64(s.b[i]-'0')
		}
		switch {
		case i == first, i == len(s.b), s.b[i] != ',' && s.b[i] != ']', s.b[first] == '0' && i-first > 1, v > math.MaxUint32:
			return dst
		}
		dst = append(dst, uint32(v))
		level.started = true
		s.i = i
	}
}

// hint is made for lists of token ids, which take four bytes or so each.
func (s *jsonSource) hint() int {
	n := bytes.IndexByte(s.b[s.i:], ']')
	return max(n, 0)/4 + 1
}

func (s *jsonSource) end() error {
	s.space()
	if s.i < len(s.b) {
		return errTrailing
	}
	return nil
}
