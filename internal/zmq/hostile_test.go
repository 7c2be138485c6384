package zmq

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/memnet"
)

// inMemory is a publisher without a port, for bubbles and fuzzing.
func inMemory(config PubConfig) (*Pub, *memnet.Listener) {
	l := memnet.Listen(1 << 20)
	return NewPub(l, config), l
}

func opening(own socketType) []byte { return appendReady(greeting(), own) }

// TestHandshakeRefusals has peers that are none of ours.
func TestHandshakeRefusals(t *testing.T) {
	for name, test := range map[string]struct{ sends, want string }{
		"nothing, then gone": {"", "EOF"},
		"an HTTP server":     {"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "no ZMTP greeting"},
		"wrong partner":      {string(opening(typeSub)), `"SUB" socket, which is no partner of SUB`},
		"no type":            {string(appendCommand(greeting(), "READY", nil)), `"" socket`},
		"refusal":            {string(appendCommand(greeting(), "ERROR", []byte("\x04busy"))), "refused: busy"},
		"message at once":    {string(appendMessage(greeting(), raws("hi"))), "not ready"},
		"broken READY":       {string(appendCommand(greeting(), "READY", []byte("\x09"))), "inside a property"},
		"PLAIN":              {strings.Replace(string(opening(typePub)), "NULL\x00", "PLAIN", 1), `"PLAIN"`},
	} {
		t.Run(name, func(t *testing.T) {
			l := memnet.Listen(1 << 20)
			defer l.Close()
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				_, _ = io.ReadFull(c, make([]byte, greetingSize))
				_, _ = io.WriteString(c, test.sends)
				if test.sends != "" {
					_, _ = io.Copy(io.Discard, c)
				}
			})
			raw, err := l.Dial()
			if err != nil {
				t.Fatal(err)
			}
			c, err := open(t.Context(), raw, typeSub, Limits{})
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "handshake") {
				t.Errorf("got %v, %v", c, err)
			}
		})
	}
}

// TestSilentPeers lets every place of a publisher be held by peers that say nothing.
func TestSilentPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pub, l := inMemory(PubConfig{Peers: 2})
		first, _ := l.Dial()
		second, _ := l.Dial()
		defer first.Close()
		defer second.Close()
		synctest.Wait()
		third, _ := l.Dial()
		if _, err := open(t.Context(), third, typeSub, Limits{}); err == nil {
			t.Error("a third peer got in")
		}
		time.Sleep(handshakeTime + time.Second)
		fourth, _ := l.Dial()
		c, err := open(t.Context(), fourth, typeSub, Limits{})
		if err != nil {
			t.Fatalf("the silent ones still hold their places: %v", err)
		}
		pub.Close()
		if _, err = c.Receive(t.Context()); err == nil {
			t.Error("open after Close")
		}
		c.Close()
	})
}

func TestTooManyTopics(t *testing.T) {
	pub, l := inMemory(PubConfig{})
	defer pub.Close()
	raw, _ := l.Dial()
	c, err := open(t.Context(), raw, typeSub, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range maxTopics + 1 {
		if err = c.subscribe(strings.Repeat("x", i)); err != nil {
			break
		}
	}
	if _, err = c.Receive(t.Context()); err == nil {
		t.Error("the peer was kept")
	}
}

// TestOldSubscriber speaks 3.0, whose subscriptions are messages.
func TestOldSubscriber(t *testing.T) {
	pub, l := inMemory(PubConfig{})
	defer pub.Close()
	raw, _ := l.Dial()
	c, err := open(t.Context(), raw, typeSub, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.minor = 0
	for _, step := range []string{"\x01kv", "\x00kv", "\x02what", ""} {
		if err = c.Send(t.Context(), []byte(step)); err != nil {
			t.Fatal(err)
		}
	}
	if err = c.subscribe("x"); err != nil {
		t.Fatal(err)
	}
	if err = c.command("PING", []byte("\x00\x00ctx")); err != nil {
		t.Fatal(err)
	}
	got, err := c.in.next() // the answer comes when all before it has been taken
	if err != nil || got.name != "PONG" || string(got.data) != "ctx" {
		t.Fatalf("%+v, %v", got, err)
	}
	pub.Publish(raws("kv", "1")...)
	pub.Publish(raws("xy", "2")...)
	frames, err := c.Receive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantFrames(t, frames, "xy", "2")
	if err = c.command("PING", []byte("\x00")); err != nil {
		t.Fatal(err)
	}
	if _, err = c.Receive(t.Context()); err == nil {
		t.Error("a broken PING was taken")
	}
}

// TestRedial watches the pauses between attempts in virtual time.
func TestRedial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts atomic.Int32
		refused := errors.New("refused")
		sub := &Sub{Dial: func(context.Context) (net.Conn, error) { attempts.Add(1); return nil, refused }}
		l := newListener()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- sub.Run(ctx, l) }()
		time.Sleep(10 * time.Minute)
		if n := attempts.Load(); n < 600 || n > 1300 {
			t.Errorf("%d attempts in ten minutes", n)
		}
		if err := <-l.gone; !errors.Is(err, refused) {
			t.Error(err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestPublisherThatHangsUp greets and leaves: that is no reason to hammer at it.
func TestPublisherThatHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listen := memnet.Listen(1 << 20)
		var wg sync.WaitGroup
		var attempts atomic.Int32
		wg.Go(func() {
			for {
				raw, err := listen.Accept()
				if err != nil {
					return
				}
				attempts.Add(1)
				if c, err := open(t.Context(), raw, typePub, Limits{}); err == nil {
					c.Close()
				}
			}
		})
		l := newListener()
		stop := subscribe(t, &Sub{Dial: listen.DialContext}, l)
		time.Sleep(10 * time.Minute)
		stop()
		listen.Close()
		wg.Wait()
		if n := attempts.Load(); n < 600 || n > 1300 {
			t.Errorf("%d attempts in ten minutes", n)
		}
	})
}

// TestReceiveGivesUp has a context end while a peer is silent, and while it does not read.
func TestReceiveGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		c := &Conn{net: a, in: *readerOf(nil, Limits{})}
		c.in.from.Reset(a)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Receive: %v", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Send(ctx, []byte("x")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Send: %v", err)
		}
		if err := c.Send(t.Context(), []byte("x")); !errors.Is(err, ErrClosed) {
			t.Errorf("Send after a failed one: %v", err)
		}
		if err := c.command("PONG", nil); !errors.Is(err, ErrClosed) {
			t.Errorf("command after a failed Send: %v", err)
		}
		if _, err := c.Receive(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("Receive after a failed Send: %v", err)
		}
	})
}

func TestSocketFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv")
	at := endpoint(t, "ipc://"+path)
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = ListenPub(at, PubConfig{}); err == nil {
		t.Error("bound a socket that somebody listens at")
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	pub, err := ListenPub(at, PubConfig{})
	if err != nil {
		t.Fatalf("a file left behind: %v", err)
	}
	pub.Close()
	if _, err = ListenPub(endpoint(t, "ipc://endpoint_test.go"), PubConfig{}); !errors.Is(err, ErrEndpoint) {
		t.Errorf("a file that is no socket: %v", err)
	}
}

// FuzzPeer sends a publisher anything: it must neither panic nor hang, and serve the next peer.
func FuzzPeer(f *testing.F) {
	f.Add(append(opening(typeSub), appendCommand(nil, "SUBSCRIBE", []byte("kv"))...))
	f.Add(append(opening(typeSub), appendMessage(nil, raws("\x01kv"))...))
	f.Add(append(opening(typeSub), appendCommand(nil, "PING", []byte("\x00\x00x"))...))
	f.Add(opening(typePub))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		pub, l := inMemory(PubConfig{Peers: 2})
		defer pub.Close()
		raw, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = raw.Write(data)
		pub.Publish(raws("kv", "x")...)
		other, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		c, err := open(t.Context(), other, typeSub, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		raw.Close()
		c.Close()
	})
}
