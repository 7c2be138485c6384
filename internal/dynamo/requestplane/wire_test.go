package requestplane

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"remora/internal/dynamo/protocol"
)

// recorded is one message of a recorded exchange between stock programs; the recordings are those of the protocol package.
type recorded struct {
	file  string
	conn  string // "req1", "resp2"; empty where the recording does not say
	kind  string // "REQ", "ACK", "FRAME"
	to    string // "F>W" or "W>F"
	bytes []byte
}

var recordedLine = regexp.MustCompile(`(\w*)\s*(F>W|W>F) (REQ|ACK|FRAME) `)

func recordings(tb testing.TB) (out []recorded) {
	tb.Helper()
	files, err := filepath.Glob("../protocol/testdata/wire/*.txt")
	if err != nil || len(files) == 0 {
		tb.Fatalf("no recordings: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			tb.Fatal(err)
		}
		var last recorded
		for line := range strings.Lines(string(text)) {
			if m := recordedLine.FindStringSubmatch(line); m != nil {
				last = recorded{file: filepath.Base(file), conn: m[1], to: m[2], kind: m[3]}
			}
			_, digits, ok := strings.Cut(strings.TrimSpace(line), "hex=")
			if !ok {
				continue
			}
			if last.bytes, err = hex.DecodeString(digits); err != nil {
				tb.Fatalf("%s: %v", file, err)
			}
			out = append(out, last)
		}
	}
	return out
}

func TestRecordedRequestFrames(t *testing.T) {
	seen := 0
	for _, m := range recordings(t) {
		if m.kind != "REQ" {
			continue
		}
		seen++
		in := bytes.NewReader(m.bytes)
		f, err := readFrame(in, DefaultMaxMessage, nil)
		if err != nil || in.Len() > 0 {
			t.Fatalf("%s: %v, %d bytes left", m.file, err, in.Len())
		}
		header, body, err := splitTwoPart(f.payload)
		if err != nil {
			t.Fatalf("%s: %v", m.file, err)
		}
		control, malformed, refusal := parseControl(header)
		if malformed != nil || refusal != nil {
			t.Fatalf("%s: %v, %v", m.file, malformed, refusal)
		}
		if got := encodeControl(&control); !bytes.Equal(got, header) {
			t.Errorf("%s: control header\n got %s\nwant %s", m.file, got, header)
		}
		headers, err := parseHeaders(f.headers)
		if err != nil || headers.RequestID != control.ID || headers.FrontendSendNS < 1e18 {
			t.Errorf("%s: headers %+v, %v", m.file, headers, err)
		}
		again, err := parseHeaders(encodeHeaders(string(f.path), &headers))
		if err != nil || again != headers {
			t.Errorf("%s: headers %+v became %+v, %v", m.file, headers, again, err)
		}
		got, err := encodeFrame(string(f.path), f.headers, header, body)
		if err != nil || !bytes.Equal(got, m.bytes) {
			t.Errorf("%s: frame differs, %v", m.file, err)
		}
	}
	if seen < 20 {
		t.Errorf("only %d recorded requests", seen)
	}
}

func TestRecordedAcks(t *testing.T) {
	texts := map[string]int{}
	for _, m := range recordings(t) {
		if m.kind != "ACK" {
			continue
		}
		text, err := readAck(bytes.NewReader(m.bytes), 100)
		if err != nil || !bytes.Equal(appendAck(nil, text), m.bytes) {
			t.Errorf("%s: %q, %v", m.file, text, err)
		}
		texts[text]++
	}
	if texts[""] < 10 || texts[Overloaded().Error()] != 1 || texts[Unavailable("draining").Error()] != 1 {
		t.Errorf("acknowledgements: %v", texts)
	}
}

// TestRecordedResponses plays what workers sent to an Incoming.
func TestRecordedResponses(t *testing.T) {
	var streams [][]recorded // the W>F frames of one response connection each
	for _, m := range recordings(t) {
		if m.kind != "FRAME" || m.to != "W>F" || m.file[0] == '2' {
			continue
		}
		if bytes.Contains(m.bytes, []byte(`"subject"`)) {
			streams = append(streams, nil)
		} else if streams[len(streams)-1][0].conn != m.conn { // interleaved with another connection
			continue
		}
		streams[len(streams)-1] = append(streams[len(streams)-1], m)
	}
	ends := map[string]int{}
	for _, frames := range streams {
		server := NewResponseServer(listen(t), ResponseServerConfig{})
		codec := protocol.JSON
		if strings.Contains(frames[0].file, "msgpack") {
			codec = protocol.MsgPack
		}
		in, info := server.Register(t.Context(), "r", codec)
		handshake, _, err := readTwoPart(bytes.NewReader(frames[0].bytes), maxControlWord)
		if err != nil {
			t.Fatal(err)
		}
		subject, err := parseHandshake(handshake)
		if err != nil {
			t.Fatalf("%s: %v", frames[0].file, err)
		}
		if own := encodeHandshake(&ConnectionInfo{Subject: subject}); frames[0].file[0] == '0' && !bytes.Equal(own, handshake) {
			t.Errorf("%s: handshake\n got %s\nwant %s", frames[0].file, own, handshake)
		}
		server.pending[subject] = server.pending[info.Subject] // so that the recorded handshake finds it

		near, far := net.Pipe()
		written := make(chan struct{})
		go func() {
			defer close(written)
			for _, m := range frames {
				_, _ = near.Write(m.bytes)
			}
			_ = near.Close()
		}()
		server.handshake(far)
		items, err := readAll(t.Context(), in)
		wait(t, "the replay", written)
		var refusal *protocol.Error
		switch {
		case err == nil:
			ends["good"]++
			whole := !strings.HasPrefix(frames[0].file, "06") // its streams are interleaved, and cut in the recording
			if whole && len(items) == 0 || whole && items[len(items)-1].Error == nil && items[len(items)-1].Data.FinishReason == protocol.FinishNone {
				t.Errorf("%s: the last of %d items is no end", frames[0].file, len(items))
			}
		case errors.As(err, &refusal):
			ends["refused"]++
		case errors.Is(err, ErrMissingFinal):
			ends["killed"]++
		default:
			t.Errorf("%s: %v", frames[0].file, err)
		}
		server.Close()
	}
	if ends["good"] < 8 || ends["refused"] != 1 || ends["killed"] < 5 {
		t.Errorf("ends: %v", ends)
	}
}

// TestComposedRequest pins a whole frame.
func TestComposedRequest(t *testing.T) {
	const (
		path    = "1a2b3c4d5e6f7/generate"
		headers = `{"request-id":"req-1","x-endpoint-path":"1a2b3c4d5e6f7/generate","x-frontend-send-ts-ns":"1790000000000000000"}`
		control = `{"id":"req-1","request_type":"single_in","response_type":"many_out","payload_codec":"json","connection_info":{"transport":"tcp_server","info":"{\"address\":\"10.0.0.5:36201\",\"subject\":\"6f1e6f7c-9b0d-4a53-9f7e-2f0a2f3b7c11\",\"context\":\"req-1\",\"stream_type\":\"response\"}"}}`
		body    = `{"model":"m","token_ids":[1,2,3],"stop_conditions":{"max_tokens":8},"mdc_sum":null,"router_config_override":null}`
	)
	want := "\x00\x16" + path + "\x00\x6f" + headers + "\x00\x00\x01\xa3" +
		"\x00\x00\x00\x00\x00\x00\x01\x1a" + "\x00\x00\x00\x00\x00\x00\x00\x71" + "\x00\x00\x00\x00\x00\x00\x00\x00" + control + body
	c := &Control{
		ID: "req-1", RequestType: "single_in", ResponseType: "many_out", Codec: protocol.JSON,
		Connection: ConnectionInfo{"tcp_server", "10.0.0.5:36201", "6f1e6f7c-9b0d-4a53-9f7e-2f0a2f3b7c11", "req-1", "response"},
	}
	h := &Headers{RequestID: "req-1", FrontendSendNS: 1790000000000000000}
	got, err := encodeFrame(path, encodeHeaders(path, h), encodeControl(c), []byte(body))
	if err != nil || len(got) != 560 || string(got) != want {
		t.Errorf("%v, %d bytes:\n got %q\nwant %q", err, len(got), got, want)
	}
}

// TestComposedResponse pins a whole response, from handshake to sentinel, as one connection carries it.
func TestComposedResponse(t *testing.T) {
	zero := strings.Repeat("\x00", 8)
	size := func(n byte) string { return strings.Repeat("\x00", 7) + string([]byte{n}) }
	item := `{"data":{"data":{"token_ids":[42],"tokens":null,"text":null,"output_type":"text","cum_log_probs":null,"log_probs":null,` +
		`"top_logprobs":null,"finish_reason":null,"index":0}},"complete_final":false}`
	want := size(0x4b) + zero + zero + `{"subject":"6f1e6f7c-9b0d-4a53-9f7e-2f0a2f3b7c11","stream_type":"response"}` +
		size(0x0e) + zero + zero + `{"error":null}` +
		zero + size(byte(len(item))) + zero + item +
		zero + size(0x17) + zero + `{"complete_final":true}` +
		size(0x0a) + zero + zero + `"sentinel"`
	l := listen(t)
	defer l.Close()
	info := ConnectionInfo{Transport: transportTCP, Address: l.Addr().String(), Subject: "6f1e6f7c-9b0d-4a53-9f7e-2f0a2f3b7c11"}
	s, err := (&Dialer{}).Dial(t.Context(), info, func(e Event) { t.Errorf("reported %v", e) })
	if err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.EndFrames(answer(protocol.JSON, tokens(42)), nil); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	_ = conn.Close()
	s.Wait()
}
