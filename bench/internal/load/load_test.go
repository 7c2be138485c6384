package load

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
)

func TestTemplate(t *testing.T) {
	w := Worker{Address: "127.0.0.1:1", Path: "1f/dynamo/backend/generate", Codec: protocol.MsgPack}
	made, err := newTemplate(w, Shape{Prompt: 20, Tokens: 7, Interval: 20 * time.Millisecond}, "127.0.0.1:2")
	if err != nil {
		t.Fatal(err)
	}
	// A real server takes the frame apart.
	got := make(chan *requestplane.Request, 1)
	address, closeServer := serve(t, w.Path, got)
	defer closeServer()
	now := time.Unix(1_800_000_000, 123)
	made.number(123_456_789_012, now)
	write(t, address, made.frame)
	request := <-got
	if request.Malformed != nil {
		t.Fatal(request.Malformed)
	}
	const id = "5eed0000-0000-4000-8000-123456789012"
	if request.Headers.RequestID != id || request.Control.ID != id || request.Control.Connection.Context != id {
		t.Errorf("ids %q, %q, %q", request.Headers.RequestID, request.Control.ID, request.Control.Connection.Context)
	}
	if request.Headers.FrontendSendNS != now.UnixNano() || request.Control.Connection.Address != "127.0.0.1:2" {
		t.Errorf("%+v, %+v", request.Headers, request.Control.Connection)
	}
	n, err := subjectNumber([]byte(`{"subject":"` + request.Control.Connection.Subject + `"}`))
	if err != nil || n != 123_456_789_012 {
		t.Errorf("subject %q: %d, %v", request.Control.Connection.Subject, n, err)
	}
	body, err := protocol.ParseRequest(request.Control.Codec, request.Body)
	if err != nil {
		t.Fatal(err)
	}
	if len(body.TokenIDs) != 20 || *body.StopConditions.MaxTokens != 7 || *body.SamplingOptions.Seed != 20_000 {
		t.Errorf("body %+v", body)
	}
}

// TestTokens reads what Remora writes; a real run shows that it reads what the stock sidecar writes.
func TestTokens(t *testing.T) {
	stamps := []uint32{1<<27 + 5, 1<<28 - 1}
	many := slices.Repeat(stamps, 20)
	for _, codec := range []protocol.Codec{protocol.JSON, protocol.MsgPack} {
		for _, ids := range [][]uint32{stamps[:1], stamps, many} {
			body := protocol.AppendItem(nil, codec, &protocol.Item{Data: &protocol.EngineOutput{TokenIDs: ids}})
			if n, last := tokens(codec, body); n != len(ids) || last != ids[len(ids)-1] {
				t.Errorf("%v: %d tokens, last %d; want %d, %d", codec, n, last, len(ids), ids[len(ids)-1])
			}
			for cut := range body { // no frame is ever cut, but nothing may break over one
				tokens(codec, body[:cut])
			}
		}
		for _, body := range [][]byte{
			nil, protocol.AppendFinal(nil, codec), protocol.AppendItem(nil, codec, &protocol.Item{Data: &protocol.EngineOutput{}}),
		} {
			if n, _ := tokens(codec, body); n != 0 {
				t.Errorf("%v: %d tokens in %q", codec, n, body)
			}
		}
	}
}

func TestSplitFrame(t *testing.T) {
	data := requestplane.AppendSentinel(requestplane.AppendPrologue(nil))
	for cut := range 20 {
		if _, _, size, err := splitFrame(data[:cut]); size != 0 || err != nil {
			t.Errorf("%d bytes: size %d, %v", cut, size, err)
		}
	}
	header, body, size, err := splitFrame(data)
	if err != nil || len(header) == 0 || len(body) > 0 {
		t.Fatalf("%q, %q, %v", header, body, err)
	}
	if header, _, rest, err := splitFrame(data[size:]); err != nil || string(header) != sentinel || size+rest != len(data) {
		t.Errorf("%q, %v", header, err)
	}
	huge := binary.BigEndian.AppendUint64(make([]byte, 8), 1<<40)
	if _, _, _, err := splitFrame(append(huge, make([]byte, 8)...)); err == nil {
		t.Error("a frame of a terabyte is taken")
	}
}

func TestHistogram(t *testing.T) {
	h := newHistogram()
	if got := h.latency(); got != (Latency{}) {
		t.Errorf("empty: %+v", got)
	}
	for us := range int64(1000) {
		h.add(us)
	}
	h.add(-5)
	h.add(1 << 40)
	if got := h.latency(); got.Count != 1002 || got.P50 != 499 || got.P99 < 989 || got.P99 > 992 || got.Max != histogramSize-1 {
		t.Errorf("%+v", got)
	}
}

func TestFindWorker(t *testing.T) {
	dir := t.TempDir()
	if _, err := FindWorker(dir); err != ErrNoWorker { //nolint:errorlint // returned bare
		t.Errorf("empty folder: %v", err)
	}
	records := filepath.Join(dir, "v1", "instances")
	if err := os.MkdirAll(records, 0o755); err != nil {
		t.Fatal(err)
	}
	record := `{"type":"Endpoint","component":"backend","endpoint":"generate","namespace":"dynamo","instance_id":31,` +
		`"transport":{"tcp":"127.0.0.1:7/1f/dynamo/backend/generate"},"request_plane_codec":"msgpack"}`
	if err := os.WriteFile(filepath.Join(records, "a"), []byte(record), 0o644); err != nil {
		t.Fatal(err)
	}
	want := Worker{"127.0.0.1:7", "1f/dynamo/backend/generate", protocol.MsgPack}
	if got, err := FindWorker(dir); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}
