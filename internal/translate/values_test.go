package translate

import (
	"math"
	"reflect"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"remora/internal/dynamo/protocol"
)

func nan() float64 { return math.NaN() }

func TestNumbersFromTheEngine(t *testing.T) {
	for _, row := range []struct {
		in   float64
		want protocol.Value
	}{
		{0, protocol.Int(0)},
		{math.Copysign(0, -1), protocol.Int(0)},
		{5600, protocol.Int(5600)},
		{-7, protocol.Int(-7)},
		{maxExact, protocol.Int(maxExact)},
		{-maxExact, protocol.Int(-maxExact)},
		{maxExact + 1, protocol.Float(maxExact + 1)}, // may have been 2^53 + 1 once
		{0.5, protocol.Float(0.5)},
		{1e300, protocol.Float(1e300)},
	} {
		got, fault := number(row.in)
		if fault != nil || !reflect.DeepEqual(got, row.want) {
			t.Errorf("%v: %v, %v", row.in, got, fault)
		}
	}
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if _, fault := number(f); fault == nil {
			t.Errorf("%v accepted", f)
		}
	}
}

func TestStructFromTheEngine(t *testing.T) {
	got, fault := fromStruct(object(t, `{"b":[null,true,"x",1.5,[2]],"a":{"z":3,"y":{}}}`))
	if fault != nil {
		t.Fatal(fault.text())
	}
	if text := string(got.AppendJSON(nil)); text != `{"a":{"y":{},"z":3},"b":[null,true,"x",1.5,[2]]}` {
		t.Error(text)
	}
	// A value whose kind is missing is legal on the wire.
	got, fault = fromStruct(&structpb.Struct{Fields: map[string]*structpb.Value{"a": {}, "b": nil}})
	if fault != nil {
		t.Fatal(fault.text())
	}
	if text := string(got.AppendJSON(nil)); text != `{"a":null,"b":null}` {
		t.Error(text)
	}
	deep := structpb.NewNumberValue(1)
	for range 10_000 {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	if _, fault = fromStruct(&structpb.Struct{Fields: map[string]*structpb.Value{"a": deep}}); fault == nil {
		t.Error("ten thousand levels accepted")
	}
}

// TestStructRoundTrip: what a Struct can carry comes back as it went in, but for the order of keys and for whole floats, which
// come back as the integers that they equal.
func TestStructRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := protocol.Map(anyMembers(3).Draw(t, "members")...)
		s, fault := toStruct(v)
		if fault != nil {
			t.Skip(fault.text())
		}
		once, fault := fromStruct(s)
		if fault != nil {
			t.Fatal(fault.text())
		}
		if !same(v, once) {
			t.Fatalf("%+v came back as %+v", v, once)
		}
		s, fault = toStruct(once)
		if fault != nil {
			t.Fatal(fault.text())
		}
		twice, fault := fromStruct(s)
		if fault != nil || !reflect.DeepEqual(once, twice) {
			t.Fatalf("the second trip changed %+v to %+v (%v)", once, twice, fault)
		}
	})
}

// same compares documents up to the order of keys and the form of whole numbers.
func same(a, b protocol.Value) bool {
	if x, ok := whole(a); ok {
		y, wholeToo := whole(b)
		return wholeToo && x == y
	}
	if a.Kind != b.Kind || len(a.List) != len(b.List) || len(a.Map) != len(b.Map) {
		return false
	}
	for i := range a.List {
		if !same(a.List[i], b.List[i]) {
			return false
		}
	}
	for i := range a.Map {
		other, ok := b.Get(a.Map[i].Key)
		if !ok || !same(a.Map[i].Value, other) {
			return false
		}
	}
	return a.Bool == b.Bool && a.Str == b.Str && a.Float == b.Float
}

// anyValue generates documents of every kind; their texts are UTF-8 and their keys distinct, as the readers of the wire have it.
func anyValue(depth int) *rapid.Generator[protocol.Value] {
	leaves := []*rapid.Generator[protocol.Value]{
		rapid.Just(protocol.Null()),
		rapid.Map(rapid.Bool(), protocol.Bool),
		rapid.Map(rapid.Int64(), protocol.Int),
		rapid.Map(rapid.Int64Range(-2, 70000), protocol.Int),
		rapid.Map(rapid.Uint64Min(1<<63), func(u uint64) protocol.Value { return protocol.Value{Kind: protocol.KindUint, Uint: u} }),
		rapid.Map(rapid.Float64(), protocol.Float),
		rapid.Map(rapid.Int32(), func(i int32) protocol.Value { return protocol.Float(float64(i)) }),
		rapid.Map(rapid.String(), protocol.String),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 4), func(b []byte) protocol.Value {
			return protocol.Value{Kind: protocol.KindBytes, Bytes: b}
		}),
	}
	if depth > 0 {
		leaves = append(leaves,
			rapid.Map(rapid.SliceOfN(anyValue(depth-1), 0, 4), func(l []protocol.Value) protocol.Value { return protocol.List(l...) }),
			rapid.Map(anyMembers(depth-1), func(m []protocol.Member) protocol.Value { return protocol.Map(m...) }))
	}
	return rapid.OneOf(leaves...)
}

// keys are mostly those that the code looks at.
var keys = []string{
	"do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port",
	"transfer_mode", "dcp_size", "_remora", "transfer_id", "kv_transfer_params", "vllm_tito", "sampling_params", "features", "nvext",
	"cache_salt", "token_in", "extra_fields", "bypass_prefix_cache", "skip_reading_prefix_cache", "max_tokens", "logprobs", "temperature",
	"stop_token_ids", "top_k", "seed", "return_token_ids", "image_url", "cached_tokens",
}

func anyMembers(depth int) *rapid.Generator[[]protocol.Member] {
	member := rapid.Custom(func(t *rapid.T) protocol.Member {
		key := rapid.OneOf(rapid.SampledFrom(keys), rapid.String()).Draw(t, "key")
		return protocol.Member{Key: key, Value: anyValue(depth).Draw(t, "value")}
	})
	return rapid.SliceOfNDistinct(member, 0, 6, func(m protocol.Member) string { return m.Key })
}
