package modelcard

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestNonFiniteToNull(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":Infinity,"b":[-Infinity,NaN]}`: `{"a":null,"b":[null,null]}`,
		`{"Infinity":"NaN \" -Infinity"}`:    `{"Infinity":"NaN \" -Infinity"}`,
		`NaN`:                                `null`, `"\`: `"\`, `"`: `"`, ``: ``,
	} {
		if got := nonFiniteToNull([]byte(text)); string(got) != want {
			t.Errorf("%s became %s, want %s", text, got, want)
		}
	}
}

func FuzzNonFiniteToNull(f *testing.F) {
	for _, seed := range []string{`{"a":Infinity}`, `[-Infinity,NaN]`, `"\"NaN"`, `"\`, `NaN"NaN`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		before := bytes.Clone(text)
		got := nonFiniteToNull(text)
		if !bytes.Equal(before, text) {
			t.Error("the input was changed")
		}
		if json.Valid(text) && !bytes.Equal(got, text) {
			t.Errorf("valid %s became %s", text, got)
		}
	})
}

func FuzzContextLimit(f *testing.F) {
	f.Add([]byte(`{"max_position_embeddings":4096}`), []byte(`{"model_max_length":512}`))
	f.Add([]byte(`{"text_config":{"max_position_embeddings":1}}`), []byte(``))
	f.Add([]byte(`{"text_config":null}`), []byte(`{"model_max_length":1e30}`))
	f.Fuzz(func(t *testing.T, config, tokenizer []byte) {
		dir := modelDir(t, map[string]string{configFile: string(config), tokenizerConfigFile: string(tokenizer)})
		if limit, err := contextLimit(dir); err != nil && limit != 0 {
			t.Errorf("%d with %v", limit, err)
		}
	})
}
