package protocol

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func seed(f *testing.F, pick func(*recorded) bool) {
	f.Helper()
	for _, m := range recordings(f) {
		if pick(&m) {
			f.Add(uint8(m.codec), m.body)
		}
	}
}

// FuzzParseRequest: what is accepted can be written in both codecs and reads as the same request.
func FuzzParseRequest(f *testing.F) {
	seed(f, func(m *recorded) bool { return m.request && m.generate() })
	for _, doc := range []string{
		`{"token_ids":[1,256],"sampling_options":{"n":1,"temperature":0.5,"seed":-1,"guided_decoding":{"json":{"a":[1]}}}}`,
		`{"token_ids":[],"prefill_result":{"disaggregated_params":{"a":18446744073709551615}},"routing":{"dp_rank":1}}`,
	} {
		for codec, body := range inBoth(f, doc) {
			f.Add(uint8(codec), body)
		}
	}
	f.Fuzz(func(t *testing.T, c uint8, body []byte) {
		read := bytes.Clone(body)
		req, err := ParseRequest(Codec(c%2), read)
		if err != nil {
			return
		}
		clear(read) // the memory of a body is used again at once
		untouched, err := ParseRequest(Codec(c%2), body)
		if diff := cmp.Diff(untouched, req, cmpopts.EquateNaNs(), cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Fatalf("the request lies in its body: %v\n%s", err, diff)
		}
		for _, codec := range []Codec{JSON, MsgPack} {
			again, err := ParseRequest(codec, AppendRequest(nil, codec, req))
			if err != nil {
				t.Fatalf("%v: %v", codec, err)
			}
			if codec == MsgPack { // JSON has neither bytes nor NaN
				if diff := cmp.Diff(req, again, cmpopts.EquateNaNs(), cmpopts.EquateEmpty()); diff != "" {
					t.Fatal(diff)
				}
			}
		}
	})
}

// FuzzParseItem: what is accepted is written as a document that is accepted again.
func FuzzParseItem(f *testing.F) {
	seed(f, func(m *recorded) bool { return !m.request && len(m.body) > 0 })
	f.Fuzz(func(t *testing.T, c uint8, body []byte) {
		item, final, err := ParseItem(Codec(c%2), body)
		if err != nil || final {
			return
		}
		again, _, err := ParseItem(MsgPack, AppendItem(nil, MsgPack, &item))
		if diff := cmp.Diff(item, again, cmpopts.EquateNaNs(), cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Fatalf("%v %s", err, diff)
		}
	})
}

// FuzzParsePrologue: no header makes it panic, and a refusal survives being written.
func FuzzParsePrologue(f *testing.F) {
	f.Add([]byte(`{"error":null}`))
	f.Add(AppendPrologue(nil, &Error{ErrorBackendUnknown, "m", "p"}))
	f.Fuzz(func(t *testing.T, header []byte) {
		refusal, err := ParsePrologue(header)
		if err != nil || refusal == nil {
			return
		}
		if again, err := ParsePrologue(AppendPrologue(nil, refusal)); err != nil || *again != *refusal {
			t.Fatalf("%v: %+v became %+v", err, refusal, again)
		}
	})
}

// FuzzJSONValue compares our reader with the standard library's idea of JSON.
func FuzzJSONValue(f *testing.F) {
	for _, doc := range []string{`{"a":[1,-0.5e3,"\u00e9\ud83d\ude00",null,true]}`, `[1,]`, `"\ud800"`, `-`, `1e999`, `{"a" 1}`} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		v, err := ParseValue(JSON, doc)
		valid := json.Valid(doc) && utf8.Valid(doc)
		if err == nil && !valid {
			t.Fatalf("accepted %q", doc)
		}
		if err != nil {
			lenient := strings.Contains(err.Error(), "out of range") || strings.Contains(err.Error(), "deeper") ||
				bytes.Contains(doc, []byte(`\u`)) // surrogates, which the library replaces
			if valid && !lenient {
				t.Fatalf("refused %q: %v", doc, err)
			}
			return
		}
		text := v.AppendJSON(nil)
		if !json.Valid(text) {
			t.Fatalf("wrote %q", text)
		}
		again, err := ParseValue(JSON, text)
		if diff := cmp.Diff(v, again, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Fatalf("%v %s", err, diff)
		}
	})
}
