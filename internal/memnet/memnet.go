// Package memnet is a network in memory for tests that run in synctest bubbles.
//
// It owns buffered connections and the listener that hands them out; it starts no goroutine. Waiting readers and writers
// wait in the way that lets a bubble's clock go on. It exists because grpc's bufconn arms two timers of zero length for
// each direction of a connection: inside a bubble such a timer runs at once on the thread that armed it, and when two
// threads do that together under the race detector they share one of its contexts, which ends the test binary with a
// segmentation fault now and then (seen with Go 1.26). Here a timer is armed for a deadline that lies ahead, never else.
package memnet

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// ErrListenerClosed is what Accept and Dial return after Close. It counts as net.ErrClosed.
var ErrListenerClosed = &net.OpError{Op: "accept", Net: "memory", Addr: Addr{}, Err: net.ErrClosed}

// Addr is the address of everything here.
type Addr struct{}

// Network is "memory".
func (Addr) Network() string { return "memory" }

// String is "memory".
func (Addr) String() string { return "memory" }

// Listener hands out connections in memory. Every method may be called at any time.
type Listener struct {
	size   int
	queue  chan net.Conn
	done   chan struct{}
	closer sync.Once
}

// Listen returns a listener whose connections buffer size bytes in each direction.
func Listen(size int) *Listener {
	return &Listener{size: size, queue: make(chan net.Conn), done: make(chan struct{})}
}

// Accept waits for a connection, or for the end of the listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
		return nil, ErrListenerClosed
	case conn := <-l.queue:
		return conn, nil
	}
}

// Close refuses connections from now on; those made live on.
func (l *Listener) Close() error {
	l.closer.Do(func() { close(l.done) })
	return nil
}

// Addr says nothing of use.
func (*Listener) Addr() net.Addr { return Addr{} }

// Dial is DialContext without an end to its patience.
func (l *Listener) Dial() (net.Conn, error) { return l.DialContext(context.Background()) }

// DialContext returns one end of a connection when Accept has taken the other.
func (l *Listener) DialContext(ctx context.Context) (net.Conn, error) {
	near, far := Pipe(l.size)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.done:
		return nil, ErrListenerClosed
	case l.queue <- far:
		return near, nil
	}
}

// Pipe returns the two ends of a connection that buffers size bytes in each direction. When one end is closed, the other
// still reads what was written before, then io.EOF; writing to it fails with io.ErrClosedPipe.
func Pipe(size int) (near, far net.Conn) {
	there, back := newFlow(size), newFlow(size)
	return &conn{in: back, out: there}, &conn{in: there, out: back}
}

type conn struct{ in, out *flow }

func (c *conn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *conn) Write(b []byte) (int, error) { return c.out.write(b) }

// TryWrite writes what fits into the buffer, without waiting.
func (c *conn) TryWrite(b []byte) (int, error) { return c.out.tryWrite(b) }

func (c *conn) Close() error {
	c.in.abandon()
	c.out.finish()
	return nil
}

func (*conn) LocalAddr() net.Addr  { return Addr{} }
func (*conn) RemoteAddr() net.Addr { return Addr{} }

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.reader, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writer, t)
	return nil
}

// flow is one direction: a bounded buffer between one end's writes and the other's reads.
type flow struct {
	size int

	mu       sync.Mutex
	changed  sync.Cond // of everything below
	data     []byte    // guarded by mu; at most size bytes
	finished bool      // guarded by mu; the writing end has been closed
	left     bool      // guarded by mu; the reading end has been closed
	reader   deadline  // guarded by mu
	writer   deadline  // guarded by mu
}

// deadline is that of one side of a flow.
type deadline struct {
	timer  *time.Timer // nil: none is armed
	passed bool
}

func newFlow(size int) *flow {
	f := &flow{size: size}
	f.changed.L = &f.mu
	return f
}

func (f *flow) read(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.left:
			return 0, io.ErrClosedPipe
		case f.reader.passed:
			return 0, os.ErrDeadlineExceeded
		case len(f.data) > 0:
			n := copy(b, f.data)
			f.data = f.data[:copy(f.data, f.data[n:])]
			f.changed.Broadcast()
			return n, nil
		case f.finished:
			return 0, io.EOF
		case len(b) == 0:
			return 0, nil
		}
		f.changed.Wait()
	}
}

func (f *flow) write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	written := 0
	for {
		n, err := f.put(b[written:])
		written += n
		if err != nil || written == len(b) {
			return written, err
		}
		f.changed.Wait()
	}
}

func (f *flow) tryWrite(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.put(b)
}

// put takes as much as there is room for. Called with mu held.
func (f *flow) put(b []byte) (int, error) {
	switch {
	case f.left, f.finished:
		return 0, io.ErrClosedPipe
	case f.writer.passed:
		return 0, os.ErrDeadlineExceeded
	}
	n := min(f.size-len(f.data), len(b))
	f.data = append(f.data, b[:n]...)
	f.changed.Broadcast()
	return n, nil
}

// finish is called when the writing end is closed.
func (f *flow) finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finished = true
	f.writer.disarm()
	f.changed.Broadcast()
}

// abandon is called when the reading end is closed: nobody wants the data any more.
func (f *flow) abandon() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.data = true, nil
	f.reader.disarm()
	f.changed.Broadcast()
}

func (f *flow) setDeadline(d *deadline, t time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d.disarm()
	d.passed = false
	if ahead := time.Until(t); t.IsZero() || f.left && d == &f.reader || f.finished && d == &f.writer {
		return
	} else if ahead <= 0 {
		d.passed = true
	} else {
		var timer *time.Timer
		timer = time.AfterFunc(ahead, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if d.timer != timer {
				return // stopped too late, or replaced
			}
			d.timer, d.passed = nil, true
			f.changed.Broadcast()
		})
		d.timer = timer
	}
	f.changed.Broadcast()
}

func (d *deadline) disarm() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
