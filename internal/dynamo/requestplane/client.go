package requestplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// Client sends requests to workers over pooled connections. Zero values mean the defaults; it must not be copied after its
// first use.
type Client struct {
	AckTimeout     time.Duration // for the acknowledgement, and for connecting; default 5 s
	IdleTimeout    time.Duration // after which an unused connection is closed; default 300 s
	MaxConnections int           // per worker; default 8. More are opened while all wait for acknowledgements
	MaxOutstanding int           // requests waiting for an acknowledgement per connection; default 1024
	MaxMessage     int           // whole frame in bytes; default DefaultMaxMessage

	// DialContext opens a connection; nil: plain TCP without a proxy.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)

	readers sync.WaitGroup // one for each connection

	mu     sync.Mutex
	pools  map[string][]*clientConn // by ip:port; guarded by mu
	closed bool                     // guarded by mu
}

// Send sends one request to target, which is "ip:port/path" as found in discovery, and waits for the acknowledgement. A request
// that was not accepted ends in a *Refusal, or in an error that wraps one of ErrAckTimeout, ErrConnection, ErrUnknownAck,
// ErrBusy, ErrBadAddress or ErrClosed; after ErrAckTimeout and ErrConnection the worker may have got it all the same.
func (c *Client) Send(ctx context.Context, target string, headers Headers, control *Control, body []byte) error {
	address, path, ok := strings.Cut(strings.TrimPrefix(target, "tcp://"), "/")
	if !ok {
		return fmt.Errorf("%w with a path: %q", ErrBadAddress, target)
	}
	if _, err := parseAddress(address); err != nil {
		return err
	}
	msg, err := encodeFrame(path, encodeHeaders(path, &headers), encodeControl(control), body)
	if err != nil {
		return fmt.Errorf("request frame: %w", err)
	}
	if limit := orDefault(c.MaxMessage, DefaultMaxMessage); len(msg) > limit {
		return fmt.Errorf("request frame of %d bytes is longer than %d", len(msg), limit)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, orDefault(c.AckTimeout, defaultDialTimeout), ErrAckTimeout)
	defer cancel()
	conn, err := c.conn(ctx, address)
	if err != nil {
		return err
	}
	answer, err := conn.send(ctx, msg)
	if err != nil {
		return err
	}
	select {
	case got := <-answer:
		if got.err != nil {
			return got.err
		}
		if err := ackError(got.text); errors.Is(err, ErrUnknownAck) {
			return fmt.Errorf("%w: %.100q", err, got.text)
		} else if err != nil {
			return err
		}
		return nil
	case <-ctx.Done(): // the answer's place in the queue stays taken, so later ones are not mixed up
		return context.Cause(ctx)
	}
}

// Close closes every connection and waits for their goroutines.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	var all []*clientConn
	for _, pool := range c.pools {
		all = append(all, pool...)
	}
	c.mu.Unlock()
	for _, conn := range all {
		conn.fail(ErrClosed)
	}
	c.readers.Wait()
}

// conn returns the connection to address with the fewest requests outstanding, or a new one where all are busy.
func (c *Client) conn(ctx context.Context, address string) (*clientConn, error) {
	c.mu.Lock()
	best, err := c.pooled(address, false)
	c.mu.Unlock()
	if err != nil || best != nil {
		return best, err
	}
	dial := c.DialContext
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	raw, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConnection, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if best, err := c.pooled(address, true); err != nil || best != nil { // others have dialled meanwhile
		_ = raw.Close()
		return best, err
	}
	conn := &clientConn{
		conn: raw, writing: make(chan struct{}, 1),
		idle: orDefault(c.IdleTimeout, 300*time.Second), limit: orDefault(c.MaxOutstanding, 1024),
	}
	if c.pools == nil {
		c.pools = map[string][]*clientConn{}
	}
	c.pools[address] = append(c.pools[address], conn)
	c.readers.Go(func() {
		conn.readAcks()
		c.forget(address, conn)
	})
	return conn, nil
}

// pooled returns the usable connection with the fewest requests outstanding if it has none or the pool is full, else nil. With
// dialled, only a full pool counts. The caller holds mu.
func (c *Client) pooled(address string, dialled bool) (*clientConn, error) {
	if c.closed {
		return nil, ErrClosed
	}
	var best *clientConn
	least := 0
	for _, conn := range c.pools[address] {
		if n, usable := conn.outstanding(); usable && (best == nil || n < least) {
			best, least = conn, n
		}
	}
	if full := len(c.pools[address]) >= orDefault(c.MaxConnections, 8); full || least == 0 && !dialled {
		return best, nil
	}
	return nil, nil //nolint:nilnil // none is a normal answer
}

func (c *Client) forget(address string, conn *clientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var left []*clientConn
	for _, other := range c.pools[address] {
		if other != conn {
			left = append(left, other)
		}
	}
	if len(left) == 0 {
		delete(c.pools, address)
		return
	}
	c.pools[address] = left
}
