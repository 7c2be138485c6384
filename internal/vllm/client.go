package vllm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"remora/internal/rawconn"
	"remora/internal/vllm/h2"
)

const (
	// streamWindow is how much of a stream may lie unread here. It bounds the memory that one consumer who does not read can
	// hold (about five thousand token messages); messages larger than it pass, as grpc-go widens the window for them.
	streamWindow = 256 << 10
	// connWindow must only cover what is on its way, since grpc-go returns connection credit on arrival and not on reading:
	// 4 MiB carry 4 GB/s at a round trip of 1 ms. Both windows are static because the estimator that grpc-go would run
	// instead sends pings of its own and cannot know better on a loopback.
	connWindow = 4 << 20
	// maxMessage fits logprob and routed-expert payloads of up to 63 MiB, which the engine sends without limit.
	maxMessage = 64 << 20
	// A ping each 30 s notices a dead peer within 50 s, and no proxy in between sees an idle connection.
	pingInterval = 30 * time.Second
	pingTimeout  = 20 * time.Second
	// A lost connection is tried again at these intervals, so that an engine which returns is found within a second.
	reconnectFirst = 100 * time.Millisecond
	reconnectMost  = time.Second
)

// Defaults of Config.
const (
	DefaultAttemptTimeout = 30 * time.Second
	DefaultRetryInterval  = time.Second
	DefaultAbortTimeout   = 5 * time.Second
	DefaultMaxConnections = 32
)

// Backend is what carries generation streams. Control and health are calls of grpc-go with either.
type Backend uint8

// The backends.
const (
	// BackendH2 is package h2: its own HTTP/2 connections, which hand on all that has arrived together.
	BackendH2 Backend = iota
	// BackendGRPC is grpc-go, with a goroutine for each stream.
	BackendGRPC
)

// Dialer makes a connection to host:port. The context ends with the attempt.
type Dialer func(ctx context.Context, address string) (net.Conn, error)

// Config says how to reach an engine.
type Config struct {
	Endpoint       Endpoint
	Backend        Backend       // what carries generation streams
	Connections    int           // in the pool; 0: 1
	MaxConnections int           // as far as BackendH2 lets the pool grow with its streams; 0: DefaultMaxConnections
	AttemptTimeout time.Duration // of one connection attempt or health check; 0: DefaultAttemptTimeout
	RetryInterval  time.Duration // between attempts and between health checks; 0: DefaultRetryInterval
	AbortTimeout   time.Duration // of one Abort; 0: DefaultAbortTimeout
	Dialer         Dialer        // nil: TCP
	Log            *slog.Logger  // nil: no log
}

func (c Config) withDefaults() Config {
	c.Connections = max(c.Connections, 1)
	if c.AttemptTimeout <= 0 {
		c.AttemptTimeout = DefaultAttemptTimeout
	}
	if c.RetryInterval <= 0 {
		c.RetryInterval = DefaultRetryInterval
	}
	if c.MaxConnections <= 0 {
		c.MaxConnections = DefaultMaxConnections
	}
	if c.AbortTimeout <= 0 {
		c.AbortTimeout = DefaultAbortTimeout
	}
	if c.Dialer == nil {
		c.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return nil, err
			}
			return rawconn.Wrap(conn), nil
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Client is a pool of connections to one engine. All its methods may be called from any goroutine.
type Client struct {
	config Config             // set once
	conns  []*grpc.ClientConn // set once; each has its own TCP connection
	pool   *h2.Pool           // set once; nil with BackendGRPC
	// side is for health and Abort: on a connection full of tokens they would wait in line, and an engine that has too much to
	// say must not be taken for one that says nothing. Set once; it connects with its first call.
	side *grpc.ClientConn
	// heard counts the messages of streams: proof that the engine works, when it has no time for a health check.
	heard atomic.Uint64
	ear   ear           // on side and pool
	next  atomic.Uint64 // round-robin of conns

	mu     sync.Mutex
	open   map[Stream]struct{} // guarded by mu
	closed bool                // guarded by mu
	idle   chan struct{}       // guarded by mu; made by Close, closed when open is empty
}

// Endpoint is where the client was told to connect.
func (c *Client) Endpoint() Endpoint { return c.config.Endpoint }

// pick returns the next connection that is ready. When none is, it returns the next one anyway: the call then waits for the
// attempt under way, or fails with the cause of the last one.
func (c *Client) pick() *grpc.ClientConn {
	count := uint64(len(c.conns))
	first := c.next.Add(1)
	for offset := range count {
		conn := c.conns[(first+offset)%count]
		switch conn.GetState() {
		case connectivity.Ready:
			return conn
		case connectivity.Idle:
			// A connection that was lost stays idle until someone wants it.
			conn.Connect()
		case connectivity.Connecting, connectivity.TransientFailure, connectivity.Shutdown:
		}
	}
	return c.conns[first%count]
}

// aside returns the connection that carries no streams.
func (c *Client) aside() *grpc.ClientConn {
	if c.side.GetState() == connectivity.Idle {
		c.side.Connect()
	}
	return c.side
}

// Close drops all streams, waits until their goroutines have ended, and closes the connections. When the context ends
// before, because a sink call does not return, it closes the connections all the same and says how many streams are left.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	if c.idle == nil {
		c.idle = make(chan struct{})
		if len(c.open) == 0 {
			close(c.idle)
		}
	}
	idle := c.idle
	for s := range c.open {
		s.Drop()
	}
	c.mu.Unlock()

	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		c.mu.Lock()
		err = fmt.Errorf("close engine client: %d streams still in their sink: %w", len(c.open), context.Cause(ctx))
		c.mu.Unlock()
	}
	return errors.Join(err, c.disconnect())
}

func (c *Client) disconnect() error {
	if c.pool != nil {
		c.pool.Close()
	}
	return closeAll(append(c.conns, c.side))
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

func closeAll(conns []*grpc.ClientConn) error {
	var errs []error
	for _, conn := range conns {
		if conn == nil {
			continue
		}
		if err := conn.Close(); err != nil && status.Code(err) != codes.Canceled {
			errs = append(errs, fmt.Errorf("close engine connection: %w", err))
		}
	}
	return errors.Join(errs...)
}

// newConn makes a connection that dials through the given function. It does not connect yet.
func newConn(config Config, dial func(ctx context.Context) (net.Conn, error)) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(
		// One address that the resolver passes on and the dialer does not read: the endpoint is no URL and needs no parsing.
		"passthrough:///engine",
		grpc.WithAuthority(config.Endpoint.Address()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithUserAgent("remora"),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableHealthCheck(),
		grpc.WithDisableRetry(),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: pingInterval, Timeout: pingTimeout, PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: reconnectFirst, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectMost,
			},
			MinConnectTimeout: config.AttemptTimeout,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("make engine connection: %w", err)
	}
	return conn, nil
}
