package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"
)

// Why an event was not understood.
var (
	errForm   = errors.New("it is neither a map nor an array with a kind")
	errNoKind = errors.New("it has no kind")
	errHash   = errors.New("a hash is neither an integer nor bytes")
	errToken  = errors.New("a token id is not an integer of 32 bits")
	errPair   = errors.New("token ids and pairs of them are mixed")
	errSize   = errors.New("it is not a positive integer")
)

// field reads the value of a field. Values of the wrong type are refused where the event means nothing without them, and
// passed over where they are beside the point.
func (d *Decoder) field(e *Event, f field, b []byte) (rest []byte, err error) {
	switch f {
	case fieldType:
		return readKind(e, b)
	case fieldHashes:
		e.Hashes, rest, err = d.readHashes(b)
		return rest, named("block_hashes", err)
	case fieldParent:
		if msgp.IsNil(b) {
			e.HasParent = false
			return b[1:], nil
		}
		e.Parent, rest, err = readHash(b)
		e.HasParent = true
		return rest, named("parent_block_hash", err)
	case fieldTokens:
		rest, err = d.readTokens(e, b)
		return rest, named("token_ids", err)
	case fieldBlockSize:
		size, ok := readWhole(b)
		if !ok || size < 1 {
			return nil, named("block_size", errSize)
		}
		e.BlockSize = uint64(size)
	case fieldExtraKeys:
		e.ExtraKeys, rest, err = d.readExtraKeys(b)
		return rest, named("extra_keys", err)
	case fieldMedium:
		return readText(&e.Medium, "medium", b)
	case fieldLoRAName:
		return readText(&e.LoRAName, "lora_name", b)
	case fieldSpecKind:
		return readText(&e.SpecKind, "kv_cache_spec_kind", b)
	case fieldLocality:
		return readText(&e.Locality, "locality", b)
	case fieldSession:
		return readText(&e.SessionID, "session_id", b)
	case fieldGroup:
		e.Group, e.HasGroup = readWhole(b)
	case fieldLoRAID:
		e.LoRAID, e.HasLoRAID = readWhole(b)
	case fieldSlidingWindow:
		e.SlidingWindow, e.HasSlidingWindow = readWhole(b)
	case fieldOwnership:
		e.Owned = !msgp.IsNil(b)
	case fieldNone:
	}
	return msgp.Skip(b)
}

func named(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

func readKind(e *Event, b []byte) ([]byte, error) {
	if msgp.NextType(b) != msgp.StrType {
		return nil, errForm
	}
	name, rest, err := msgp.ReadStringZC(b)
	if err != nil {
		return nil, err
	}
	if e.Kind = kindOf(name); e.Kind == 0 {
		return nil, fmt.Errorf("unknown kind %.40q", name)
	}
	return rest, nil
}

// readTimestamp takes a number or nil.
func readTimestamp(b []byte) (at float64, rest []byte, err error) {
	switch msgp.NextType(b) {
	case msgp.Float64Type:
		return msgp.ReadFloat64Bytes(b)
	case msgp.Float32Type:
		var short float32
		short, rest, err = msgp.ReadFloat32Bytes(b)
		return float64(short), rest, err
	case msgp.IntType, msgp.UintType:
		whole, _ := readWhole(b)
		rest, err = msgp.Skip(b)
		return float64(whole), rest, err
	case msgp.NilType:
		return 0, b[1:], nil
	default:
		return 0, nil, errors.New("it is no number")
	}
}

// readWhole reads an integer that fits into 64 bits with sign; ok is false for anything else.
func readWhole(b []byte) (value int64, ok bool) {
	switch msgp.NextType(b) {
	case msgp.IntType, msgp.UintType:
		value, _, err := msgp.ReadInt64Bytes(b)
		return value, err == nil
	default:
		return 0, false
	}
}

// readText reads a text or nil. The words that engines use over and over are not allocated.
func readText(into *string, name string, b []byte) ([]byte, error) {
	switch msgp.NextType(b) {
	case msgp.NilType:
		*into = ""
		return b[1:], nil
	case msgp.StrType:
		text, rest, err := msgp.ReadStringZC(b)
		if err == nil {
			*into = word(text)
		}
		return rest, err
	default:
		return nil, fmt.Errorf("%s: it is no text", name)
	}
}

func word(text []byte) string {
	switch string(text) {
	case "GPU":
		return "GPU"
	case "CPU":
		return "CPU"
	case "full_attention":
		return "full_attention"
	case "sliding_window":
		return "sliding_window"
	case "LOCAL":
		return "LOCAL"
	default:
		return string(text)
	}
}

// readHash reads one hash. Integers may come as signed ones of the same 64 bits.
func readHash(b []byte) (hash uint64, rest []byte, err error) {
	switch msgp.NextType(b) {
	case msgp.UintType:
		return msgp.ReadUint64Bytes(b)
	case msgp.IntType:
		signed, rest, err := msgp.ReadInt64Bytes(b)
		return uint64(signed), rest, err
	case msgp.BinType:
		digest, rest, err := msgp.ReadBytesZC(b)
		if err != nil {
			return 0, nil, err
		}
		if len(digest) < 8 {
			return 0, nil, fmt.Errorf("a hash of %d bytes", len(digest))
		}
		return binary.BigEndian.Uint64(digest[len(digest)-8:]), rest, nil
	default:
		return 0, nil, errHash
	}
}

func (d *Decoder) readHashes(b []byte) (hashes []uint64, rest []byte, err error) {
	count, b, err := readListHeader(b)
	if err != nil {
		return nil, nil, err
	}
	start := len(d.hashes)
	for range count {
		var hash uint64
		if len(b) >= 9 && b[0] == 0xcf { // almost every hash
			hash, b = binary.BigEndian.Uint64(b[1:]), b[9:]
		} else if hash, b, err = readHash(b); err != nil {
			return nil, nil, err
		}
		d.hashes = append(d.hashes, hash)
	}
	return cut(d.hashes, start), b, nil
}

// readTokens reads a list of token ids, or of pairs of them.
func (d *Decoder) readTokens(e *Event, b []byte) ([]byte, error) {
	count, b, err := readListHeader(b)
	if err != nil {
		return nil, err
	}
	start, startNext := len(d.tokens), len(d.next)
	for i := range count {
		pair := msgp.NextType(b) == msgp.ArrayType
		if pair != (i > 0 && len(d.next) > startNext) && i > 0 {
			return nil, errPair
		}
		var first, second uint32
		if !pair {
			if first, b, err = readToken(b); err != nil {
				return nil, err
			}
			d.tokens = append(d.tokens, first)
			continue
		}
		if first, second, b, err = readPair(b); err != nil {
			return nil, err
		}
		d.tokens, d.next = append(d.tokens, first), append(d.next, second)
	}
	e.Tokens, e.NextTokens = cut(d.tokens, start), cut(d.next, startNext)
	return b, nil
}

func readPair(b []byte) (first, second uint32, rest []byte, err error) {
	count, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return 0, 0, nil, err
	}
	if count != 2 {
		return 0, 0, nil, fmt.Errorf("%d token ids where a pair is due", count)
	}
	if first, b, err = readToken(b); err != nil {
		return 0, 0, nil, err
	}
	second, b, err = readToken(b)
	return first, second, b, err
}

// readToken reads one token id; the short forms first, because batches consist of them.
func readToken(b []byte) (token uint32, rest []byte, err error) {
	if len(b) > 0 {
		switch c := b[0]; {
		case c < 0x80:
			return uint32(c), b[1:], nil
		case c == 0xcd && len(b) > 2:
			return uint32(binary.BigEndian.Uint16(b[1:])), b[3:], nil
		case c == 0xce && len(b) > 4:
			return binary.BigEndian.Uint32(b[1:]), b[5:], nil
		case c == 0xcc && len(b) > 1:
			return uint32(b[1]), b[2:], nil
		}
	}
	switch msgp.NextType(b) {
	case msgp.IntType, msgp.UintType:
		value, rest, err := msgp.ReadUint64Bytes(b)
		if err == nil && value > math.MaxUint32 {
			err = errToken
		}
		return uint32(value), rest, err
	default:
		return 0, nil, errToken
	}
}

// readListHeader reads the header of a list whose elements are a byte each at least.
func readListHeader(b []byte) (count uint32, rest []byte, err error) {
	if msgp.NextType(b) != msgp.ArrayType {
		return 0, nil, errors.New("it is no list")
	}
	return msgp.ReadArrayHeaderBytes(b)
}

// cut returns what was appended since start, without room to grow into what comes after; nil if that is nothing.
func cut[T any](all []T, start int) []T {
	if len(all) == start {
		return nil
	}
	return all[start:len(all):len(all)]
}
