package h2

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"remora/internal/sleep"
	"remora/internal/vllm/decode"
)

// Config says how to reach an engine.
type Config struct {
	Dial           func(ctx context.Context) (net.Conn, error)
	Authority      string        // host:port, for the requests' headers
	AttemptTimeout time.Duration // of one connection attempt
	// After a lost connection attempts follow each other at these intervals; an attempt that fails makes the next one longer.
	ReconnectFirst, ReconnectMost time.Duration
	// MaxConnections is how far the pool grows with its streams beyond the connections that were made with Connect.
	MaxConnections int
	// A connection on which nothing was heard for PingInterval is pinged, and given up PingTimeout later.
	PingInterval, PingTimeout time.Duration
	Heard                     *atomic.Uint64 // counts the reads that brought something, on whatever connection; nil: nobody counts
	Log                       *slog.Logger
}

const (
	// streamsEach is how many streams share a connection before the next one is used: together they save system calls, apart
	// they use more cores. An engine's server takes 200 or more on each.
	streamsEach = 256
	// crowd is how many streams a connection has, on average, before the pool grows.
	crowd = 128
	// shortLived is the age below which a lost connection is not replaced at once: a peer that takes connections and closes
	// them is not to be asked in a loop.
	shortLived = time.Second
)

// ErrClosed is the cause of what ends because of Close.
var ErrClosed = errors.New("the engine client is closed")

// Pool keeps connections to one engine. Its methods may be called from any goroutine.
type Pool struct {
	config Config          // set once
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	bodies sync.Pool // *body
	// decoders are for goroutines other than readers. *decode.Decoder
	decoders   sync.Pool
	goroutines sync.WaitGroup // of keepers, attempts, readers and writers

	mu       sync.Mutex
	closed   bool           // guarded by mu
	live     map[*conn]bool // guarded by mu; until their goroutines have ended
	ready    []*conn        // guarded by mu; take streams
	base     int            // guarded by mu; connections that are replaced when lost
	attempts int            // guarded by mu; under way or promised
	growing  bool           // guarded by mu; an attempt for one more is under way
	last     error          // guarded by mu; why the last attempt failed
	waiting  []*Stream      // guarded by mu; for a connection, or for room on one
	streams  int            // guarded by mu; on ready connections
}

// New makes a pool without connections.
func New(config Config) *Pool {
	p := &Pool{config: config, live: make(map[*conn]bool)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Connect adds a connection, which is replaced from then on when it is lost. It makes one attempt.
func (p *Pool) Connect(ctx context.Context) error {
	c, err := p.connect(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err = p.welcome(c, true); err != nil {
		return err
	}
	p.base++
	p.goroutines.Go(func() { p.keep(c) })
	return nil
}

// welcome lets streams on; base is for a connection that has a keeper. Called with mu held.
func (p *Pool) welcome(c *conn, base bool) error {
	switch {
	case p.closed:
		return ErrClosed
	case c.gone:
		return c.why // lost before it was of use
	}
	c.base, c.listed = base, true
	p.ready = append(p.ready, c)
	p.admit()
	return nil
}

// keep replaces a connection each time it is lost or told to go away.
func (p *Pool) keep(c *conn) {
	for {
		select {
		case <-c.retired:
		case <-p.ctx.Done():
			return
		}
		if time.Since(c.born) < shortLived && !sleep.For(p.ctx, p.config.ReconnectFirst) {
			return
		}
		if c = p.replace(); c == nil {
			return
		}
	}
}

// replace makes attempts until one succeeds, the first of which is promised already. It returns nil when the pool is closed.
func (p *Pool) replace() *conn {
	delay := p.config.ReconnectFirst
	for {
		c, err := p.connect(p.ctx)
		p.mu.Lock()
		p.attempts--
		if err == nil {
			err = p.welcome(c, true)
		}
		if err == nil {
			p.mu.Unlock()
			return c
		}
		p.last = err
		abandoned := p.abandoned()
		p.mu.Unlock()
		endAll(abandoned, p.notConnected(err))
		p.config.Log.Debug("engine not connected again yet", "cause", err)
		if !sleep.For(p.ctx, time.Duration(float64(delay)*(0.8+0.4*rand.Float64()))) {
			return nil
		}
		delay = min(delay*8/5, p.config.ReconnectMost)
		p.mu.Lock()
		p.attempts++
		p.mu.Unlock()
	}
}

// abandoned takes out the streams that nothing is under way for. Called with mu held.
func (p *Pool) abandoned() []*Stream {
	if p.attempts > 0 || len(p.ready) > 0 {
		return nil
	}
	streams := p.waiting
	p.waiting = nil
	return streams
}

func (p *Pool) notConnected(cause error) End {
	return End{
		Code: codes.Unavailable, Message: fmt.Sprintf("connection error: %v", cause), Transport: true, NotSent: true,
	}
}

func endAll(streams []*Stream, end End) {
	for _, s := range streams {
		s.finish(end)
		s.wake()
	}
}

// grow adds a connection that is not replaced when lost. Called with mu held.
func (p *Pool) grow() {
	if p.growing || p.closed || len(p.ready) == 0 || len(p.ready) >= max(p.base, p.config.MaxConnections) {
		return
	}
	p.growing = true
	p.goroutines.Go(func() {
		c, err := p.connect(p.ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.growing = false
		if err == nil {
			err = p.welcome(c, false)
		}
		if err != nil {
			p.config.Log.Debug("no more connections to the engine", "cause", err)
		}
	})
}

// release counts a stream that is no longer on its connection, and lets the next one on.
func (p *Pool) release(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.listed {
		return
	}
	c.load--
	p.streams--
	if len(p.waiting) > 0 {
		p.admit()
		return
	}
	p.shrink()
}

// shrink closes a connection that the pool grew by, when those that are left do not make it grow again soon. Called with mu
// held.
func (p *Pool) shrink() {
	if len(p.ready) <= p.base || p.streams >= crowd/2*(len(p.ready)-1) {
		return
	}
	for _, c := range p.ready {
		if !c.base && c.load == 0 {
			p.unlist(c)
			p.goroutines.Go(func() { c.fail(errNotNeeded, nil) })
			return
		}
	}
}

// setLimit is the peer's word on how many streams it takes on a connection.
func (p *Pool) setLimit(c *conn, limit uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.limit = limit
	p.admit()
}

// retire takes no more streams on the connection. Its keeper replaces it.
func (p *Pool) retire(c *conn, cause error) {
	p.mu.Lock()
	if c.gone {
		p.mu.Unlock()
		return
	}
	c.gone, c.why = true, cause
	p.unlist(c)
	if c.base && !p.closed {
		p.attempts++ // promised by the keeper
	}
	p.last = cause
	abandoned := p.abandoned()
	p.admit()
	p.mu.Unlock()
	close(c.retired)
	endAll(abandoned, p.notConnected(cause))
}

// unlist lets no more streams on. Called with mu held.
func (p *Pool) unlist(c *conn) {
	if !c.listed {
		return
	}
	c.listed = false
	p.streams -= c.load
	p.ready = slices.DeleteFunc(p.ready, func(other *conn) bool { return other == c })
}

func (p *Pool) decoder() *decode.Decoder {
	if d, ok := p.decoders.Get().(*decode.Decoder); ok {
		return d
	}
	return &decode.Decoder{Limit: maxMessage}
}

// Connections says how many connections take streams now.
func (p *Pool) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready)
}

// Close ends all connections and with them all streams, and waits for the pool's goroutines. Those of streams that have
// yielded inside a sink call end after it.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	waiting := p.waiting
	p.waiting = nil
	conns := make([]*conn, 0, len(p.live))
	for c := range p.live {
		conns = append(conns, c)
	}
	p.mu.Unlock()
	p.cancel()
	endAll(waiting, p.notConnected(ErrClosed))
	for _, c := range conns {
		c.fail(ErrClosed, nil)
	}
	p.goroutines.Wait()
}
