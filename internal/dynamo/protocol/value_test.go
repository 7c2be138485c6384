package protocol

import (
	"math"
	"strings"
	"testing"
)

func TestValueText(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{` { "b" : [ 1 , -2 , 3.0 ] , "a" : { } } `, `{"b":[1,-2,3.0],"a":{}}`},
		{`18446744073709551615`, `18446744073709551615`},
		{`-9223372036854775808`, `-9223372036854775808`},
		{`18446744073709551616`, `1.8446744073709552e19`}, // beyond uint64 only a float is left
		{`-9223372036854775809`, `-9.223372036854776e18`},
		{`-0`, `-0.0`},
		{`1E2`, `100.0`},
		{`0.00001`, `0.00001`},
		{`0.000001`, `1e-6`},
		{`1e15`, `1000000000000000.0`},
		{`1e16`, `1e16`},
		{`1.5e-10`, `1.5e-10`},
		{`-1.7976931348623157e308`, `-1.7976931348623157e308`},
		{`5e-324`, `5e-324`},
		{`"\u0000\u001f\b\f\n\r\t\"\\\/\u007f\u2028é"`, "\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\/\x7f\u2028é\""},
		{`{"a":1,"b":2,"a":null}`, `{"a":null,"b":2}`},
		{`[[],{},null,true,false,""]`, `[[],{},null,true,false,""]`},
	} {
		v := mustParse(t, JSON, []byte(c.in))
		if got := string(v.AppendJSON([]byte("x"))); got != "x"+c.want {
			t.Errorf("%s: got %s, want %s", c.in, got, c.want)
		}
		again := mustParse(t, MsgPack, AppendValue(nil, MsgPack, v))
		if got := string(again.AppendJSON(nil)); got != c.want {
			t.Errorf("%s through msgpack: got %s, want %s", c.in, got, c.want)
		}
	}
}

// TestWhatJSONCannotSay pins serde_json's ways with it, and that MessagePack says it.
func TestWhatJSONCannotSay(t *testing.T) {
	v := List(Float(math.NaN()), Float(math.Inf(1)), Value{Kind: KindBytes, Bytes: []byte{0, 255}}, String("a\xffb"))
	if got := string(v.AppendJSON(nil)); got != `[null,null,[0,255],"a`+"\uFFFD"+`b"]` {
		t.Errorf("JSON: %s", got)
	}
	got := mustParse(t, MsgPack, AppendValue(nil, MsgPack, v))
	if !math.IsNaN(got.List[0].Float) || got.List[1].Float != math.Inf(1) || string(got.List[2].Bytes) != "\x00\xff" ||
		got.List[3].Str != "a\uFFFDb" {
		t.Errorf("MessagePack: %+v", got)
	}
}

// TestMessagePackIntegers: the shortest unsigned form for what is not negative, as Rust writes it.
func TestMessagePackIntegers(t *testing.T) {
	for v, want := range map[int64]string{
		0: "\x00", 127: "\x7f", 128: "\xcc\x80", 255: "\xcc\xff", 256: "\xcd\x01\x00", 65536: "\xce\x00\x01\x00\x00",
		1 << 32: "\xcf\x00\x00\x00\x01\x00\x00\x00\x00", -1: "\xff", -32: "\xe0", -33: "\xd0\xdf", -128: "\xd0\x80",
		-129: "\xd1\xff\x7f", -32769: "\xd2\xff\xff\x7f\xff", -1 << 63: "\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
	} {
		if got := string(AppendValue(nil, MsgPack, Int(v))); got != want {
			t.Errorf("%d: %x, want %x", v, got, want)
		}
	}
}

// TestDeepestValue: the limit itself is permitted.
func TestDeepestValue(t *testing.T) {
	doc := strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth)
	if got := mustParse(t, JSON, []byte(doc)); string(got.AppendJSON(nil)) != doc {
		t.Error("the deepest list does not survive")
	}
	if _, err := ParseValue(JSON, []byte("["+doc+"]")); err == nil {
		t.Error("a deeper one is accepted")
	}
}

func TestCodecWords(t *testing.T) {
	for _, codec := range []Codec{JSON, MsgPack} {
		if got, ok := ParseCodec(codec.String()); !ok || got != codec {
			t.Errorf("%v reads as %v", codec, got)
		}
	}
	if _, ok := ParseCodec("xml"); ok || Codec(7).String() != "unknown" {
		t.Error("an unknown codec has a name")
	}
}
