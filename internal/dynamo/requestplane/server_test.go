package requestplane

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/memnet"
)

// frameFor is a good frame for "w/generate" that nobody can answer.
func frameFor(tb testing.TB, id string) []byte {
	tb.Helper()
	info := ConnectionInfo{Transport: transportTCP, Address: "127.0.0.1:9", Subject: "s", Context: id, StreamType: streamResponse}
	return frameWith(tb, "w/generate", encodeHeaders("w/generate", &Headers{RequestID: id}),
		encodeControl(generateControl(id, protocol.JSON, info)))
}

func frameWith(tb testing.TB, path string, headers, control []byte) []byte {
	tb.Helper()
	msg, err := encodeFrame(path, headers, control, []byte(`{"token_ids":[]}`))
	if err != nil {
		tb.Fatal(err)
	}
	return msg
}

func dial(tb testing.TB, target string) net.Conn {
	tb.Helper()
	address, _, _ := strings.Cut(target, "/")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestAcksKeepTheirOrder: a thousand frames in one go, every third refused with a text of its own.
func TestAcksKeepTheirOrder(t *testing.T) {
	served := make(chan string, 1000)
	_, target := startServer(t, ServerConfig{}, handlerFunc{
		admit: func(r *Request) error {
			var n int
			if _, err := fmt.Sscan(r.Control.ID, &n); err != nil || n%3 == 0 {
				return Unavailable(r.Control.ID)
			}
			return nil
		},
		serve: func(_ context.Context, r *Request) { served <- r.Control.ID },
	})
	conn := dial(t, target)
	var all []byte
	for n := range 1000 {
		all = append(all, frameFor(t, fmt.Sprint(n))...)
	}
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(all)
		sent <- err
	}()
	for n := range 1000 {
		text, err := readAck(conn, 1000)
		want := ""
		if n%3 == 0 {
			want = unavailablePrefix + fmt.Sprint(n)
		}
		if err != nil || text != want {
			t.Fatalf("ack %d: %q, %v", n, text, err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	ran := map[string]bool{}
	for range 666 {
		ran[<-served] = true
	}
	if len(ran) != 666 || ran["0"] {
		t.Errorf("%d requests ran", len(ran))
	}
}

// TestBadFrames: each kind of nonsense costs at most its own connection, and what is in sync not even that.
func TestBadFrames(t *testing.T) {
	malformed, plain := make(chan *Request, 1), make(chan *Request, 1)
	_, target := startServer(t, ServerConfig{MaxMessage: 1 << 16}, handlerFunc{serve: func(_ context.Context, r *Request) {
		switch {
		case r.Malformed != nil:
			malformed <- r
		case r.Headers == (Headers{}):
			select {
			case plain <- r:
			default:
			}
		}
	}})
	good := dial(t, target)
	ping := func(conn net.Conn, msg []byte, want string) error {
		if _, err := conn.Write(msg); err != nil {
			return err
		}
		text, err := readAck(conn, 10_000)
		if err == nil && !strings.HasPrefix(text, want) || (text == "") != (want == "") {
			err = fmt.Errorf("ack %q", text)
		}
		return err
	}
	headers := []byte(`{"request-id":"r"}`)
	raw := func(payload []byte) []byte {
		msg := append([]byte("\x00\x0aw/generate\x00\x00"), binary.BigEndian.AppendUint32(nil, uint32(len(payload)))...)
		return append(msg, payload...)
	}
	for name, c := range map[string]struct {
		msg []byte
		ack string
	}{
		"unknown endpoint":   {frameWith(t, "nobody", headers, controlWith(t, ``, ``)), "Server unavailable: unknown endpoint nobody"},
		"no endpoint":        {frameWith(t, "", headers, controlWith(t, ``, ``)), "Server unavailable: unknown endpoint "},
		"endpoint not UTF-8": {frameWith(t, "\xff", headers, controlWith(t, ``, ``)), "Server unavailable: unknown endpoint ?"},
		"no payload":         {raw(nil), "Server unavailable: message of 0 bytes"},
		"parts do not fit":   {raw(appendTwoPartPrefix(nil, 7, 7)), "Server unavailable: parts of 7 and 7"},
		"no control header":  {raw(appendTwoPartPrefix(nil, 0, 0)), "Server unavailable: control header: "},
		"no connection_info": {frameWith(t, "w/generate", headers, []byte(`{"id":"r"}`)), "Server unavailable: control header without"},
		"other transport":    {frameWith(t, "w/generate", headers, controlWith(t, `tcp_server`, `quic`)), "Server unavailable: connection_info: unknown transport"},
		"host name":          {frameWith(t, "w/generate", headers, controlWith(t, `127.0.0.1`, `localhost`)), "Server unavailable: connection_info: address"},
	} {
		conn := dial(t, target)
		for range 2 { // the connection stays in use
			if err := ping(conn, c.msg, c.ack); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := ping(conn, frameFor(t, "r"), ""); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
	for name, msg := range map[string][]byte{
		"no id":         frameWith(t, "w/generate", headers, controlWith(t, `"id":"r",`, ``)),
		"another id":    frameWith(t, "w/generate", headers, controlWith(t, `"id":"r"`, `"id":"q"`)),
		"unknown codec": frameWith(t, "w/generate", headers, controlWith(t, `"msgpack"`, `"xml"`)),
	} {
		if err := ping(dial(t, target), msg, ""); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r := <-malformed
		if r.Malformed.Kind != protocol.ErrorInvalidArgument || r.Control.Connection.Subject != "s" {
			t.Errorf("%s: %+v for %+v", name, r.Malformed, r.Control)
		}
	}
	// Frame headers are good to have; a request is served without.
	if err := ping(dial(t, target), frameWith(t, "w/generate", []byte(`{`), controlWith(t, ``, ``)), ""); err != nil {
		t.Errorf("broken headers: %v", err)
	} else if r := <-plain; r.Control.ID != "r" {
		t.Errorf("broken headers: %+v", r)
	}
	for name, msg := range map[string][]byte{
		"too long":       append([]byte("\x00\x01p\x00\x00\x00\x01\x00\x00"), make([]byte, 1<<16)...),
		"all ones":       bytes.Repeat([]byte{0xff}, 1<<17),
		"HTTP":           []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n" + strings.Repeat("x", 1<<17)),
		"TLS":            append([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), bytes.Repeat([]byte{0xaa}, 1<<17)...),
		"good, then bad": append(frameFor(t, "r"), bytes.Repeat([]byte{0xff}, 1<<17)...),
	} {
		conn := dial(t, target)
		_, _ = conn.Write(msg) // the server may hang up on the way
		got, err := io.ReadAll(conn)
		if err == nil && len(got) > 4 { // a reset is as good as an end
			t.Errorf("%s: %d bytes came back: %q", name, len(got), got)
		}
		if err := ping(good, frameFor(t, "r"), ""); err != nil {
			t.Fatalf("the good connection after %s: %v", name, err)
		}
	}
}

// TestFrameTimeout: a peer may be idle for ever, but not within a frame.
func TestFrameTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(ServerConfig{FrameTimeout: time.Minute})
		s.Handle("w/generate", handlerFunc{serve: func(context.Context, *Request) {}})
		near, far := net.Pipe()
		s.start(far)
		msg := frameFor(t, "r")
		exchange := func() {
			t.Helper()
			for _, part := range [][]byte{msg[:10], msg[10:50], msg[50:]} {
				time.Sleep(15 * time.Second)
				if _, err := near.Write(part); err != nil {
					t.Fatal(err)
				}
			}
			if text, err := readAck(near, 100); err != nil || text != "" {
				t.Fatalf("%q, %v", text, err)
			}
		}
		exchange()
		time.Sleep(24 * time.Hour)
		exchange() // the deadline of the first frame is gone
		start := time.Now()
		for i := range msg {
			if _, err := near.Write(msg[i : i+1]); err != nil {
				break
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(start); took < 59*time.Second || took > 62*time.Second {
			t.Errorf("a frame of a byte a second was cut after %v", took)
		}
		_ = near.Close()
		s.Close()
	})
}

// TestPeerThatTakesNoAcks: a peer has as long to take an acknowledgement as a frame may take; then what it had admitted is given
// back unserved.
func TestPeerThatTakesNoAcks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		served := make(chan bool, 1)
		s := NewServer(ServerConfig{FrameTimeout: time.Minute})
		s.Handle("w/generate", handlerFunc{serve: func(_ context.Context, r *Request) { served <- r.Unacked }})
		near, far := memnet.Pipe(2) // half an acknowledgement
		s.start(far)
		for range 2 { // late, but in time; the second time the deadline of the first must be gone
			if _, err := near.Write(frameFor(t, "r")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(59 * time.Second)
			if text, err := readAck(near, 100); err != nil || text != "" {
				t.Fatalf("%q, %v", text, err)
			}
			if <-served {
				t.Error("acknowledged and not run")
			}
			time.Sleep(time.Hour)
		}
		start := time.Now()
		if _, err := near.Write(frameFor(t, "r")); err != nil {
			t.Fatal(err)
		}
		if !<-served || time.Since(start) != time.Minute {
			t.Errorf("given up after %v", time.Since(start))
		}
		if _, err := readAck(near, 100); err == nil {
			t.Error("the connection is open still")
		}
		s.Close()
		_ = near.Close()
	})
}

// TestAcceptGoesOn: a server sits out what passes, such as having no descriptor left, and says what does not.
func TestAcceptGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := memnet.Pipe(64 << 10)
		full := &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
		broken := &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EINVAL)}
		l := &scriptedListener{script: []any{full, full, full, full, full, full, full, full, full, full, far, broken}}
		s := NewServer(ServerConfig{})
		s.Handle("w/generate", handlerFunc{serve: func(context.Context, *Request) {}})
		start := time.Now()
		if err := s.Serve(l); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Serve says %v", err)
		}
		if took := time.Since(start); took < time.Second || took > 10*time.Second || len(l.script) > 0 {
			t.Errorf("took %v, left %v", took, l.script)
		}
		if _, err := near.Write(frameFor(t, "r")); err != nil {
			t.Fatal(err)
		}
		if text, err := readAck(near, 100); err != nil || text != "" {
			t.Errorf("%q, %v", text, err)
		}
		s.Close()
		_ = near.Close()
	})
}

// scriptedListener accepts what its script says: connections and errors.
type scriptedListener struct {
	script []any
}

func (l *scriptedListener) Accept() (net.Conn, error) {
	next := l.script[0]
	l.script = l.script[1:]
	if err, ok := next.(error); ok {
		return nil, err
	}
	return next.(net.Conn), nil
}

func (*scriptedListener) Close() error   { return nil }
func (*scriptedListener) Addr() net.Addr { return memnet.Addr{} }

// TestLargePayloadsAreLetGo: the memory of a huge prompt is not kept for the next one.
func TestLargePayloadsAreLetGo(t *testing.T) {
	var kept sync.Pool
	for range 20 {
		memory := make([]byte, maxKeptPayload+1)
		(&Request{Body: memory, memory: &memory, from: &kept}).DropBody()
		if kept.Get() != nil {
			t.Fatal("kept")
		}
	}
}

// TestUnackedRequest: an acceptance that could not be written is told, and the request still handed over, so that what Admit has
// counted can be given back.
func TestUnackedRequest(t *testing.T) {
	served := make(chan bool, 2)
	s := NewServer(ServerConfig{})
	defer s.Close()
	s.Handle("w/generate", handlerFunc{serve: func(_ context.Context, r *Request) { served <- r.Unacked }})
	near, far := net.Pipe()
	s.start(far)
	if _, err := near.Write(frameFor(t, "r")); err != nil { // a pipe: the server has read it all now, and its answer waits
		t.Fatal(err)
	}
	_ = near.Close()
	if !<-served {
		t.Error("the request runs as if it had been acknowledged")
	}
}

// TestServerClose: Close cancels what runs and waits for it; a request does not end with its connection.
func TestServerClose(t *testing.T) {
	started, ended := make(chan context.Context, 1), make(chan struct{})
	release := make(chan struct{})
	s, target := startServer(t, ServerConfig{}, handlerFunc{serve: func(ctx context.Context, _ *Request) {
		started <- ctx
		<-ctx.Done()
		<-release
		close(ended)
	}})
	conn := dial(t, target)
	if _, err := conn.Write(frameFor(t, "r")); err != nil {
		t.Fatal(err)
	}
	if _, err := readAck(conn, 100); err != nil {
		t.Fatal(err)
	}
	ctx := <-started
	_ = conn.Close()
	if ctx.Err() != nil {
		t.Error("the request ended with its connection")
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.Close()
	}()
	<-ctx.Done()
	select {
	case <-closed:
		t.Error("Close has not waited")
	default:
	}
	close(release)
	wait(t, "Close", closed)
	wait(t, "the request", ended)
	if err := s.Serve(listen(t)); err != nil {
		t.Errorf("Serve after Close: %v", err)
	}
}

// TestRefusals: an error that is no Refusal is the reason of an unavailable worker, and one connection too many is closed.
func TestRefusals(t *testing.T) {
	_, target := startServer(t, ServerConfig{MaxConnections: 1}, handlerFunc{
		admit: func(*Request) error { return errors.New("not today") },
		serve: func(context.Context, *Request) {},
	})
	conn := dial(t, target)
	if _, err := conn.Write(frameFor(t, "r")); err != nil {
		t.Fatal(err)
	}
	if text, err := readAck(conn, 100); err != nil || text != "Server unavailable: not today" {
		t.Errorf("got %q, %v", text, err)
	}
	if n, err := dial(t, target).Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes", n)
	}
}
