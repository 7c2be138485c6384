package requestplane

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/dynamo/protocol"
)

// worker dials in as a worker would and sends raw bytes behind the handshake.
func worker(tb testing.TB, info ConnectionInfo, frames ...[]byte) net.Conn {
	tb.Helper()
	conn := dial(tb, info.Address)
	handshake := appendTwoPart(nil, encodeHandshake(&info), nil)
	if _, err := conn.Write(slices.Concat(append([][]byte{handshake}, frames...)...)); err != nil {
		tb.Fatal(err)
	}
	return conn
}

// TestEndsOfResponses: what the frontend makes of everything that a worker may send.
func TestEndsOfResponses(t *testing.T) {
	item := tokens(1)
	data := AppendItem(nil, protocol.JSON, &item)
	good, final, end := AppendPrologue(nil), AppendFinal(nil, protocol.JSON), AppendSentinel(nil)
	server := startResponses(t, ResponseServerConfig{MaxFrame: 1 << 16})
	for name, c := range map[string]struct {
		frames [][]byte
		items  int
		want   error // nil: a good end
		killed bool  // the worker is told, as it may still be working
	}{
		"complete":                 {[][]byte{good, data, data, final, end}, 2, nil, false},
		"no item":                  {[][]byte{good, final, end}, 0, nil, false},
		"no sentinel":              {[][]byte{good, data, final}, 1, nil, false},
		"no final":                 {[][]byte{good, data, end}, 1, ErrMissingFinal, false},
		"cut":                      {[][]byte{good, data}, 1, ErrMissingFinal, false},
		"cut in a frame":           {[][]byte{good, data[:40]}, 0, ErrMissingFinal, false},
		"nothing at all":           {nil, 0, ErrMissingFinal, false},
		"no prologue":              {[][]byte{data, final, end}, 0, ErrBadResponse, true},
		"prologue of another kind": {[][]byte{appendTwoPart(nil, []byte(`{}`), nil)}, 0, ErrBadResponse, true},
		"the other codec":          {[][]byte{good, AppendItem(nil, protocol.MsgPack, &item)}, 0, ErrBadResponse, true},
		"header with a body":       {[][]byte{good, appendTwoPart(nil, []byte("x"), []byte("y"))}, 0, ErrBadResponse, true},
		"a worker that kills":      {[][]byte{good, word(`"kill"`)}, 0, ErrBadResponse, true},
		"data after the end":       {[][]byte{good, final, data}, 0, ErrBadResponse, true},
		"a frame of 2^60 bytes":    {[][]byte{good, appendTwoPartPrefix(nil, 0, 1<<60)}, 0, ErrBadResponse, true},
	} {
		in, info := server.Register(t.Context(), "r", protocol.JSON)
		conn := worker(t, info, c.frames...)
		_ = conn.(*net.TCPConn).CloseWrite()
		items, err := readAll(t.Context(), in)
		if len(items) != c.items || !errors.Is(err, c.want) || err != nil && c.want == nil {
			t.Errorf("%s: %d items, %v", name, len(items), err)
		}
		got, _ := io.ReadAll(conn)
		if killed := bytes.Equal(got, word(`"kill"`)); killed && !c.killed {
			t.Errorf("%s: the worker was told %q", name, got)
		}
		in.Kill()
		server.mu.Lock()
		if n := len(server.pending); n != 0 {
			t.Errorf("%s: %d responses still pending", name, n)
		}
		server.mu.Unlock()
	}
}

// TestReady: the prologue alone is enough for it, and its refusal stays.
func TestReady(t *testing.T) {
	server := startResponses(t, ResponseServerConfig{})
	in, info := server.Register(t.Context(), "r", protocol.JSON)
	conn := worker(t, info, AppendPrologue(nil))
	for range 2 {
		if err := in.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	item := tokens(1)
	if _, err := conn.Write(AppendItem(nil, protocol.JSON, &item)); err != nil {
		t.Fatal(err)
	}
	if got, err := in.Next(t.Context()); err != nil || got.Data.TokenIDs[0] != 1 {
		t.Errorf("%v, %v", got, err)
	}
	in.Kill()
	if err := in.Ready(t.Context()); !errors.Is(err, ErrKilled) {
		t.Errorf("after Kill: %v", err)
	}
}

// TestStrangers: a connection that names no pending response is closed, and so is a second one for the same.
func TestStrangers(t *testing.T) {
	server := startResponses(t, ResponseServerConfig{})
	in, info := server.Register(t.Context(), "r", protocol.JSON)
	defer in.Kill()
	first := worker(t, info, AppendPrologue(nil))
	if err := in.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	unknown := info
	unknown.Subject = "nobody"
	for name, conn := range map[string]net.Conn{
		"unknown subject": worker(t, unknown),
		"second":          worker(t, info),
		"other stream":    dial(t, info.Address),
		"nonsense":        dial(t, info.Address),
	} {
		switch name {
		case "other stream":
			_, _ = conn.Write(word(`{"subject":"` + info.Subject + `","stream_type":"request"}`))
		case "nonsense":
			_, _ = conn.Write(bytes.Repeat([]byte{0xff}, 100))
		}
		if got, err := io.ReadAll(conn); len(got) > 0 {
			t.Errorf("%s: read %q, %v", name, got, err)
		}
	}
	item := tokens(1)
	if _, err := first.Write(AppendItem(nil, protocol.JSON, &item)); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Next(t.Context()); err != nil {
		t.Errorf("the first connection: %v", err)
	}
}

// TestHandshakeTimeout: who connects and says nothing is closed after ten seconds.
func TestHandshakeTimeout(t *testing.T) {
	l := listen(t)
	defer l.Close()
	synctest.Test(t, func(t *testing.T) {
		server := NewResponseServer(l, ResponseServerConfig{})
		near, far := net.Pipe()
		start := time.Now()
		server.handshake(far)
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("closed after %v", took)
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the connection says %v", err)
		}
		server.cancel()
	})
}

// TestClientGoesAway: each way of giving up reaches a worker that is connected, and keeps one that is not from ever being.
func TestClientGoesAway(t *testing.T) {
	server := startResponses(t, ResponseServerConfig{})
	reason := errors.New("the HTTP client has left")
	for name, leave := range map[string]func(in *Incoming, cancel func()){
		"Kill":              func(in *Incoming, _ func()) { in.Kill() },
		"Register's ctx":    func(_ *Incoming, cancel func()) { cancel() },
		"Next's ctx":        func(in *Incoming, _ func()) { next(in, reason) },
		"all of them":       func(in *Incoming, cancel func()) { cancel(); in.Kill(); next(in, reason) },
		"the server closes": nil,
	} {
		for _, connected := range []bool{true, false} {
			s := server
			if leave == nil {
				s = startResponses(t, ResponseServerConfig{})
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			in, info := s.Register(ctx, "r", protocol.JSON)
			ev := newEvents()
			var stream *ResponseStream
			dialIn := func() {
				var err error
				if stream, err = (&Dialer{}).Dial(t.Context(), info, ev.on); err != nil {
					t.Fatal(err)
				}
			}
			if connected {
				dialIn()
				if err := stream.WriteFrames(AppendPrologue(nil), nil); err != nil {
					t.Fatal(err)
				}
				if err := in.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if leave == nil {
				s.Close()
			} else {
				leave(in, func() { cancel(reason) })
			}
			if !connected && leave != nil {
				wait(t, "the end", in.over) // ctx ends it on a goroutine of its own
				dialIn()
			}
			if stream != nil {
				wait(t, name, ev.leaving)
				stream.Wait()
				if got := ev.kinds()[0]; connected && got != EventKill && got != EventReset {
					t.Errorf("%s: the worker saw %v", name, got)
				}
			}
			_, err := in.Next(t.Context())
			if err == nil || errors.Is(err, io.EOF) {
				t.Errorf("%s: Next says %v", name, err)
			}
			cancel(nil)
		}
	}
}

// next calls Next with a context that has ended.
func next(in *Incoming, reason error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(reason)
	_, _ = in.Next(ctx)
}

// TestKillReachesReader: a worker whose writes have all been read gets the word itself, not only the reset.
func TestKillReachesReader(t *testing.T) {
	server := startResponses(t, ResponseServerConfig{})
	in, info := server.Register(t.Context(), "r", protocol.JSON)
	conn := worker(t, info, AppendPrologue(nil))
	if err := in.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(conn)
		got <- b
	}()
	in.Kill()
	if b := <-got; len(b) > 0 && !bytes.Equal(b, word(`"kill"`)) {
		t.Errorf("read %q", b)
	}
}
