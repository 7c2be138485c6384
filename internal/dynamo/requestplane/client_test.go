package requestplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/dynamo/protocol"
)

// scripted is a worker that answers frames as a script says, over pipes.
type scripted struct {
	answer func(conn net.Conn, n int) // after the n-th frame of a connection, counted from 0
	wg     sync.WaitGroup
	mu     sync.Mutex
	dials  int // guarded by mu
}

func (w *scripted) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	w.mu.Lock()
	w.dials++
	w.mu.Unlock()
	w.wg.Go(func() {
		defer far.Close()
		for n := 0; ; n++ {
			if _, err := readFrame(far, 1<<20, nil); err != nil {
				return
			}
			w.answer(far, n)
		}
	})
	return near, nil
}

func (w *scripted) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dials
}

func text(s string) func(net.Conn, int) {
	return func(c net.Conn, _ int) { _, _ = c.Write(appendAck(nil, s)) }
}

func send(tb testing.TB, c *Client) error {
	tb.Helper()
	return c.Send(tb.Context(), "127.0.0.1:9/w/generate", Headers{}, generateControl("r", protocol.JSON, ConnectionInfo{}), nil)
}

func TestAnswersToSend(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(net.Conn, int)
		want   error
		says   string
		after  time.Duration
	}{
		"accepted":    {text(""), nil, "", 0},
		"overloaded":  {text("Server overloaded: worker at capacity"), nil, "Server overloaded: worker at capacity", 0},
		"unavailable": {text("Server unavailable: draining"), nil, "Server unavailable: draining", 0},
		"gibberish":   {text("no way"), ErrUnknownAck, `"no way"`, 0},
		"hang up":     {func(c net.Conn, _ int) { _ = c.Close() }, ErrConnection, "EOF", 0},
		"endless ack": {func(c net.Conn, _ int) { _, _ = c.Write([]byte("\xff\xff\xff\xff")) }, ErrConnection, "announced", 0},
		"silence":     {func(net.Conn, int) {}, ErrAckTimeout, "", 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &scripted{answer: c.answer}
				client := &Client{DialContext: w.dial}
				start := time.Now()
				err := send(t, client)
				if c.want != nil && !errors.Is(err, c.want) || (err == nil) != (c.want == nil && c.says == "") {
					t.Errorf("got %v, want %v", err, c.want)
				}
				if err != nil && !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, want %s", err, c.says)
				}
				if took := time.Since(start); took != c.after {
					t.Errorf("answered after %v", took)
				}
				var refusal *Refusal
				if strings.HasPrefix(c.says, "Server") && !errors.As(err, &refusal) {
					t.Errorf("%v is no refusal", err)
				}
				client.Close()
				w.wg.Wait()
				if err := send(t, client); !errors.Is(err, ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
			})
		})
	}
}

// TestLateAck: an answer that comes too late goes to the request that it belongs to, which is gone, and to no other.
func TestLateAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &scripted{answer: func(c net.Conn, n int) {
			if n == 0 {
				time.Sleep(7 * time.Second)
			}
			text([]string{"Server unavailable: the first", ""}[n])(c, n)
		}}
		client := &Client{DialContext: w.dial, MaxConnections: 1, AckTimeout: 6 * time.Second}
		if err := send(t, client); !errors.Is(err, ErrAckTimeout) {
			t.Errorf("the first: %v", err)
		}
		if err := send(t, client); err != nil {
			t.Errorf("the second: %v", err)
		}
		if w.count() != 1 {
			t.Errorf("%d connections", w.count())
		}
		client.Close()
		w.wg.Wait()
	})
}

// TestPool: connections are used again, more are opened only while all are busy, and idle ones close.
func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &scripted{answer: func(c net.Conn, n int) {
			time.Sleep(time.Second)
			text("")(c, n)
		}}
		client := &Client{DialContext: w.dial, MaxConnections: 3, AckTimeout: time.Minute}
		for range 5 {
			if err := send(t, client); err != nil {
				t.Fatal(err)
			}
		}
		if w.count() != 1 {
			t.Errorf("%d connections for requests one after the other", w.count())
		}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if err := send(t, client); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		client.mu.Lock()
		open := len(client.pools["127.0.0.1:9"])
		client.mu.Unlock()
		if open != 3 {
			t.Errorf("%d connections for 20 requests at once", open)
		}
		time.Sleep(301 * time.Second)
		client.mu.Lock()
		left := len(client.pools)
		client.mu.Unlock()
		if left != 0 {
			t.Errorf("%d workers still have idle connections", left)
		}
		if err := send(t, client); err != nil {
			t.Errorf("after the idle time: %v", err)
		}
		client.Close()
		w.wg.Wait()
	})
}

// TestBusy: the requests that a silent worker keeps waiting are bounded.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &scripted{answer: func(net.Conn, int) {}}
		client := &Client{DialContext: w.dial, MaxConnections: 1, MaxOutstanding: 2}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if err := send(t, client); !errors.Is(err, ErrAckTimeout) {
					t.Errorf("one that waits: %v", err)
				}
			})
			synctest.Wait()
		}
		if err := send(t, client); !errors.Is(err, ErrBusy) {
			t.Errorf("one too many: %v", err)
		}
		wg.Wait()
		client.Close()
		w.wg.Wait()
	})
}

func TestBadTargets(t *testing.T) {
	client := &Client{MaxMessage: 100}
	defer client.Close()
	for target, want := range map[string]string{
		"127.0.0.1:9": "with a path", "localhost:9/x": "literal", "/x": "literal", "127.0.0.1:9/" + strings.Repeat("x", 1<<16): "too long",
		"tcp://127.0.0.1:9/x": "longer than 100",
	} {
		err := client.Send(t.Context(), target, Headers{}, generateControl("r", protocol.JSON, ConnectionInfo{}), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30s: %v", target, err)
		}
	}
}

// TestWorkerRestart: a connection that the worker has closed is not used again.
func TestWorkerRestart(t *testing.T) {
	client := &Client{}
	defer client.Close()
	for range 3 {
		s := NewServer(ServerConfig{})
		s.Handle("w/generate", handlerFunc{serve: func(context.Context, *Request) {}})
		l := listen(t)
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Serve(l) })
		info := ConnectionInfo{Transport: transportTCP, Address: "127.0.0.1:9", Subject: "s", Context: "r"}
		target := fmt.Sprintf("%s/w/generate", l.Addr())
		for range 3 {
			if err := client.Send(t.Context(), target, Headers{}, generateControl("r", protocol.JSON, info), nil); err != nil {
				t.Error(err)
			}
		}
		s.Close()
		wg.Wait()
		err := client.Send(t.Context(), target, Headers{}, generateControl("r", protocol.JSON, info), nil)
		if !errors.Is(err, ErrConnection) {
			t.Errorf("a worker that is gone: %v", err)
		}
	}
}
