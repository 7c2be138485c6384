package differential

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"remora/internal/dynamo/protocol"
)

// patience bounds every wait of a case; one that needs more has failed.
const patience = 20 * time.Second

// twoPart is the message of both directions: u64 header length, u64 body length, u64 checksum (0), header, body.
func twoPart(header, body []byte) []byte {
	out := make([]byte, 24, 24+len(header)+len(body))
	binary.BigEndian.PutUint64(out, uint64(len(header)))
	binary.BigEndian.PutUint64(out[8:], uint64(len(body)))
	return append(append(out, header...), body...)
}

func readTwoPart(r io.Reader) (header, body []byte, err error) {
	var prefix [24]byte
	if _, err = io.ReadFull(r, prefix[:]); err != nil {
		return nil, nil, err
	}
	h, b := binary.BigEndian.Uint64(prefix[:]), binary.BigEndian.Uint64(prefix[8:])
	if h > 1<<24 || b > 1<<24 {
		return nil, nil, fmt.Errorf("a frame of %d and %d bytes", h, b)
	}
	parts := make([]byte, h+b)
	_, err = io.ReadFull(r, parts)
	return parts[:h:h], parts[h:], err
}

// sent is a request as it goes over the wire. Zero fields stand for what a stock frontend writes.
type sent struct {
	id      string
	path    string // after host and port; "": the one of discovery
	headers string // JSON
	control string // JSON
	payload []byte // nil: control and body; else it goes out instead of them
	body    []byte
}

// post writes the request on a connection of its own and returns the acknowledgement; a connection that was closed without one
// is told as text, too.
func post(ctx context.Context, address string, s sent) (ack string, err error) {
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", fmt.Errorf("request connection: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	payload := s.payload
	if payload == nil {
		payload = twoPart([]byte(s.control), s.body)
	}
	frame := binary.BigEndian.AppendUint16(nil, uint16(len(s.path)))
	frame = append(frame, s.path...)
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(s.headers)))
	frame = append(frame, s.headers...)
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(payload)))
	if _, err = conn.Write(append(frame, payload...)); err != nil {
		return "", fmt.Errorf("request frame: %w", err)
	}
	var length [4]byte
	if _, err = io.ReadFull(conn, length[:]); errors.Is(err, io.EOF) {
		return "(closed without an acknowledgement)", nil
	} else if err != nil {
		return "", fmt.Errorf("acknowledgement: %w", err)
	}
	text := make([]byte, min(binary.BigEndian.Uint32(length[:]), 1<<16))
	if _, err = io.ReadFull(conn, text); err != nil {
		return "", fmt.Errorf("acknowledgement: %w", err)
	}
	return string(text), nil
}

// frontend awaits the response connections that workers dial.
type frontend struct {
	listener net.Listener   // set once
	running  sync.WaitGroup // the accepting goroutine and one for each connection

	mu      sync.Mutex
	pending map[string]*reply // by subject; guarded by mu
	open    map[net.Conn]bool // guarded by mu
	strays  []string          // handshakes that named nobody; guarded by mu
}

func newFrontend(t *testing.T) *frontend {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &frontend{listener: listener, pending: map[string]*reply{}, open: map[net.Conn]bool{}}
	f.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed by the cleanup
			}
			f.mu.Lock()
			f.open[conn] = true
			f.mu.Unlock()
			f.running.Go(func() { f.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		f.mu.Lock()
		for conn := range f.open {
			_ = conn.Close()
		}
		f.mu.Unlock()
		f.running.Wait()
		if len(f.strays) > 0 {
			t.Errorf("handshakes for nobody: %q", f.strays)
		}
	})
	return f
}

func (f *frontend) address() string { return f.listener.Addr().String() }

// await makes a place for the response of a request.
func (f *frontend) await(subject string) *reply {
	r := &reply{changed: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending[subject] = r
	return r
}

func (f *frontend) serve(conn net.Conn) {
	defer func() {
		f.mu.Lock()
		delete(f.open, conn)
		f.mu.Unlock()
		_ = conn.Close()
	}()
	in := bufio.NewReader(conn)
	header, _, err := readTwoPart(in)
	if err != nil {
		return
	}
	handshake, err := protocol.ParseValue(protocol.JSON, header)
	subject, _ := handshake.Get("subject")
	f.mu.Lock()
	r := f.pending[subject.Str]
	if r == nil {
		f.strays = append(f.strays, string(header))
	}
	f.mu.Unlock()
	if err != nil || r == nil {
		return
	}
	r.update(func() { r.conn, r.handshake = conn, handshake })
	for {
		header, body, err := readTwoPart(in)
		if err != nil {
			r.update(func() { r.end = err })
			return
		}
		r.update(func() { r.frames = append(r.frames, frame{header, body}) })
		if string(header) == `"sentinel"` {
			// A frontend has read all it wants: its leaving is what lets the worker close.
			_ = conn.(*net.TCPConn).CloseWrite()
		}
	}
}

// frame is one message on the response connection, as it came.
type frame struct{ header, body []byte }

// reply is what came back for one request.
type reply struct {
	mu        sync.Mutex
	changed   chan struct{}  // guarded by mu; closed and replaced at every change
	conn      net.Conn       // guarded by mu; nil until the worker has dialled
	handshake protocol.Value // guarded by mu
	frames    []frame        // guarded by mu
	end       error          // guarded by mu; why nothing more comes
}

func (r *reply) update(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	close(r.changed)
	r.changed = make(chan struct{})
}

// wait blocks until what, under mu, holds.
func (r *reply) wait(ctx context.Context, what func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		r.mu.Lock()
		ok, changed := what(), r.changed
		r.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("after %v: %w", r, context.Cause(ctx))
		}
	}
}

// over waits for the end of the connection.
func (r *reply) over(ctx context.Context) error {
	return r.wait(ctx, func() bool { return r.end != nil })
}

// dialled waits for the worker's connection.
func (r *reply) dialled(ctx context.Context) error {
	return r.wait(ctx, func() bool { return r.conn != nil })
}

// has waits for n frames, or for the end.
func (r *reply) has(ctx context.Context, n int) error {
	return r.wait(ctx, func() bool { return len(r.frames) >= n || r.end != nil })
}

// say writes a control word, as "stop" and "kill" are.
func (r *reply) say(word string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.conn.Write(twoPart([]byte(`"`+word+`"`), nil))
	return err
}

// reset breaks the connection, as the kernel of a killed frontend does.
func (r *reply) reset() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.conn.(*net.TCPConn).SetLinger(0)
	return r.conn.Close()
}

// leave closes the connection in mid-stream, as a frontend does that ends by itself.
func (r *reply) leave() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conn.Close()
}

// called tells whether the worker has dialled.
func (r *reply) called() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conn != nil
}

func (r *reply) taken() (frames []frame, dialled bool, end error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.frames, r.conn != nil, r.end
}

// String is for failures.
func (r *reply) String() string {
	frames, dialled, end := r.taken()
	var text strings.Builder
	fmt.Fprintf(&text, "%d frames (dialled: %v, end: %v)", len(frames), dialled, end)
	for _, f := range frames {
		fmt.Fprintf(&text, " %.60q", f.header)
	}
	return text.String()
}
