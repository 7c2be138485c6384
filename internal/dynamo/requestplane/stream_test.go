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
	"remora/internal/memnet"
)

// pair dials a stream over loopback and returns the consumer's end, the handshake already read.
func pair(tb testing.TB, ev *events) (*ResponseStream, *net.TCPConn) {
	tb.Helper()
	l := listen(tb)
	defer l.Close()
	info := ConnectionInfo{Transport: transportTCP, Address: l.Addr().String(), Subject: "s", StreamType: streamResponse}
	s, err := (&Dialer{}).Dial(tb.Context(), info, ev.on)
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
		"longer than any":  {write(appendTwoPartPrefix(nil, maxControlWord+1, 0)), []EventKind{EventProtocol}},
		"length over all":  {write(appendTwoPartPrefix(nil, -1, 0)), []EventKind{EventProtocol}},
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
			_ = s.WriteFrames(AppendPrologue(nil), nil)
		}
		if err := s.EndFrames(answer(protocol.MsgPack), nil); !errors.Is(err, ErrGone) {
			t.Errorf("%s: EndFrames says %v", name, err)
		}
	}
}

// TestKillLostInReset: a consumer that resets while tokens are on their way to it takes its own kill along; the reset counts.
func TestKillLostInReset(t *testing.T) {
	ev := newEvents()
	s, conn := pair(t, ev)
	if err := s.WriteFrames(AppendPrologue(nil), nil); err != nil { // unread at the consumer: its close becomes a reset
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

// TestFailedWriteIsAReset: whoever finds the break, it is told once and as what it was, even where the reader sees no more than
// the end that the failed write has made.
func TestFailedWriteIsAReset(t *testing.T) {
	ev := newEvents()
	near, far := net.Pipe()
	defer far.Close()
	d := &Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) { return &brokenConn{Conn: near}, nil }}
	s, err := d.Dial(t.Context(), ConnectionInfo{Address: "127.0.0.1:9"}, ev.on)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WriteFrames(AppendPrologue(nil), nil); !errors.Is(err, ErrGone) || !errors.Is(err, syscall.EPIPE) {
		t.Errorf("WriteFrames says %v", err)
	}
	wait(t, "the break", ev.leaving)
	s.Wait()
	if len(ev.got) != 1 || ev.got[0].Kind != EventReset || !errors.Is(ev.got[0].Err, syscall.EPIPE) {
		t.Errorf("got %v", ev.got)
	}
}

// brokenConn takes a handshake, and then no write any more; its reads know of nothing, and end with it.
type brokenConn struct {
	net.Conn

	writes int
}

func (c *brokenConn) Write(p []byte) (int, error) {
	if c.writes++; c.writes == 1 {
		return len(p), nil
	}
	return 0, syscall.EPIPE
}

func (c *brokenConn) Read(p []byte) (int, error) {
	if _, err := c.Conn.Read(p); err != nil {
		return 0, io.EOF
	}
	return 0, nil
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
	s, err := d.Dial(t.Context(), ConnectionInfo{Address: "127.0.0.1:9"}, ev.on)
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
		if err := s.EndFrames(answer(protocol.MsgPack, tokens(1)), nil); err != nil {
			t.Fatal(err)
		}
		leave(conn)
		s.Wait()
		if got := ev.kinds(); len(got) > 0 {
			t.Errorf("%s: reported %v", name, got)
		}
		if err := s.WriteFrames(AppendPrologue(nil), nil); !errors.Is(err, ErrEnded) {
			t.Errorf("%s: a write after the end says %v", name, err)
		}
		if err := s.EndFrames(answer(protocol.MsgPack), nil); !errors.Is(err, ErrEnded) {
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
		s, err := d.Dial(t.Context(), ConnectionInfo{Address: "127.0.0.1:9"}, func(e Event) { t.Errorf("reported %v", e) })
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // silence is no reason to close
		start := time.Now()
		if err := s.EndFrames(answer(protocol.JSON), nil); err != nil {
			t.Error(err)
		}
		s.Wait()
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("closed after %v", took)
		}
		reader.Wait()
		if !strings.HasSuffix(string(got), sentinel) {
			t.Errorf("read %q", got)
		}
	})
}

// TestErrorPrologue: only the sentinel follows it, and nothing can be written after that.
func TestErrorPrologue(t *testing.T) {
	s, conn := pair(t, newEvents())
	refusal := &protocol.Error{Kind: protocol.ErrorInvalidArgument, Message: "no"}
	if err := s.EndFrames(AppendSentinel(AppendErrorPrologue(nil, refusal)), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteFrames(AppendPrologue(nil), nil); !errors.Is(err, ErrEnded) {
		t.Errorf("a good one behind it: %v", err)
	}
	_ = conn.CloseWrite()
	for _, want := range []string{string(protocol.AppendPrologue(nil, refusal)), sentinel} {
		if header, body, err := readTwoPart(conn, 1<<10); err != nil || string(header) != want || len(body) > 0 {
			t.Errorf("%v, got %q and %q, want %q", err, header, body, want)
		}
	}
	if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
		t.Errorf("%v, and then %q", err, rest)
	}
}

// TestFramesArriveAsTheyAre: where the writes cut them does not matter, and their buffer can be used again at once.
func TestFramesArriveAsTheyAre(t *testing.T) {
	s, conn := pair(t, newEvents())
	want := answer(protocol.MsgPack, tokens(1, 2), tokens(3))
	buffer := append([]byte(nil), want[:100]...)
	if err := s.WriteFrames(buffer, nil); err != nil {
		t.Fatal(err)
	}
	clear(buffer)
	if err := s.EndFrames(want[100:], nil); err != nil {
		t.Fatal(err)
	}
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v\n got %q\nwant %q", err, got, want)
	}
}

// TestConsumerThatDoesNotRead: the writes wait for it, Close frees them, and once it reads nothing is missing.
func TestConsumerThatDoesNotRead(t *testing.T) {
	text := strings.Repeat("x", 32<<20) // more than a connection takes
	frames := answer(protocol.MsgPack, protocol.Item{Data: &protocol.EngineOutput{Text: &text}})
	written := make(chan error, 1)
	for name, write := range map[string]func(*ResponseStream, []byte, func()) error{
		"WriteFrames": (*ResponseStream).WriteFrames, "EndFrames": (*ResponseStream).EndFrames,
	} {
		ev := newEvents()
		waits := 0
		wait := func() { waits++ }
		s, conn := pair(t, ev)
		go func() { written <- write(s, frames, wait) }()
		got := make([]byte, len(frames))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, frames) {
			t.Errorf("%s: %v, or other bytes than were written", name, err)
		}
		if err := <-written; err != nil {
			t.Errorf("%s to a consumer that reads in the end: %v", name, err)
		}
		if waits != 1 {
			t.Errorf("%s waited %d times", name, waits)
		}
		s.Close()
		s.Wait()

		s, conn = pair(t, ev)
		go func() { written <- write(s, frames, wait) }()
		if _, err := conn.Read(make([]byte, 1)); err != nil { // so it has begun, and is far from done
			t.Errorf("%s: %v", name, err)
		}
		select {
		case err := <-written:
			t.Errorf("%s has not waited: %v", name, err)
			written <- err
		default:
		}
		s.Close()
		if err := <-written; !errors.Is(err, ErrGone) {
			t.Errorf("%s freed by Close says %v", name, err)
		}
		s.Wait()
		if kinds := ev.kinds(); len(kinds) > 0 {
			t.Errorf("%s: reported %v", name, kinds)
		}
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
			_, err := d.Dial(t.Context(), ConnectionInfo{Address: "127.0.0.1:9"}, nil)
			if took := time.Since(start); !errors.Is(err, c.fail) || tries != c.tries || took != c.pause {
				t.Errorf("%v after %d tries and %v", err, tries, took)
			}
		}
		d := &Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		start := time.Now()
		if _, err := d.Dial(ctx, ConnectionInfo{Address: "127.0.0.1:9"}, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if took := time.Since(start); took != 20*time.Millisecond {
			t.Errorf("given up after %v", took)
		}
	})
}

// TestDialWithoutDescriptors: the process has too many files open for a while, which is no reason to leave a frontend waiting
// for ever; nor is it worth more time than a host that does not answer.
func TestDialWithoutDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}
		start := time.Now()
		near, far := memnet.Pipe(64 << 10)
		defer far.Close()
		d := &Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) {
			if time.Since(start) < 3*time.Second {
				return nil, full
			}
			return near, nil
		}}
		s, err := d.Dial(t.Context(), ConnectionInfo{Address: "127.0.0.1:9"}, func(Event) {})
		if err != nil {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
		s.Close()
		s.Wait()

		d = &Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, full }}
		start = time.Now()
		_, err = d.Dial(t.Context(), ConnectionInfo{Address: "127.0.0.1:9"}, nil)
		if took := time.Since(start); !errors.Is(err, syscall.EMFILE) || took < 5*time.Second || took > 5*time.Second+maxRetryDelay {
			t.Errorf("%v after %v", err, took)
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
		if _, err := d.Dial(t.Context(), ConnectionInfo{Address: "127.0.0.1:9"}, nil); err == nil {
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
		_, err := d.Dial(t.Context(), ConnectionInfo{Address: address}, nil)
		if bad := errors.Is(err, ErrBadAddress); bad == good || err == nil {
			t.Errorf("%q: %v", address, err)
		}
	}
}
