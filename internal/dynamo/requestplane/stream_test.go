package requestplane

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/dynamo/protocol"
)

// pair dials a stream over loopback and returns the consumer's end, the handshake already read.
func pair(tb testing.TB, ev *events) (*ResponseStream, *net.TCPConn) {
	tb.Helper()
	l := listen(tb)
	defer l.Close()
	info := ConnectionInfo{Transport: transportTCP, Address: l.Addr().String(), Subject: "s", StreamType: streamResponse}
	s, err := (&Dialer{}).Dial(tb.Context(), info, protocol.MsgPack, ev.on)
	if err != nil {
		tb.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		s.Close()
		s.Wait()
		_ = conn.Close()
	})
	if _, _, err := readTwoPart(conn, maxControlWord); err != nil {
		tb.Fatal(err)
	}
	return s, conn.(*net.TCPConn)
}

func word(w string) []byte { return appendTwoPart(nil, []byte(w), nil) }

// TestWhatConsumersDo: each way of leaving is reported once, and nothing after it.
func TestWhatConsumersDo(t *testing.T) {
	write := func(frames ...[]byte) func(*net.TCPConn) {
		return func(c *net.TCPConn) { _, _ = c.Write(slices.Concat(frames...)) }
	}
	for name, c := range map[string]struct {
		do   func(*net.TCPConn)
		want []EventKind
	}{
		"kill":             {write(word(`"kill"`)), []EventKind{EventKill}},
		"kill and FIN":     {func(c *net.TCPConn) { write(word(`"kill"`))(c); _ = c.Close() }, []EventKind{EventKill}},
		"stop, then kill":  {write(word(`"stop"`), word(`"kill"`)), []EventKind{EventStop, EventKill}},
		"two stops, FIN":   {func(c *net.TCPConn) { write(word(`"stop"`), word(`"stop"`))(c); _ = c.Close() }, []EventKind{EventStop, EventStop, EventEOF}},
		"kill twice":       {write(word(`"kill"`), word(`"kill"`)), []EventKind{EventKill}},
		"FIN":              {func(c *net.TCPConn) { _ = c.Close() }, []EventKind{EventEOF}},
		"half close":       {func(c *net.TCPConn) { _ = c.CloseWrite() }, []EventKind{EventEOF}},
		"FIN in a frame":   {func(c *net.TCPConn) { write(word(`"kill"`)[:26])(c); _ = c.Close() }, []EventKind{EventEOF}},
		"reset":            {func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() }, []EventKind{EventReset}},
		"unknown word":     {write(word(`"pause"`)), []EventKind{EventProtocol}},
		"no JSON":          {write(word(`kill`)), []EventKind{EventProtocol}},
		"empty frame":      {write(word(``)), []EventKind{EventProtocol}},
		"a body":           {write(appendTwoPart(nil, nil, []byte("x"))), []EventKind{EventProtocol}},
		"kill with a body": {write(appendTwoPart(nil, []byte(`"kill"`), []byte("x"))), []EventKind{EventProtocol}},
		"too long a word":  {write(appendTwoPartPrefix(nil, 1<<40, 0)), []EventKind{EventProtocol}},
	} {
		ev := newEvents()
		s, conn := pair(t, ev)
		c.do(conn)
		wait(t, name, ev.leaving)
		s.Wait()
		if got := ev.kinds(); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
		// A first write may still go into the void; it must not hang, and the stream ends either way.
		for range 3 {
			_ = s.Write([]protocol.Item{tokens(1)})
		}
		if err := s.End(nil); !errors.Is(err, ErrGone) {
			t.Errorf("%s: End says %v", name, err)
		}
	}
}

// TestKillLostInReset: a consumer that resets while tokens are on their way to it takes its own kill along; the reset counts.
func TestKillLostInReset(t *testing.T) {
	ev := newEvents()
	s, conn := pair(t, ev)
	if err := s.Write([]protocol.Item{tokens(1)}); err != nil { // unread at the consumer: its close becomes a reset
		t.Fatal(err)
	}
	_, _ = conn.Write(word(`"kill"`))
	_ = conn.SetLinger(0)
	_ = conn.Close()
	wait(t, "the end", ev.leaving)
	if got := ev.kinds(); len(got) != 1 || got[0] != EventKill && got[0] != EventReset {
		t.Errorf("got %v", got)
	}
}

// TestEventDuringDial: a kill that is there before Dial returns is not lost.
func TestEventDuringDial(t *testing.T) {
	ev := newEvents()
	near, far := net.Pipe()
	d := &Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) { return far, nil }}
	var consumer sync.WaitGroup
	consumer.Go(func() {
		_, _, _ = readTwoPart(near, maxControlWord)
		_, _ = near.Write(word(`"kill"`))
	})
	s, err := d.Dial(t.Context(), ConnectionInfo{Address: "127.0.0.1:9"}, protocol.JSON, ev.on)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "the kill", ev.leaving)
	s.Wait()
	consumer.Wait()
	_ = near.Close()
}

// TestLeavingAfterTheEnd: however the consumer leaves after the sentinel, nothing is reported and the connection is closed.
func TestLeavingAfterTheEnd(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn){
		"FIN":   func(c *net.TCPConn) { _ = c.Close() },
		"reset": func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() },
		"kill":  func(c *net.TCPConn) { _, _ = c.Write(word(`"kill"`)) },
		"stop, then FIN": func(c *net.TCPConn) {
			_, _ = c.Write(word(`"stop"`))
			_ = c.Close()
		},
	} {
		ev := newEvents()
		s, conn := pair(t, ev)
		if err := s.End([]protocol.Item{tokens(1)}); err != nil {
			t.Fatal(err)
		}
		leave(conn)
		s.Wait()
		if got := ev.kinds(); len(got) > 0 {
			t.Errorf("%s: reported %v", name, got)
		}
		if err := s.Write(nil); !errors.Is(err, ErrEnded) {
			t.Errorf("%s: a write after the end says %v", name, err)
		}
		if err := s.End(nil); !errors.Is(err, ErrEnded) {
			t.Errorf("%s: a second end says %v", name, err)
		}
	}
}

// TestLinger: a consumer that never closes gets ten seconds.
func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		d := &Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) { return far, nil }}
		var got []byte
		var reader sync.WaitGroup
		reader.Go(func() { got, _ = io.ReadAll(near) })
		s, err := d.Dial(t.Context(), ConnectionInfo{Address: "127.0.0.1:9"}, protocol.JSON, func(e Event) { t.Errorf("reported %v", e) })
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // silence is no reason to close
		start := time.Now()
		if err := s.Finish(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("closed after %v", took)
		}
		reader.Wait()
		if !strings.HasSuffix(string(got), sentinel) {
			t.Errorf("read %q", got)
		}
	})
}

// TestErrorPrologue: only the sentinel follows, and it takes the place of everything else.
func TestErrorPrologue(t *testing.T) {
	ev := newEvents()
	s, conn := pair(t, ev)
	refusal := &protocol.Error{Kind: protocol.ErrorInvalidArgument, Message: "no"}
	if err := s.ErrorPrologue(refusal); err != nil {
		t.Fatal(err)
	}
	_ = conn.CloseWrite()
	got, err := io.ReadAll(conn)
	if want := AppendSentinel(AppendErrorPrologue(nil, refusal)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v\n got %q\nwant %q", err, got, want)
	}
	if err := s.ErrorPrologue(refusal); !errors.Is(err, ErrEnded) {
		t.Errorf("a second one: %v", err)
	}
	s, _ = pair(t, newEvents())
	if err := s.Prologue(); err != nil {
		t.Fatal(err)
	}
	if err := s.ErrorPrologue(refusal); !errors.Is(err, ErrEnded) {
		t.Errorf("after the good one: %v", err)
	}
}

// TestSameBytesEitherWay: items and frames, waiting or not, with the prologue alone or along, make the same stream.
func TestSameBytesEitherWay(t *testing.T) {
	a, b := tokens(1, 2), tokens(3)
	var want []byte
	want = AppendItem(AppendItem(AppendPrologue(want), protocol.MsgPack, &a), protocol.MsgPack, &b)
	want = AppendSentinel(AppendFinal(want, protocol.MsgPack))
	done := func(ok bool, err error) error {
		if err == nil && !ok {
			err = errors.New("not done")
		}
		return err
	}
	for name, run := range map[string]func(s *ResponseStream) error{
		"items": func(s *ResponseStream) error {
			return errors.Join(s.Prologue(), s.Prologue(), s.Write([]protocol.Item{a}), s.Write([]protocol.Item{b}), s.End(nil))
		},
		"one write": func(s *ResponseStream) error { return s.End([]protocol.Item{a, b}) },
		"try": func(s *ResponseStream) error {
			return errors.Join(done(s.TryWrite([]protocol.Item{a})), done(s.TryEnd([]protocol.Item{b})))
		},
		"frames": func(s *ResponseStream) error { return errors.Join(s.WriteFrames(want[:100]), s.EndFrames(want[100:])) },
		"try frames": func(s *ResponseStream) error {
			return errors.Join(done(s.TryWriteFrames(want[:100])), done(s.TryEndFrames(want[100:])))
		},
	} {
		s, conn := pair(t, newEvents())
		if err := run(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v\n got %q\nwant %q", name, err, got, want)
		}
	}
}

// fill writes until the connection takes no more, and returns how many items that were.
func fill(tb testing.TB, s *ResponseStream) (items int) {
	tb.Helper()
	text := strings.Repeat("x", 10_000)
	item := []protocol.Item{{Data: &protocol.EngineOutput{TokenIDs: []uint32{}, Text: &text}}}
	for items = 1; ; items++ {
		done, err := s.TryWrite(item)
		if err != nil {
			tb.Fatal(err)
		}
		if !done {
			return items
		}
	}
}

// TestConsumerThatDoesNotRead: TryWrite does not wait for it, Close frees a Flush that does, and once it reads nothing is missing.
func TestConsumerThatDoesNotRead(t *testing.T) {
	ev := newEvents()
	s, conn := pair(t, ev)
	items := fill(t, s)
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(s.Flush(), s.End(nil)) }()
	count := 0
	for {
		header, body, err := readTwoPart(conn, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if string(header) == sentinel {
			break
		}
		if len(body) > 1000 {
			count++
		}
	}
	if err := <-ended; err != nil || count != items {
		t.Errorf("%v, %d items of %d", err, count, items)
	}

	s, _ = pair(t, ev)
	fill(t, s)
	go func() { ended <- s.Flush() }()
	s.Close()
	if err := <-ended; !errors.Is(err, ErrGone) {
		t.Errorf("a flush freed by Close says %v", err)
	}
	s.Wait()

	s, conn = pair(t, ev)
	text := strings.Repeat("x", 32<<20)
	if done, err := s.TryEnd([]protocol.Item{{Data: &protocol.EngineOutput{Text: &text}}}); done || err != nil {
		t.Errorf("the end of a stream that cannot take it: %v, %v", done, err)
	}
	go func() { ended <- s.Flush() }()
	if n, err := io.Copy(io.Discard, io.LimitReader(conn, int64(len(text)))); err != nil || n != int64(len(text)) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the rest of the end: %v", err)
	}
	_ = conn.Close()
	s.Wait()
	if got := ev.kinds(); len(got) > 0 {
		t.Errorf("reported %v", got)
	}
}

// TestDialRefused: three tries in all, with pauses, and an error that names the cause; one try for anything else.
func TestDialRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			fail  error
			tries int
			pause time.Duration
		}{
			{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, 3, 150 * time.Millisecond},
			{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)}, 1, 0},
		} {
			tries := 0
			d := &Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) {
				tries++
				return nil, c.fail
			}}
			start := time.Now()
			_, err := d.Dial(t.Context(), ConnectionInfo{Address: "127.0.0.1:9"}, protocol.JSON, nil)
			if took := time.Since(start); !errors.Is(err, c.fail) || tries != c.tries || took != c.pause {
				t.Errorf("%v after %d tries and %v", err, tries, took)
			}
		}
		d := &Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		start := time.Now()
		if _, err := d.Dial(ctx, ConnectionInfo{Address: "127.0.0.1:9"}, protocol.JSON, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if took := time.Since(start); took != 20*time.Millisecond {
			t.Errorf("given up after %v", took)
		}
	})
}

// TestDialHangs: a consumer that accepts and takes nothing, not even the handshake, costs one timeout.
func TestDialHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer near.Close()
		d := &Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) { return far, nil }}
		start := time.Now()
		if _, err := d.Dial(t.Context(), ConnectionInfo{Address: "127.0.0.1:9"}, protocol.JSON, nil); err == nil {
			t.Error("no error")
		}
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("given up after %v", took)
		}
	})
}

func TestDialAddresses(t *testing.T) {
	d := &Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("dialled") }}
	for address, good := range map[string]bool{
		"127.0.0.1:80": true, "[::1]:80": true, "": false, "localhost:80": false, "127.0.0.1": false, "127.0.0.1:0": false,
		"::1:80": false, "127.0.0.1:http": false, "127.0.0.1:80/x": false, "tcp://127.0.0.1:80": false,
	} {
		_, err := d.Dial(t.Context(), ConnectionInfo{Address: address}, protocol.JSON, nil)
		if bad := errors.Is(err, ErrBadAddress); bad == good || err == nil {
			t.Errorf("%q: %v", address, err)
		}
	}
}
