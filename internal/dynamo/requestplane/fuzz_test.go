package requestplane

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"sync/atomic"
	"testing"

	"remora/internal/memnet"
)

// FuzzConnection: whatever a peer sends, it gets one acknowledgement for each whole frame, of a form that frontends understand, and
// every request that was accepted is served once.
func FuzzConnection(f *testing.F) {
	good := frameFor(f, "r")
	f.Add(append(append(bytes.Clone(good), frameWith(f, "nowhere", nil, nil)...), good...))
	f.Add(append(frameWith(f, "w/generate", []byte("x"), []byte("{")), good[:40]...))
	f.Add(append(bytes.Clone(good), 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff))
	for _, m := range recordings(f) {
		if m.kind == "REQ" {
			f.Add(append(toEndpoint(f, m.bytes), good...))
		}
	}
	const limit = 1 << 16
	f.Fuzz(func(t *testing.T, b []byte) {
		var admitted, served atomic.Int32
		s := NewServer(ServerConfig{MaxMessage: limit})
		h := handlerFunc{
			admit: func(*Request) error { admitted.Add(1); return nil },
			serve: func(_ context.Context, r *Request) {
				if served.Add(1); r.Unacked {
					t.Error("unacked")
				}
			},
		}
		s.Handle("w/generate", h)
		near, far := memnet.Pipe(1 << 20)
		if _, err := near.Write(b); err != nil {
			t.Fatal(err)
		}
		whole, in := 0, bytes.NewReader(b)
		for {
			if _, err := readFrame(in, limit, nil); err != nil {
				break
			}
			whole++
		}
		s.start(far)
		acks := bufio.NewReader(near)
		for n := range whole {
			text, err := readAck(acks, 1<<12)
			if err != nil || ackError(text) == ErrUnknownAck { //nolint:errorlint // returned bare
				t.Fatalf("acknowledgement %d of %d: %q, %v", n, whole, text, err)
			}
		}
		_ = near.Close()
		s.conns.Wait()
		s.requests.Wait()
		if admitted.Load() != served.Load() {
			t.Fatalf("%d admitted, %d served", admitted.Load(), served.Load())
		}
		if rest, err := io.ReadAll(acks); len(rest) > 0 {
			t.Fatalf("%d bytes too many, %v", len(rest), err)
		}
		s.Close()
	})
}

// toEndpoint is a frame for "w/generate" instead of the endpoint of whoever got it.
func toEndpoint(f *testing.F, b []byte) []byte {
	f.Helper()
	known, err := readFrame(bytes.NewReader(b), DefaultMaxMessage, nil)
	if err != nil {
		f.Fatal(err)
	}
	header, body, err := splitTwoPart(known.payload)
	if err != nil {
		f.Fatal(err)
	}
	out, err := encodeFrame("w/generate", known.headers, header, body)
	if err != nil {
		f.Fatal(err)
	}
	return out
}

func FuzzFrame(f *testing.F) {
	for _, m := range recordings(f) {
		if m.kind == "REQ" {
			f.Add(m.bytes)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		got, err := readFrame(in, 1<<16, nil)
		if err != nil {
			return
		}
		header, body, err := splitTwoPart(got.payload)
		if err != nil {
			return
		}
		again, err := encodeFrame(string(got.path), got.headers, header, body)
		if err != nil {
			t.Fatal(err)
		}
		read := b[:len(b)-in.Len()]
		checksum := len(read) - len(got.payload) + 16 // ours is always zero
		copy(again[checksum:checksum+8], read[checksum:checksum+8])
		if !bytes.Equal(again, read) {
			t.Fatalf("%x became %x", read, again)
		}
	})
}

func FuzzTwoPart(f *testing.F) {
	for _, m := range recordings(f) {
		if m.kind == "FRAME" {
			f.Add(m.bytes)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		header, body, err := readTwoPart(in, 1<<16)
		if err != nil {
			return
		}
		h, d, err := splitTwoPart(b[:len(b)-in.Len()])
		if err != nil || !bytes.Equal(h, header) || !bytes.Equal(d, body) {
			t.Fatalf("stream and slice differ: %v", err)
		}
	})
}

// FuzzControl: whatever the header says, a control header that can be answered names somebody to answer.
func FuzzControl(f *testing.F) {
	f.Add(controlWith(f, ``, ``))
	f.Add(controlWith(f, `{"id"`, `{"metadata":{"k":"v"},"id"`))
	f.Add(controlWith(f, `"id":"r"`, `"id":7`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, malformed, refusal := parseControl(b)
		if refusal != nil {
			return
		}
		if _, err := parseAddress(c.Connection.Address); err != nil || c.Connection.Subject == "" {
			t.Fatalf("%+v: %v", c.Connection, err)
		}
		if malformed != nil {
			return
		}
		if _, malformed, refusal := parseControl(encodeControl(&c)); refusal != nil {
			t.Fatalf("written again: %v %v", malformed, refusal)
		}
	})
}

func FuzzHeaders(f *testing.F) {
	f.Add([]byte(`{"request-id":"r","x-frontend-send-ts-ns":"1"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHeaders(b)
		if err != nil {
			return
		}
		if again, err := parseHeaders(encodeHeaders("p", &h)); err != nil || again != h {
			t.Fatalf("%v: %+v became %+v", err, h, again)
		}
	})
}
