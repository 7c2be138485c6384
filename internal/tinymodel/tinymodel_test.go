package tinymodel

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// golden is testdata/golden.json, written by golden.py with the Hugging Face library.
type golden struct {
	Encode []struct {
		Text string   `json:"text"`
		IDs  []uint32 `json:"ids"`
	} `json:"encode"`
	Decode []struct {
		IDs  []uint32 `json:"ids"`
		Text string   `json:"text"`
	} `json:"decode"`
	Chat []struct {
		Messages []Message `json:"messages"`
		Add      bool      `json:"add"`
		Text     string    `json:"text"`
	} `json:"chat"`
}

func loadGolden(t *testing.T) golden {
	t.Helper()
	raw, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(raw, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Encode) < 300 || len(g.Decode) < 100 || len(g.Chat) < 8 {
		t.Fatalf("golden file has only %d, %d, %d cases", len(g.Encode), len(g.Decode), len(g.Chat))
	}
	return g
}

func TestEncodeAgreesWithHuggingFace(t *testing.T) {
	for _, c := range loadGolden(t).Encode {
		if got := Encode(c.Text); !slices.Equal(got, c.IDs) {
			t.Errorf("Encode(%q)\n got %v\nwant %v", c.Text, got, c.IDs)
		}
	}
}

// decode returns the text of all ids at once, specials skipped.
func decode(ids []uint32) string {
	var d Detokenizer
	return d.Push(ids...) + d.Flush()
}

func TestDecodeAgreesWithHuggingFace(t *testing.T) {
	for _, c := range loadGolden(t).Decode {
		if got := decode(c.IDs); got != c.Text {
			t.Errorf("decode(%v) = %q, want %q", c.IDs, got, c.Text)
		}
	}
}

func TestRenderChatAgreesWithTemplate(t *testing.T) {
	for _, c := range loadGolden(t).Chat {
		got, err := RenderChat(c.Messages, c.Add)
		if err != nil || got != c.Text {
			t.Errorf("RenderChat(%v, %v) = %q, %v; want %q", c.Messages, c.Add, got, err, c.Text)
		}
	}
	if _, err := RenderChat([]Message{{Role: "narrator"}}, true); err == nil || !strings.Contains(err.Error(), `"narrator"`) {
		t.Errorf("unknown role: %v", err)
	}
}

func TestVocabulary(t *testing.T) {
	seen := map[string]bool{}
	for id := range uint32(firstSpecial) {
		token := TokenBytes(id)
		if len(token) == 0 || seen[string(token)] {
			t.Fatalf("token %d %q is empty or there twice; is the word list too short?", id, token)
		}
		seen[string(token)] = true
		if got := Encode(string(token)); !slices.Equal(got, []uint32{id}) {
			t.Errorf("token %d %q can never occur: its text encodes as %v", id, token, got)
		}
	}
	for id := uint32(firstSpecial); id < VocabSize; id++ {
		if TokenBytes(id) != nil || !IsSpecial(id) || !slices.Equal(Encode(SpecialText(id)), []uint32{id}) {
			t.Errorf("special %d %q is not one", id, SpecialText(id))
		}
	}
	if TokenBytes(VocabSize) != nil || IsSpecial(VocabSize) || SpecialText(VocabSize) != "" || SpecialText(0) != "" {
		t.Error("ids outside their range must have nothing")
	}
}

func TestDetokenizerGivesWholeCharacters(t *testing.T) {
	var d Detokenizer
	var got []string
	for _, b := range []byte("a€😀\xff\xe2\x82") {
		got = append(got, d.Push(uint32(b)))
	}
	got = append(got, d.Flush(), d.Flush())
	want := []string{"a", "", "", "€", "", "", "", "😀", "\uFFFD", "", "", "\uFFFD", ""}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		ids := Encode(text)
		if got := decode(ids); got != text && !strings.Contains(text, "<|") {
			t.Fatalf("%q came back as %q", text, got)
		}
	})
}

// The pieces of a stream, however it is cut, make the text of the whole, and each is whole characters.
func TestDetokenizerCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOf(rapid.Uint32Range(0, VocabSize+2)).Draw(t, "ids")
		whole := decode(ids)
		var d Detokenizer
		var text strings.Builder
		for rest := ids; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			piece := d.Push(rest[:n]...)
			if !utf8.ValidString(piece) {
				t.Fatalf("piece %q splits a character", piece)
			}
			text.WriteString(piece)
			rest = rest[n:]
		}
		text.WriteString(d.Flush())
		if text.String() != whole {
			t.Fatalf("pieces %q, whole %q", text.String(), whole)
		}
	})
}

func FuzzEncode(f *testing.F) {
	for _, s := range []string{"", " the<|end|>", "\xff<|\xe2\x82", "日本語 😀"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var back []byte
		for _, id := range Encode(text) {
			if id >= VocabSize {
				t.Fatalf("id %d", id)
			}
			back = append(back, TokenBytes(id)...)
			back = append(back, SpecialText(id)...)
		}
		if string(back) != text {
			t.Fatalf("%q came back as %q", text, back)
		}
	})
}

func TestWriteIsIdempotentAndWhole(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "model")
	if err := Write(dir); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err = os.WriteFile(filepath.Join(dir, "config.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err = Write(dir); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(filepath.Join(dir, "tokenizer.json"))
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("a right file was replaced (%v)", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 {
		t.Errorf("%d files, want 4 (%v)", len(entries), err)
	}
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil || !json.Valid(raw) {
			t.Errorf("%s is not JSON (%v)", e.Name(), err)
		}
	}
}

func TestWriteSaysWhatFailed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(file); err == nil || !strings.Contains(err.Error(), "make the folder") {
		t.Errorf("a file in the folder's place: %v", err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "config.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir); err == nil || !strings.Contains(err.Error(), "config.json") {
		t.Errorf("a folder in a file's place: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

func BenchmarkEncode(b *testing.B) {
	text := strings.Repeat("please tell me a story about the world, and how it was before 2026. ", 480)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		Encode(text)
	}
}
