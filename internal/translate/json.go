package translate

import (
	"math"
	"strconv"
	"unicode/utf8"

	"remora/internal/dynamo/protocol"
)

// appendJSON writes v as compact JSON. Keys keep their order: some grammar back ends generate the members of an object in the
// order of the schema.
func appendJSON(b []byte, v protocol.Value) ([]byte, *valueFault) {
	return jsonAt(b, v, 0)
}

func jsonAt(b []byte, v protocol.Value, depth int) ([]byte, *valueFault) {
	if depth > maxDepth {
		return nil, tooDeep()
	}
	switch v.Kind {
	case protocol.KindNull:
		return append(b, "null"...), nil
	case protocol.KindBool:
		return strconv.AppendBool(b, v.Bool), nil
	case protocol.KindInt:
		return strconv.AppendInt(b, v.Int, 10), nil
	case protocol.KindUint:
		return strconv.AppendUint(b, v.Uint, 10), nil
	case protocol.KindFloat:
		return appendFloat(b, v.Float)
	case protocol.KindString:
		return appendQuoted(b, v.Str)
	case protocol.KindList:
		return appendList(b, v.List, depth)
	case protocol.KindMap:
		return appendMap(b, v.Map, depth)
	case protocol.KindBytes:
		return nil, rawBytes()
	default:
		return nil, &valueFault{fault: FaultValue, why: "is of an unknown kind"}
	}
}

func appendList(b []byte, list []protocol.Value, depth int) ([]byte, *valueFault) {
	b = append(b, '[')
	var fault *valueFault
	for i := range list {
		if i > 0 {
			b = append(b, ',')
		}
		if b, fault = jsonAt(b, list[i], depth+1); fault != nil {
			return nil, fault.at(i)
		}
	}
	return append(b, ']'), nil
}

func appendMap(b []byte, members []protocol.Member, depth int) ([]byte, *valueFault) {
	b = append(b, '{')
	var fault *valueFault
	for i := range members {
		if i > 0 {
			b = append(b, ',')
		}
		if b, fault = appendQuoted(b, members[i].Key); fault != nil {
			return nil, fault
		}
		b = append(b, ':')
		if b, fault = jsonAt(b, members[i].Value, depth+1); fault != nil {
			return nil, fault.under(members[i].Key)
		}
	}
	return append(b, '}'), nil
}

// appendFloat keeps a whole float recognizable as a float.
func appendFloat(b []byte, f float64) ([]byte, *valueFault) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, notFinite()
	}
	if abs := math.Abs(f); abs != 0 && (abs < 1e-5 || abs >= 1e16) {
		return strconv.AppendFloat(b, f, 'e', -1, 64), nil
	}
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	if f == math.Trunc(f) {
		b = append(b, ".0"...)
	}
	return b, nil
}

// appendQuoted escapes what JSON demands and nothing else.
func appendQuoted(b []byte, s string) ([]byte, *valueFault) {
	if !utf8.ValidString(s) {
		return nil, notUTF8()
	}
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"'), nil
}
