package h2

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

const (
	// connWindow covers what is on its way; credit is given back on arrival. Streams hold back themselves.
	connWindow = 4 << 20
	// maxHeaderList bounds the headers of one answer, which carry the engine's error text.
	maxHeaderList = 1 << 20
	// readBuffer is what one system call may bring.
	readBuffer = 32 << 10
	// lastID is where a connection is replaced; the protocol has twice as many.
	lastID = 1 << 30
	// defaultWindow is that of the protocol, both ways.
	defaultWindow = 65535
	maxWindow     = math.MaxInt32
	minFrameSize  = 16384
	// farewell is how long a GOAWAY may take.
	farewell = time.Second
)

var (
	errNotNeeded = errors.New("the connection is not needed any more")
	errDrained   = errors.New("the engine has closed the connection: it told us to go away, and the last stream has ended")
	errSilent    = errors.New("keepalive ping not answered in time")
	errSpent     = errors.New("the connection has used up its stream ids")
)

// conn is one connection.
type conn struct {
	pool    *Pool         // set once
	raw     net.Conn      // set once
	born    time.Time     // set once
	retired chan struct{} // closed by Pool.retire
	usable  chan struct{} // closed by the reader when the peer's settings have arrived
	wake    chan struct{} // holds one token: the writer has something to do
	heard   atomic.Int64  // when something was read last, in nanoseconds after born

	// Guarded by Pool.mu.
	base   bool   // replaced when lost
	listed bool   // in Pool.ready
	gone   bool   // retired
	why    error  // it was retired
	load   int    // streams, while listed
	limit  uint32 // the peer's, of streams

	// The reader's, who may be another goroutine after each Stream.Yield.
	in         *bufio.Reader
	framer     *http2.Framer
	touched    []*Stream // have something to tell
	served     int       // of touched
	settled    bool      // the peer's first settings have arrived
	unreturned int       // bytes that arrived and were not given back to the connection's window

	mu         sync.Mutex
	streams    map[uint32]*Stream // guarded by mu; nil when dead
	nextID     uint32             // guarded by mu
	lastGoAway uint32             // guarded by mu
	draining   bool               // guarded by mu; the peer takes no more streams
	dead       bool               // guarded by mu
	out        outbox             // guarded by mu; frames for the writer
	frames     *http2.Framer      // guarded by mu; writes to out
	fields     *hpack.Encoder     // guarded by mu; writes to block
	block      bytes.Buffer       // guarded by mu
	sending    []*Stream          // guarded by mu; have bytes to send and window for them, in turn
	sendWindow int64              // guarded by mu; the connection's
	newWindow  int64              // guarded by mu; of streams that are opened
	frameSize  int                // guarded by mu; the largest payload that the peer takes
	pinged     time.Duration      // guarded by mu; after born, when a ping was sent that nothing was heard since; 0: none
	keepalive  *time.Timer        // guarded by mu
}

// connect makes one attempt: until the peer's settings have arrived.
func (p *Pool) connect(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.AttemptTimeout)
	defer cancel()
	raw, err := p.config.Dial(ctx)
	if err != nil {
		return nil, err
	}
	c := newConn(p, raw)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errors.Join(ErrClosed, raw.Close())
	}
	p.live[c] = true
	p.goroutines.Add(1) // the reader's; see read
	p.mu.Unlock()
	p.goroutines.Go(c.write)
	go c.read()
	select {
	case <-c.usable:
		return c, nil
	case <-c.retired:
		p.mu.Lock()
		defer p.mu.Unlock()
		return nil, c.why
	case <-ctx.Done():
		c.fail(errors.New("attempt exceeded its deadline: connected, but the peer sends no HTTP/2 settings (no gRPC server on this port?)"), nil)
		return nil, fmt.Errorf("the peer sends no HTTP/2 settings: %w", context.Cause(ctx))
	}
}

func newConn(p *Pool, raw net.Conn) *conn {
	c := &conn{
		pool: p, raw: raw, born: time.Now(), limit: math.MaxUint32,
		retired: make(chan struct{}), usable: make(chan struct{}), wake: make(chan struct{}, 1),
		streams: make(map[uint32]*Stream), nextID: 1, lastGoAway: math.MaxInt32,
		sendWindow: defaultWindow, newWindow: defaultWindow, frameSize: minFrameSize,
	}
	c.in = bufio.NewReaderSize(hearing{conn: c}, readBuffer)
	c.framer = http2.NewFramer(nil, c.in)
	c.framer.SetMaxReadFrameSize(minFrameSize)
	c.framer.SetReuseFrames()
	c.framer.MaxHeaderListSize = maxHeaderList
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.frames = http2.NewFramer(&c.out, nil)
	c.fields = hpack.NewEncoder(&c.block)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = append(c.out, http2.ClientPreface...)
	c.note(c.frames.WriteSettings(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaderList},
	))
	c.note(c.frames.WriteWindowUpdate(0, connWindow-defaultWindow))
	c.keepalive = time.AfterFunc(p.config.PingInterval, c.checkAlive)
	c.signal()
	return c
}

// hearing is the connection as the reader reads it.
type hearing struct{ conn *conn }

// Read notes that the peer lives.
func (h hearing) Read(p []byte) (int, error) {
	n, err := h.conn.raw.Read(p)
	if n > 0 {
		h.conn.heard.Store(int64(time.Since(h.conn.born)))
		if all := h.conn.pool.config.Heard; all != nil {
			all.Add(1)
		}
	}
	return n, err
}

// checkAlive is the keepalive timer.
func (c *conn) checkAlive() {
	config := c.pool.config
	c.mu.Lock()
	if c.dead {
		c.mu.Unlock()
		return
	}
	now, heard := time.Since(c.born), time.Duration(c.heard.Load())
	if heard >= c.pinged { // the answer may be as quick as the clock
		c.pinged = 0
	}
	var next time.Duration
	switch {
	case c.pinged > 0 && now-c.pinged >= config.PingTimeout:
		c.mu.Unlock()
		c.fail(errSilent, nil)
		return
	case c.pinged > 0:
		next = config.PingTimeout - (now - c.pinged)
	case now-heard >= config.PingInterval:
		c.note(c.frames.WritePing(false, [8]byte{'r', 'e', 'm', 'o', 'r', 'a'}))
		c.signal()
		c.pinged, next = now, config.PingTimeout
	default:
		next = config.PingInterval - (now - heard)
	}
	c.keepalive.Reset(next)
	c.mu.Unlock()
}

// fail ends the connection and its streams. The cause is told to them; a code to the peer as well, when it is its fault.
func (c *conn) fail(cause error, fault *http2.ErrCode) {
	c.mu.Lock()
	if c.dead {
		c.mu.Unlock()
		return
	}
	c.dead = true
	code := http2.ErrCodeNo
	if fault != nil {
		code = *fault
	}
	c.note(c.frames.WriteGoAway(0, code, nil))
	c.keepalive.Stop()
	streams := c.streams
	c.streams, c.sending = nil, nil
	submitted := make(map[*Stream]bool, len(streams))
	for _, s := range streams {
		submitted[s] = s.submitted
		c.pool.recycle(s.body)
		s.body = nil
	}
	c.mu.Unlock()
	// It may be in a write that the peer does not take. An error means that the connection is closed already.
	_ = c.raw.SetWriteDeadline(time.Now().Add(farewell))
	c.signal()
	c.pool.retire(c, cause)
	for s, sent := range submitted {
		end := End{Code: codes.Unavailable, Message: lostText(cause), Transport: true, NotSent: !sent}
		if sent {
			s.finish(end)
			s.wake()
			continue
		}
		c.pool.retry(s, end)
	}
}

func lostText(cause error) string { return fmt.Sprintf("error reading from server: %v", cause) }

// readCause puts the usual mistakes in words.
func readCause(err error, settled bool) error {
	switch {
	case settled:
		return err
	case strings.Contains(err.Error(), "HTTP/1"):
		return errors.New("the peer answers in HTTP/1: this is an HTTP port, not vLLM's gRPC port")
	default:
		return fmt.Errorf("the peer does not speak plain HTTP/2 (TLS, or no gRPC server on this port?): %w", err)
	}
}
