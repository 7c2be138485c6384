package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/tinylib/msgp/msgp"
)

// msgpackSource reads MessagePack as serde writes it: maps with string keys, no extension types.
type msgpackSource struct {
	b    []byte   // what is left
	left []uint32 // elements left in each open container
}

func (s *msgpackSource) peek() (Kind, error) {
	if len(s.b) == 0 {
		return KindNull, errTruncated
	}
	switch t := msgp.NextType(s.b); t {
	case msgp.NilType:
		return KindNull, nil
	case msgp.BoolType:
		return KindBool, nil
	case msgp.IntType, msgp.UintType, msgp.Float32Type, msgp.Float64Type:
		return KindInt, nil
	case msgp.StrType:
		return KindString, nil
	case msgp.BinType:
		return KindBytes, nil
	case msgp.ArrayType:
		return KindList, nil
	case msgp.MapType:
		return KindMap, nil
	default:
		return KindNull, fmt.Errorf("extension or invalid type byte 0x%02x", s.b[0])
	}
}

func (s *msgpackSource) expect(want Kind) error {
	return want.check(s.peek())
}

// advance takes what a raw reader returned.
func (s *msgpackSource) advance(rest []byte, err error) error {
	if errors.Is(err, msgp.ErrShortBytes) {
		return errTruncated
	}
	if err != nil {
		return fmt.Errorf("msgpack: %w", err)
	}
	s.b = rest
	return nil
}

func (s *msgpackSource) null() (bool, error) {
	kind, err := s.peek()
	if err != nil || kind != KindNull {
		return false, err
	}
	s.b = s.b[1:]
	return true, nil
}

func (s *msgpackSource) boolean() (bool, error) {
	if err := s.expect(KindBool); err != nil {
		return false, err
	}
	v, rest, err := msgp.ReadBoolBytes(s.b)
	return v, s.advance(rest, err)
}

func (s *msgpackSource) number() (number, error) {
	if err := s.expect(KindInt); err != nil {
		return number{}, err
	}
	switch msgp.NextType(s.b) { // expect has left only numbers
	case msgp.IntType:
		v, rest, err := msgp.ReadInt64Bytes(s.b)
		return number{kind: KindInt, i: v}, s.advance(rest, err)
	case msgp.UintType:
		v, rest, err := msgp.ReadUint64Bytes(s.b)
		if v > math.MaxInt64 {
			return number{kind: KindUint, u: v}, s.advance(rest, err)
		}
		return number{kind: KindInt, i: int64(v)}, s.advance(rest, err)
	case msgp.Float32Type:
		v, rest, err := msgp.ReadFloat32Bytes(s.b)
		return number{kind: KindFloat, f: float64(v)}, s.advance(rest, err)
	default:
		v, rest, err := msgp.ReadFloat64Bytes(s.b)
		return number{kind: KindFloat, f: v}, s.advance(rest, err)
	}
}

func (s *msgpackSource) text() ([]byte, error) {
	if err := s.expect(KindString); err != nil {
		return nil, err
	}
	v, rest, err := msgp.ReadStringZC(s.b)
	if err = s.advance(rest, err); err != nil {
		return nil, err
	}
	if !utf8.Valid(v) {
		return nil, errNotUTF8
	}
	return v, nil
}

func (s *msgpackSource) blob() ([]byte, error) {
	if err := s.expect(KindBytes); err != nil {
		return nil, err
	}
	v, rest, err := msgp.ReadBytesZC(s.b)
	return v, s.advance(rest, err)
}

func (s *msgpackSource) enter(kind Kind) error {
	if err := s.expect(kind); err != nil {
		return err
	}
	if len(s.left) >= maxDepth {
		return errTooDeep
	}
	read, least := msgp.ReadArrayHeaderBytes, uint64(1)
	if kind == KindMap {
		read, least = msgp.ReadMapHeaderBytes, 2
	}
	n, rest, err := read(s.b)
	if err = s.advance(rest, err); err != nil {
		return err
	}
	if uint64(n)*least > uint64(len(s.b)) { // so that hint never promises more than the body can hold
		return errTruncated
	}
	s.left = append(s.left, n)
	return nil
}

func (s *msgpackSource) more() (bool, error) {
	top := &s.left[len(s.left)-1]
	if *top == 0 {
		s.left = s.left[:len(s.left)-1]
		return false, nil
	}
	*top--
	return true, nil
}

func (s *msgpackSource) key() ([]byte, error) {
	key, err := s.text()
	if err != nil {
		return nil, fmt.Errorf("map key: %w", err)
	}
	return key, nil
}

func (s *msgpackSource) plainU32s(dst []uint32) []uint32 {
	left := &s.left[len(s.left)-1]
	b := s.b
	for ; *left > 0 && len(b) > 0; *left-- {
		switch c := b[0]; {
		case c < 0x80:
			dst, b = append(dst, uint32(c)), b[1:]
		case c == 0xcc && len(b) > 1:
			dst, b = append(dst, uint32(b[1])), b[2:]
		case c == 0xcd && len(b) > 2:
			dst, b = append(dst, uint32(binary.BigEndian.Uint16(b[1:]))), b[3:]
		case c == 0xce && len(b) > 4:
			dst, b = append(dst, binary.BigEndian.Uint32(b[1:])), b[5:]
		default:
			s.b = b
			return dst
		}
	}
	s.b = b
	return dst
}

func (s *msgpackSource) hint() int { return int(s.left[len(s.left)-1]) }

func (s *msgpackSource) end() error {
	if len(s.b) > 0 {
		return errTrailing
	}
	return nil
}
