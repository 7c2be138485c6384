package protocol

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tinylib/msgp/msgp"
)

// encoder appends one document. Maps and lists are announced with their exact number of elements, which MessagePack needs;
// in JSON a comma is due wherever the byte before is not the opener.
type encoder struct {
	dst   []byte
	codec Codec
}

func (e *encoder) openMap(n int) {
	if e.codec == MsgPack {
		e.dst = msgp.AppendMapHeader(e.dst, uint32(n))
		return
	}
	e.dst = append(e.dst, '{')
}

func (e *encoder) closeMap() {
	if e.codec == JSON {
		e.dst = append(e.dst, '}')
	}
}

func (e *encoder) openList(n int) {
	if e.codec == MsgPack {
		e.dst = msgp.AppendArrayHeader(e.dst, uint32(n))
		return
	}
	e.dst = append(e.dst, '[')
}

func (e *encoder) closeList() {
	if e.codec == JSON {
		e.dst = append(e.dst, ']')
	}
}

// element starts the next element of a list.
func (e *encoder) element() {
	if e.codec == JSON && e.dst[len(e.dst)-1] != '[' {
		e.dst = append(e.dst, ',')
	}
}

// key starts the next member of a map. The key must be plain ASCII; member takes any.
func (e *encoder) key(k string) {
	if e.codec == MsgPack {
		e.dst = msgp.AppendString(e.dst, k)
		return
	}
	if e.dst[len(e.dst)-1] != '{' {
		e.dst = append(e.dst, ',')
	}
	e.dst = append(e.dst, '"')
	e.dst = append(e.dst, k...)
	e.dst = append(e.dst, '"', ':')
}

// member is key for a key that comes from outside.
func (e *encoder) member(k string) {
	if e.codec == JSON && e.dst[len(e.dst)-1] != '{' {
		e.dst = append(e.dst, ',')
	}
	e.text(k)
	if e.codec == JSON {
		e.dst = append(e.dst, ':')
	}
}

func (e *encoder) null() {
	if e.codec == MsgPack {
		e.dst = msgp.AppendNil(e.dst)
		return
	}
	e.dst = append(e.dst, "null"...)
}

func (e *encoder) boolean(v bool) {
	if e.codec == MsgPack {
		e.dst = msgp.AppendBool(e.dst, v)
		return
	}
	e.dst = strconv.AppendBool(e.dst, v)
}

func (e *encoder) uint(v uint64) {
	if e.codec == MsgPack {
		e.dst = msgp.AppendUint64(e.dst, v)
		return
	}
	e.dst = strconv.AppendUint(e.dst, v, 10)
}

func (e *encoder) int(v int64) {
	switch {
	case v >= 0: // the unsigned forms, as Rust's rmp writes them
		e.uint(uint64(v))
	case e.codec == MsgPack:
		e.dst = msgp.AppendInt64(e.dst, v)
	default:
		e.dst = strconv.AppendInt(e.dst, v, 10)
	}
}

func (e *encoder) float64(v float64) {
	if e.codec == MsgPack {
		e.dst = msgp.AppendFloat64(e.dst, v)
		return
	}
	e.dst = appendJSONFloat(e.dst, v, 64)
}

func (e *encoder) float32(v float32) {
	if e.codec == MsgPack {
		e.dst = msgp.AppendFloat32(e.dst, v)
		return
	}
	e.dst = appendJSONFloat(e.dst, float64(v), 32)
}

// text replaces what is not UTF-8 by U+FFFD: a reader in Rust would refuse the whole document otherwise.
func (e *encoder) text(v string) {
	if !utf8.ValidString(v) {
		v = strings.ToValidUTF8(v, string(utf8.RuneError))
	}
	if e.codec == MsgPack {
		e.dst = msgp.AppendString(e.dst, v)
		return
	}
	e.dst = appendJSONText(e.dst, v)
}

func (e *encoder) blob(v []byte) {
	if e.codec == MsgPack {
		e.dst = msgp.AppendBytes(e.dst, v)
		return
	}
	e.openList(len(v))
	for _, b := range v {
		e.element()
		e.uint(uint64(b))
	}
	e.closeList()
}

func (e *encoder) u32s(v []uint32) {
	e.openList(len(v))
	for _, id := range v {
		e.element()
		e.uint(uint64(id))
	}
	e.closeList()
}

func (e *encoder) texts(v []string) {
	e.openList(len(v))
	for _, s := range v {
		e.element()
		e.text(s)
	}
	e.closeList()
}

func (e *encoder) value(v *Value) {
	switch v.Kind {
	case KindBool:
		e.boolean(v.Bool)
	case KindInt:
		e.int(v.Int)
	case KindUint:
		e.uint(v.Uint)
	case KindFloat:
		e.float64(v.Float)
	case KindString:
		e.text(v.Str)
	case KindBytes:
		e.blob(v.Bytes)
	case KindList:
		e.openList(len(v.List))
		for i := range v.List {
			e.element()
			e.value(&v.List[i])
		}
		e.closeList()
	case KindMap:
		e.openMap(len(v.Map))
		for i := range v.Map {
			e.member(v.Map[i].Key)
			e.value(&v.Map[i].Value)
		}
		e.closeMap()
	case KindNull:
		e.null()
	default:
		e.null()
	}
}

// appendJSONFloat writes the shortest text that reads back as v, in serde_json's layout: always a point or an exponent, an
// exponent only outside 1e-5 to 1e16, null for what JSON cannot say.
func appendJSONFloat(dst []byte, v float64, bits int) []byte {
	abs := math.Abs(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return append(dst, "null"...)
	case abs == 0 || abs >= 1e-5 && abs < 1e16:
		start := len(dst)
		dst = strconv.AppendFloat(dst, v, 'f', -1, bits)
		if bytes.IndexByte(dst[start:], '.') < 0 {
			dst = append(dst, ".0"...)
		}
		return dst
	}
	dst = strconv.AppendFloat(dst, v, 'e', -1, bits)
	// Go writes at least two digits of exponent and its plus sign; serde_json writes neither.
	digits := len(dst)
	for digits > 0 && isDigit(dst[digits-1]) {
		digits--
	}
	exponent := digits
	for exponent < len(dst)-1 && dst[exponent] == '0' {
		exponent++
	}
	if dst[digits-1] == '+' {
		digits--
	}
	return append(dst[:digits], dst[exponent:]...)
}

// appendJSONText escapes what JSON must and nothing else, as serde_json does. v must be UTF-8.
func appendJSONText(dst []byte, v string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := range len(v) {
		c := v[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, v[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
		}
	}
	dst = append(dst, v[start:]...)
	return append(dst, '"')
}
