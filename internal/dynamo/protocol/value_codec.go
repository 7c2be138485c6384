package protocol

import (
	"bytes"
	"fmt"
)

// ParseValue reads one document of any shape. JSON integers beyond uint64 become floats; a MessagePack float32 is widened.
func ParseValue(codec Codec, b []byte) (Value, error) {
	r, err := newReader(codec, b)
	if err != nil {
		return Value{}, err
	}
	v, err := r.value()
	if err != nil {
		return Value{}, err
	}
	return v, r.end()
}

// AppendJSON appends v as compact JSON text, keys in their order. What JSON cannot say follows serde_json: NaN and infinities
// become null, bytes a list of integers.
func (v Value) AppendJSON(dst []byte) []byte { return AppendValue(dst, JSON, v) }

// AppendValue appends v in the given codec.
func AppendValue(dst []byte, codec Codec, v Value) []byte {
	e := encoder{dst: dst, codec: codec}
	e.value(&v)
	return e.dst
}

// value reads any value into a tree of its own; nothing in it aliases the input.
func (r *reader) value() (Value, error) {
	if r.nodes++; r.nodes > maxNodes {
		return Value{}, fmt.Errorf("opaque values have more than %d nodes", maxNodes)
	}
	kind, err := r.peek()
	if err != nil {
		return Value{}, err
	}
	switch kind {
	case KindNull:
		_, err = r.null()
		return Value{}, err
	case KindBool:
		b, err := r.boolean()
		return Value{Kind: KindBool, Bool: b}, err
	case KindInt, KindUint, KindFloat:
		n, err := r.number()
		return Value{Kind: n.kind, Int: n.i, Uint: n.u, Float: n.f}, err
	case KindString:
		s, err := r.str()
		return Value{Kind: KindString, Str: s}, err
	case KindBytes:
		b, err := r.blob()
		return Value{Kind: KindBytes, Bytes: bytes.Clone(b)}, err
	case KindList:
		v := Value{Kind: KindList}
		err := list(r, &v.List, (*reader).value)
		return v, err
	case KindMap:
		m, err := r.members()
		return Value{Kind: KindMap, Map: m}, err
	default:
		return Value{}, kindError{KindMap, kind}
	}
}

// mapValue reads an opaque value that must be a map, or null.
func (r *reader) mapValue() (Value, error) {
	v, err := r.value()
	if err == nil && v.Kind != KindMap && v.Kind != KindNull {
		err = kindError{KindMap, v.Kind}
	}
	return v, err
}

func (r *reader) members() ([]Member, error) {
	var (
		out   []Member
		index map[string]int // built once searching out has become slow
	)
	const few = 16
	err := r.object(func(key []byte) error {
		v, err := r.value()
		if err != nil {
			return err
		}
		at := -1
		if index == nil {
			for i := range out {
				if out[i].Key == string(key) {
					at = i
				}
			}
		} else if i, ok := index[string(key)]; ok {
			at = i
		}
		if at >= 0 {
			out[at].Value = v
			return nil
		}
		out = append(out, Member{Key: string(key), Value: v})
		switch {
		case index != nil:
			index[out[len(out)-1].Key] = len(out) - 1
		case len(out) == few:
			index = make(map[string]int, 4*few)
			for i := range out {
				index[out[i].Key] = i
			}
		}
		return nil
	})
	return out, err
}
