package protocol

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// recorded is one message of a recorded exchange.
type recorded struct {
	name    string // file and line
	request bool   // else a frame of the response stream
	path    string // request only
	codec   Codec
	rust    bool // the worker was the stock sidecar
	header  []byte
	body    []byte
}

// recordings reads every message whose bytes are in testdata/wire.
func recordings(tb testing.TB) []recorded {
	tb.Helper()
	files, err := filepath.Glob("testdata/wire/*.txt")
	if err != nil || len(files) == 0 {
		tb.Fatalf("no recordings: %v", err)
	}
	var out []recorded
	for _, file := range files {
		out = append(out, recordingsOf(tb, file)...)
	}
	return out
}

func recordingsOf(tb testing.TB, file string) []recorded {
	tb.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	var (
		out   []recorded
		title string
	)
	name := filepath.Base(file)
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		digits, isHex := strings.CutPrefix(strings.TrimSpace(line), "hex=")
		if !isHex {
			if strings.Contains(line, "REQ frame") || strings.Contains(line, "FRAME h=") {
				title = line
			}
			continue
		}
		raw, err := hex.DecodeString(digits)
		if err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
		m := recorded{name: name + " " + title[:min(len(title), 60)], rust: name[0] == '0', codec: JSON}
		if strings.Contains(name, "msgpack") {
			m.codec = MsgPack
		}
		if strings.Contains(title, "REQ frame") {
			m.request = true
			m.path, raw = cut16(raw)
			_, raw = cut16(raw)
			raw = raw[4:]
		}
		h := binary.BigEndian.Uint64(raw)
		m.header, m.body = raw[24:24+h], raw[24+h:]
		out = append(out, m)
	}
	return out
}

func cut16(b []byte) (string, []byte) {
	n := binary.BigEndian.Uint16(b)
	return string(b[2 : 2+n]), b[2+n:]
}

func (m *recorded) generate() bool { return strings.HasSuffix(m.path, "/generate") }

// TestRecordedRequests reads what stock frontends sent and writes it again: to the byte, but for the router's own field.
func TestRecordedRequests(t *testing.T) {
	seen := 0
	for _, m := range recordings(t) {
		if !m.request || !m.generate() {
			continue
		}
		seen++
		req, err := ParseRequest(m.codec, m.body)
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		want := mustParse(t, m.codec, m.body)
		at := slices.IndexFunc(want.Map, func(m Member) bool { return m.Key == "router_config_override" })
		want.Map[at].Value = Null()
		if got := AppendRequest(nil, m.codec, req); !bytes.Equal(got, AppendValue(nil, m.codec, want)) {
			t.Errorf("%s: written again as\n%s", m.name, cmp.Diff(want, mustParse(t, m.codec, got)))
		}
		for _, codec := range []Codec{JSON, MsgPack} { // and through the other codec unharmed
			again, err := ParseRequest(codec, AppendRequest(nil, codec, req))
			if diff := cmp.Diff(req, again); err != nil || diff != "" {
				t.Errorf("%s over %v: %v\n%s", m.name, codec, err, diff)
			}
		}
	}
	if seen < 15 {
		t.Errorf("only %d recorded requests", seen)
	}
}

// TestRecordedItems reads what workers sent. Items of the stock sidecar come out with the same bytes; those of the minimal
// worker, which leaves out what is null, as the same document.
func TestRecordedItems(t *testing.T) {
	seen := 0
	for _, m := range recordings(t) {
		if m.request || len(m.body) == 0 || strings.HasPrefix(m.name, "2") {
			continue
		}
		seen++
		item, final, err := ParseItem(m.codec, m.body)
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		got := AppendFinal(nil, m.codec)
		if !final {
			got = AppendItem(nil, m.codec, &item)
		}
		if m.rust && !bytes.Equal(got, m.body) {
			t.Errorf("%s: written again as\n%s", m.name, cmp.Diff(mustParse(t, m.codec, m.body), mustParse(t, m.codec, got)))
		}
		if diff := cmp.Diff(normal(mustParse(t, m.codec, m.body)), normal(mustParse(t, m.codec, got))); diff != "" {
			t.Errorf("%s: another document\n%s", m.name, diff)
		}
	}
	if seen < 40 {
		t.Errorf("only %d recorded items", seen)
	}
}

func TestRecordedPrologues(t *testing.T) {
	good, refused := 0, 0
	for _, m := range recordings(t) {
		if m.request || !strings.HasPrefix(string(m.header), `{"error":`) {
			continue
		}
		refusal, err := ParsePrologue(m.header)
		if err != nil {
			t.Fatalf("%s: %v", m.name, err)
		}
		if refusal == nil {
			good++
		} else {
			refused++
		}
		if got := AppendPrologue(nil, refusal); !bytes.Equal(got, m.header) {
			t.Errorf("%s:\n got %s\nwant %s", m.name, got, m.header)
		}
	}
	if good < 10 || refused != 1 {
		t.Errorf("%d good prologues, %d refusals", good, refused)
	}
}

func mustParse(tb testing.TB, codec Codec, b []byte) Value {
	tb.Helper()
	v, err := ParseValue(codec, b)
	if err != nil {
		tb.Fatalf("%v: %v in %q", codec, err, b)
	}
	return v
}

// implied are the members that the minimal worker leaves out although they are not null: the only output type, and what a
// reader takes from an error's type and message.
var implied = []string{"output_type", "class", "reason", "diagnostic"}

// normal sorts the keys and drops nulls and what is implied.
func normal(v Value) Value {
	if v.Kind == KindList {
		out := make([]Value, len(v.List))
		for i := range v.List {
			out[i] = normal(v.List[i])
		}
		return List(out...)
	}
	if v.Kind != KindMap {
		return v
	}
	var out []Member
	for _, m := range v.Map {
		if !m.Value.IsNull() && !slices.Contains(implied, m.Key) {
			out = append(out, Member{m.Key, normal(m.Value)})
		}
	}
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Key, b.Key) })
	return Map(out...)
}
