package protocol

import (
	"errors"
	"fmt"
	"math"
)

// maxNodes bounds the nodes of all opaque values in one document. A node takes a hundred bytes and more in memory but may take
// one byte on the wire, so a frame of the permitted size could otherwise cost gigabytes.
const maxNodes = 1 << 20

// FieldError says which field of a document could not be read.
type FieldError struct {
	Path string // such as "sampling_options.n" or "token_ids[3]"; empty for the document itself
	Err  error
}

// Error implements error.
func (e *FieldError) Error() string {
	if e.Path == "" {
		return e.Err.Error()
	}
	return e.Path + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *FieldError) Unwrap() error { return e.Err }

// within puts outer before the path of err on the way up, so that paths cost nothing while all is well.
func within(outer string, err error) error {
	var field *FieldError
	if !errors.As(err, &field) {
		return &FieldError{Path: outer, Err: err}
	}
	dot := "."
	if field.Path == "" || field.Path[0] == '[' {
		dot = ""
	}
	return &FieldError{Path: outer + dot + field.Path, Err: field.Err}
}

// reader reads typed fields. Null and absent are alike: null sets a field to its zero value. A key that comes twice counts
// the last time, so every method sets its destination as a whole.
type reader struct {
	source

	nodes int // opaque nodes so far
}

func newReader(codec Codec, body []byte) (*reader, error) {
	src, err := newSource(codec, body)
	if err != nil {
		return nil, err
	}
	return &reader{source: src}, nil
}

// document reads the one map that body holds.
func document(codec Codec, body []byte, field func(r *reader, key []byte) error) error {
	r, err := newReader(codec, body)
	if err != nil {
		return err
	}
	if err := r.object(func(key []byte) error { return field(r, key) }); err != nil {
		return err
	}
	return r.end()
}

// object calls field with each key of the next value, which must be a map; field reads the value or skips it.
func (r *reader) object(field func(key []byte) error) error {
	if err := r.enter(KindMap); err != nil {
		return err
	}
	for {
		ok, err := r.more()
		if err != nil || !ok {
			return err
		}
		key, err := r.key()
		if err != nil {
			return err
		}
		if err := field(key); err != nil {
			return within(string(key), err)
		}
	}
}

// orNull calls read unless the next value is null.
func (r *reader) orNull(read func() error) error {
	null, err := r.null()
	if err != nil || null {
		return err
	}
	return read()
}

// optional sets *dst to nil for null.
func optional[T any](r *reader, dst **T, read func(*reader) (T, error)) error {
	*dst = nil
	return r.orNull(func() error {
		v, err := read(r)
		*dst = &v
		return err
	})
}

// list sets *dst to nil for null and to an empty list for an empty one.
func list[T any](r *reader, dst *[]T, read func(*reader) (T, error)) error {
	*dst = nil
	return r.orNull(func() error {
		if err := r.enter(KindList); err != nil {
			return err
		}
		out := []T{}
		for {
			ok, err := r.more()
			if err != nil || !ok {
				*dst = out
				return err
			}
			v, err := read(r)
			if err != nil {
				return within(fmt.Sprintf("[%d]", len(out)), err)
			}
			out = append(out, v)
		}
	})
}

// u32s is list for the longest of all lists, the token ids.
func (r *reader) u32s(dst *[]uint32) error {
	*dst = nil
	return r.orNull(func() error {
		if err := r.enter(KindList); err != nil {
			return err
		}
		out := r.plainU32s(make([]uint32, 0, r.hint()))
		for {
			ok, err := r.more()
			if err != nil || !ok {
				*dst = out
				return err
			}
			v, err := r.u32()
			if err != nil {
				return within(fmt.Sprintf("[%d]", len(out)), err)
			}
			out = append(out, v)
		}
	})
}

func (r *reader) unsigned(limit uint64) (uint64, error) {
	n, err := r.number()
	if err != nil {
		return 0, err
	}
	v := n.u
	if n.kind == KindInt {
		v = uint64(n.i)
	}
	if n.kind == KindFloat || n.kind == KindInt && n.i < 0 || v > limit {
		return 0, fmt.Errorf("want an integer from 0 to %d, got %s", limit, n)
	}
	return v, nil
}

func (r *reader) signed(least, most int64) (int64, error) {
	n, err := r.number()
	if err != nil {
		return 0, err
	}
	if n.kind != KindInt || n.i < least || n.i > most {
		return 0, fmt.Errorf("want an integer from %d to %d, got %s", least, most, n)
	}
	return n.i, nil
}

func (r *reader) u8() (uint8, error) {
	v, err := r.unsigned(math.MaxUint8)
	return uint8(v), err
}

func (r *reader) u32() (uint32, error) {
	v, err := r.unsigned(math.MaxUint32)
	return uint32(v), err
}

func (r *reader) u64() (uint64, error) { return r.unsigned(math.MaxUint64) }

func (r *reader) i32() (int32, error) {
	v, err := r.signed(math.MinInt32, math.MaxInt32)
	return int32(v), err
}

func (r *reader) i64() (int64, error) { return r.signed(math.MinInt64, math.MaxInt64) }

// f32 takes any finite number that a float32 can hold after rounding.
func (r *reader) f32() (float32, error) {
	n, err := r.number()
	if err != nil {
		return 0, err
	}
	v := float32(n.float())
	if wide := float64(v); math.IsNaN(wide) || math.IsInf(wide, 0) {
		return 0, fmt.Errorf("want a finite 32-bit float, got %s", n)
	}
	return v, nil
}

func (r *reader) f64() (float64, error) {
	n, err := r.number()
	return n.float(), err
}

func (r *reader) flag() (bool, error) { return r.boolean() }

func (r *reader) str() (string, error) {
	v, err := r.text()
	return string(v), err
}

// strOrEmpty reads null as "".
func (r *reader) strOrEmpty(dst *string) error {
	*dst = ""
	return r.orNull(func() (err error) {
		*dst, err = r.str()
		return err
	})
}

// boolOrFalse reads null as false.
func (r *reader) boolOrFalse(dst *bool) error {
	*dst = false
	return r.orNull(func() (err error) {
		*dst, err = r.boolean()
		return err
	})
}

// skip passes over one value of any shape.
func (r *reader) skip() error {
	kind, err := r.peek()
	if err != nil {
		return err
	}
	switch kind {
	case KindNull:
		_, err = r.null()
	case KindBool:
		_, err = r.boolean()
	case KindInt, KindUint, KindFloat:
		_, err = r.number()
	case KindString:
		_, err = r.text()
	case KindBytes:
		_, err = r.blob()
	case KindMap:
		return r.object(func([]byte) error { return r.skip() })
	case KindList:
		return r.skipList()
	}
	return err
}

func (r *reader) skipList() error {
	if err := r.enter(KindList); err != nil {
		return err
	}
	for {
		ok, err := r.more()
		if err != nil || !ok {
			return err
		}
		if err := r.skip(); err != nil {
			return err
		}
	}
}
