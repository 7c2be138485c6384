package translate

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/dynamo/protocol"
)

const (
	// maxExact bounds the integers that survive a protobuf Struct, whose only number is a double. The engine turns whole
	// doubles of this magnitude back into integers and leaves larger ones as floats.
	maxExact = 1<<53 - 1
	// maxDepth bounds nesting, so that recursion has an end. Real hand-offs have three levels.
	maxDepth = 64
)

// valueFault says what cannot be carried, and where: path grows outwards while the recursion unwinds.
type valueFault struct {
	fault HandoffFault
	path  string
	why   string
}

// text continues a sentence that began with the name of the document.
func (f *valueFault) text() string { return f.path + " " + f.why }

func (f *valueFault) under(key string) *valueFault {
	f.path = "." + key + f.path
	return f
}

func (f *valueFault) at(index int) *valueFault {
	f.path = fmt.Sprintf("[%d]%s", index, f.path)
	return f
}

// The faults that both directions share.
func tooDeep() *valueFault   { return &valueFault{fault: FaultValue, why: "is nested too deeply"} }
func notFinite() *valueFault { return &valueFault{fault: FaultValue, why: "is not a finite number"} }

// toStruct converts an object.
func toStruct(v protocol.Value) (*structpb.Struct, *valueFault) {
	return structAt(v, 0)
}

func structAt(v protocol.Value, depth int) (*structpb.Struct, *valueFault) {
	if v.Kind != protocol.KindMap {
		return nil, &valueFault{fault: FaultNotObject, why: "must be an object"}
	}
	out := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(v.Map))}
	for i := range v.Map {
		key := v.Map[i].Key
		member, fault := valueAt(v.Map[i].Value, depth+1)
		if fault != nil {
			return nil, fault.under(key)
		}
		out.Fields[key] = member
	}
	return out, nil
}

func valueAt(v protocol.Value, depth int) (*structpb.Value, *valueFault) {
	if depth > maxDepth {
		return nil, tooDeep()
	}
	switch v.Kind {
	case protocol.KindNull:
		return structpb.NewNullValue(), nil
	case protocol.KindBool:
		return structpb.NewBoolValue(v.Bool), nil
	case protocol.KindInt:
		if v.Int > maxExact || v.Int < -maxExact {
			return nil, inexact(strconv.FormatInt(v.Int, 10))
		}
		return structpb.NewNumberValue(float64(v.Int)), nil
	case protocol.KindUint:
		return nil, inexact(strconv.FormatUint(v.Uint, 10))
	case protocol.KindFloat:
		if math.IsNaN(v.Float) || math.IsInf(v.Float, 0) {
			return nil, notFinite()
		}
		return structpb.NewNumberValue(v.Float), nil
	case protocol.KindString:
		return structpb.NewStringValue(v.Str), nil
	case protocol.KindList:
		list := &structpb.ListValue{Values: make([]*structpb.Value, len(v.List))}
		for i := range v.List {
			element, fault := valueAt(v.List[i], depth+1)
			if fault != nil {
				return nil, fault.at(i)
			}
			list.Values[i] = element
		}
		return structpb.NewListValue(list), nil
	case protocol.KindMap:
		object, fault := structAt(v, depth)
		if fault != nil {
			return nil, fault
		}
		return structpb.NewStructValue(object), nil
	case protocol.KindBytes:
		return nil, &valueFault{fault: FaultValue, why: "is raw bytes"}
	default:
		return nil, &valueFault{fault: FaultValue, why: "is of an unknown kind"}
	}
}

func inexact(number string) *valueFault {
	return &valueFault{fault: FaultInteger, why: "is " + number + ", which a protobuf number cannot carry exactly (limit 2^53 - 1)"}
}

// fromStruct converts an object of the engine. Keys come in ascending order, so that equal objects give equal documents.
func fromStruct(s *structpb.Struct) (protocol.Value, *valueFault) {
	return objectAt(s, 0)
}

func objectAt(s *structpb.Struct, depth int) (protocol.Value, *valueFault) {
	members := make([]protocol.Member, 0, len(s.GetFields()))
	for _, key := range slices.Sorted(maps.Keys(s.GetFields())) {
		v, fault := elementAt(s.GetFields()[key], depth+1)
		if fault != nil {
			return protocol.Value{}, fault.under(key)
		}
		members = append(members, protocol.Member{Key: key, Value: v})
	}
	return protocol.Map(members...), nil
}

func elementAt(v *structpb.Value, depth int) (protocol.Value, *valueFault) {
	if depth > maxDepth {
		return protocol.Value{}, tooDeep()
	}
	switch kind := v.GetKind().(type) {
	case *structpb.Value_BoolValue:
		return protocol.Bool(kind.BoolValue), nil
	case *structpb.Value_NumberValue:
		return number(kind.NumberValue)
	case *structpb.Value_StringValue:
		return protocol.String(kind.StringValue), nil
	case *structpb.Value_ListValue:
		list := make([]protocol.Value, len(kind.ListValue.GetValues()))
		for i, element := range kind.ListValue.GetValues() {
			converted, fault := elementAt(element, depth+1)
			if fault != nil {
				return protocol.Value{}, fault.at(i)
			}
			list[i] = converted
		}
		return protocol.List(list...), nil
	case *structpb.Value_StructValue:
		return objectAt(kind.StructValue, depth)
	default: // null, and a value whose kind is missing
		return protocol.Null(), nil
	}
}

// number gives whole doubles their integer form back; the engine had to send them as doubles.
func number(f float64) (protocol.Value, *valueFault) {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return protocol.Value{}, notFinite()
	case math.Abs(f) <= maxExact && f == math.Trunc(f):
		return protocol.Int(int64(f)), nil
	default:
		return protocol.Float(f), nil
	}
}
