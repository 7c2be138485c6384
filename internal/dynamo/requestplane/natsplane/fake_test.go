package natsplane

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"remora/internal/memnet"
)

// fake is a NATS server with one client, as far as a plane needs it: it knows its subscriptions, sends it messages and hears
// its replies.
type fake struct {
	t       *testing.T
	replies chan reply // what the client published to an inbox

	mu       sync.Mutex
	listener *memnet.Listener        // guarded by mu; nil: away
	conn     net.Conn                // guarded by mu; the client's
	connects []string                // guarded by mu; the CONNECT lines
	subs     map[string]subscription // guarded by mu; by sid
	changed  chan struct{}           // guarded by mu; closed at the next change
	refuse   string                  // guarded by mu; what a client that connects is told
	wg       sync.WaitGroup
}

type subscription struct{ subject, queue string }

type reply struct{ inbox, text string }

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{t: t, replies: make(chan reply, 100), changed: make(chan struct{})}
	f.start()
	t.Cleanup(f.stop)
	return f
}

func (f *fake) start() {
	l := memnet.Listen(64 << 10)
	f.mu.Lock()
	f.listener = l
	f.mu.Unlock()
	f.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.serve(conn)
		}
	})
}

// stop ends the server and its connection.
func (f *fake) stop() {
	f.mu.Lock()
	l, conn := f.listener, f.conn
	f.listener = nil
	f.mu.Unlock()
	if l == nil {
		return
	}
	_ = l.Close()
	if conn != nil {
		_ = conn.Close()
	}
	f.wg.Wait()
}

func (f *fake) dial(string, string) (net.Conn, error) {
	f.mu.Lock()
	l := f.listener
	f.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	return l.Dial()
}

// serve speaks to one client until it leaves.
func (f *fake) serve(conn net.Conn) {
	defer conn.Close()
	f.change(func() { f.conn, f.subs = conn, make(map[string]subscription) })
	defer f.change(func() { f.conn, f.subs = nil, nil })
	if _, err := io.WriteString(conn, `INFO {"server_id":"fake","version":"2.10.0","proto":1,"headers":true,"max_payload":1048576,"client_id":1}`+"\r\n"); err != nil {
		return
	}
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		words := strings.Fields(line)
		switch words[0] {
		case "CONNECT":
			f.change(func() { f.connects = append(f.connects, line) })
			f.mu.Lock()
			refuse := f.refuse
			f.mu.Unlock()
			if refuse != "" {
				_, _ = io.WriteString(conn, "-ERR '"+refuse+"'\r\n")
				return
			}
		case "PING":
			if _, err = io.WriteString(conn, "PONG\r\n"); err != nil {
				return
			}
		case "SUB": // SUB subject [queue] sid
			s := subscription{subject: words[1]}
			if len(words) == 4 {
				s.queue = words[2]
			}
			f.change(func() { f.subs[words[len(words)-1]] = s })
		case "UNSUB":
			f.change(func() { delete(f.subs, words[1]) })
		case "PUB": // PUB subject [reply] size
			size, _ := strconv.Atoi(words[len(words)-1])
			text := make([]byte, size+2)
			if _, err = io.ReadFull(in, text); err != nil {
				return
			}
			f.replies <- reply{words[1], string(text[:size])}
		case "PONG":
		default:
			f.t.Errorf("the fake does not know %q", line)
			return
		}
	}
}

func (f *fake) change(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

// wait waits until ready says so, which is called with mu held.
func (f *fake) wait(what string, ready func() bool) {
	f.t.Helper()
	limit := time.After(30 * time.Second) // a bound on a broken test, never reached otherwise
	for {
		f.mu.Lock()
		ok, changed := ready(), f.changed
		f.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-limit:
			f.t.Fatalf("waited for %s in vain", what)
		}
	}
}

// sid gives the subscription to a subject; called with mu held.
func (f *fake) sid(subject string) (sid, queue string) {
	for sid, s := range f.subs {
		if s.subject == subject {
			return sid, s.queue
		}
	}
	return "", ""
}

// send delivers a message and returns its reply.
func (f *fake) send(subject, headers, payload string) string {
	f.t.Helper()
	f.mu.Lock()
	sid, _ := f.sid(subject)
	conn := f.conn
	f.mu.Unlock()
	if sid == "" {
		f.t.Fatalf("nobody listens on %s", subject)
	}
	inbox := "_INBOX.x." + sid
	text := fmt.Sprintf("MSG %s %s %s %d\r\n%s\r\n", subject, sid, inbox, len(payload), payload)
	if headers != "" {
		head := "NATS/1.0\r\n" + headers + "\r\n"
		text = fmt.Sprintf("HMSG %s %s %s %d %d\r\n%s%s\r\n", subject, sid, inbox, len(head), len(head)+len(payload), head, payload)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		f.t.Fatal(err)
	}
	select {
	case r := <-f.replies:
		if r.inbox != inbox {
			f.t.Fatalf("a reply to %s, want %s", r.inbox, inbox)
		}
		return r.text
	case <-time.After(30 * time.Second): // as above
		f.t.Fatal("no reply")
		return ""
	}
}
