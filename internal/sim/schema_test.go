package sim

import (
	"encoding/json"
	"testing"
	"testing/synctest"

	pb "remora/proto/vllm"
)

func TestInstance(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":"object"}`: `{}`,
		`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer","minimum":40},"c":{}},"required":["b","a"]}`: `{"b": 40, "a": "like"}`,
		`{"enum":["x","y"]}`:                            `"x"`,
		`{"const":{"k":[1,null]}}`:                      `{"k":[1,null]}`,
		`{"type":["boolean","null"]}`:                   `true`,
		`{"type":"null"}`:                               `null`,
		`{"anyOf":[{"type":"number"},{"type":"null"}]}`: `7`,
		`{"type":"array","items":{"type":"string","maxLength":2},"minItems":2}`: `["li", "li"]`,
		`{"type":"string","minLength":6}`:                                       `"likelike"`,
		`{"$ref":"#/$defs/a~1b","$defs":{"a/b":{"type":"array"}}}`:              `[]`,
		`{"type":"object","required":["z"]}`:                                    `{"z": {}}`,
		`true`:                                                                  `{}`,
		`{"type":"string","pattern":"x"}`:                                       "",
		`{"type":"what"}`:                                                       "",
		`{"$ref":"#/gone"}`:                                                     "",
		`{"$ref":"http://x"}`:                                                   "",
		`{"$ref":"#"}`:                                                          "",
		`false`:                                                                 "",
		`{"type":"array","minItems":1e9,"items":{"type":"array","minItems":1e9}}`:                  "",
		`{"type":"object","required":["a"],"properties":{"a":{"type":"string","minLength":1e12}}}`: "",
	} {
		var v any
		if err := json.Unmarshal([]byte(schema), &v); err != nil {
			t.Fatal(schema, err)
		}
		got, err := instance(v)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", schema, got, err, want)
		}
	}
}

func FuzzInstance(f *testing.F) {
	f.Add(`{"type":"object","required":["a"],"properties":{"a":{"$ref":"#"}}}`)
	f.Add(`{"anyOf":[{"enum":[1]},false]}`)
	f.Fuzz(func(t *testing.T, schema string) {
		var v any
		if json.Unmarshal([]byte(schema), &v) != nil {
			return
		}
		if text, err := instance(v); err == nil && !json.Valid([]byte(text)) {
			t.Fatalf("%s: %s", schema, text)
		}
	})
}

// TestStructuredOutput: the answer is the constrained text and then the end of sequence.
func TestStructuredOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", nil)
		for want, decoding := range map[string]*pb.DecodingParameters{
			`{"b": 7}`: {StructuredOutput: &pb.DecodingParameters_Json{Json: `{"type":"object","properties":{"b":{"type":"integer"}},"required":["b"]}`}},
			"éé€":      {StructuredOutput: &pb.DecodingParameters_Choice{Choice: &pb.StringChoices{Choices: []string{"éé€"}}}},
		} {
			req := request("r", words(9, 1), 50)
			req.Decoding = decoding
			r := e.generate(t, req)
			if r.err != nil || r.text() != want || r.finish().GetEosTokenId() == 0 {
				t.Errorf("%q, %v, %v; want %q", r.text(), r.err, r.finish(), want)
			}
		}
		req := request("r", words(9, 1), 50)
		req.Decoding = &pb.DecodingParameters{StructuredOutput: &pb.DecodingParameters_JsonObject{JsonObject: true}}
		if r := e.generate(t, req); r.err != nil || !json.Valid([]byte(r.text())) {
			t.Errorf("%q, %v", r.text(), r.err)
		}
		req.Decoding = &pb.DecodingParameters{StructuredOutput: &pb.DecodingParameters_Regex{Regex: "a+"}}
		wantStatus(t, e.generate(t, req).err, "Unimplemented: this simulated engine cannot constrain its output by a regular expression")
	})
}
