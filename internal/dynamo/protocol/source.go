package protocol

import (
	"errors"
	"fmt"
)

// maxDepth bounds how deep lists and maps may nest, in known fields, opaque values and skipped ones alike.
const maxDepth = 128

// source pulls one document out of a byte slice, element by element. Slices that it returns alias the input or are private
// copies; either way they stay valid as long as the input does, except text, which is valid until the next call.
//
// A scalar method meets another kind with a kindError and consumes nothing.
type source interface {
	// peek tells the kind of the next value; every number is KindInt here, because JSON only knows after reading it.
	peek() (Kind, error)
	// null consumes a null if one comes next, and tells so.
	null() (bool, error)
	boolean() (bool, error)
	number() (number, error)
	text() ([]byte, error)
	blob() ([]byte, error)
	// enter opens the next value, which must be of kind KindList or KindMap.
	enter(kind Kind) error
	// more tells whether the innermost open container has another element, and leaves the container if not.
	more() (bool, error)
	// key reads the key of the element that more announced.
	key() ([]byte, error)
	// plainU32s appends the elements of the innermost list, as long as each is a u32 in its commonest spelling. It stops before
	// anything else, even if that is right: the general way is there for it, this one is for prompts of many thousand tokens.
	plainU32s(dst []uint32) []uint32
	// hint guesses how many elements the innermost container still has. It never exceeds the bytes that are left.
	hint() int
	// end fails where anything follows the document.
	end() error
}

// number is a number as it was written: an integer stays one.
type number struct {
	kind Kind // KindInt, KindUint or KindFloat, which tells the field that counts
	i    int64
	u    uint64
	f    float64
}

// float returns the nearest double.
func (n number) float() float64 {
	switch n.kind {
	case KindInt:
		return float64(n.i)
	case KindUint:
		return float64(n.u)
	default:
		return n.f
	}
}

func (n number) String() string {
	switch n.kind {
	case KindInt:
		return fmt.Sprint(n.i)
	case KindUint:
		return fmt.Sprint(n.u)
	default:
		return string(appendJSONFloat(nil, n.f, 64))
	}
}

func newSource(codec Codec, body []byte) (source, error) {
	switch codec {
	case JSON:
		return &jsonSource{b: body}, nil
	case MsgPack:
		return &msgpackSource{b: body}, nil
	default:
		return nil, fmt.Errorf("unknown codec %d", codec)
	}
}

var (
	errTooDeep   = fmt.Errorf("nested deeper than %d", maxDepth)
	errTruncated = errors.New("the document ends too early")
	errTrailing  = errors.New("bytes follow the document")
	errNotUTF8   = errors.New("text is not UTF-8")
)

// kindError says that a value of another kind was needed.
type kindError struct{ want, got Kind }

func (e kindError) Error() string { return "want " + e.want.noun() + ", got " + e.got.noun() }

// check takes what peek returned, and wants this kind.
func (k Kind) check(got Kind, err error) error {
	if err != nil {
		return err
	}
	if got != k {
		return kindError{k, got}
	}
	return nil
}

func (k Kind) noun() string {
	switch k {
	case KindNull:
		return "null"
	case KindBool:
		return "a boolean"
	case KindInt, KindUint, KindFloat:
		return "a number"
	case KindString:
		return "a string"
	case KindBytes:
		return "bytes"
	case KindList:
		return "a list"
	case KindMap:
		return "a map"
	default:
		return "an unknown kind"
	}
}
