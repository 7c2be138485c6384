package requestplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"remora/internal/rawconn"
	"remora/internal/sleep"
)

// Dialer opens response streams. Zero values mean the defaults.
type Dialer struct {
	Timeout    time.Duration // of one attempt, handshake included; default 5 s
	Attempts   int           // how often a refused connection is tried; default 3
	RetryDelay time.Duration // before the second attempt, doubled for each further one; default 50 ms
	Linger     time.Duration // how long an ended stream waits for its consumer to close; default 10 s

	// DialContext opens the connection; nil: plain TCP, with keepalive, so that a dead host is noticed in about half a minute.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	defaultDialTimeout  = 5 * time.Second
	defaultDialAttempts = 3
	defaultRetryDelay   = 50 * time.Millisecond
	defaultLinger       = 10 * time.Second
	// maxRetryDelay is between two attempts while there is no descriptor.
	maxRetryDelay = 400 * time.Millisecond
)

// Dial connects to where info awaits the response and sends the handshake. It tries again, briefly, where the connection is
// refused, and for as long as one attempt may take while the process has no file descriptor left. on gets every Event of the
// consumer, see ResponseStream; it may be called before Dial returns.
func (d *Dialer) Dial(ctx context.Context, info ConnectionInfo, on func(Event)) (*ResponseStream, error) {
	addr, err := parseAddress(info.Address)
	if err != nil {
		return nil, fmt.Errorf("dial response stream: %w", err)
	}
	conn, err := d.connect(ctx, addr, &info)
	if err != nil {
		return nil, fmt.Errorf("dial response stream %s: %w", addr, err)
	}
	s := &ResponseStream{
		conn:   conn,
		on:     on,
		linger: orDefault(d.Linger, defaultLinger),
		done:   make(chan struct{}),
	}
	go s.read()
	return s, nil
}

func (d *Dialer) connect(ctx context.Context, address netip.AddrPort, info *ConnectionInfo) (net.Conn, error) {
	delay := orDefault(d.RetryDelay, defaultRetryDelay)
	patience := time.Now().Add(orDefault(d.Timeout, defaultDialTimeout))
	for attempt := 1; ; attempt++ {
		conn, err := d.attempt(ctx, address, info)
		if err == nil {
			return conn, nil
		}
		switch {
		case noDescriptor(err) && time.Now().Before(patience):
			delay = min(delay, maxRetryDelay)
		case !errors.Is(err, syscall.ECONNREFUSED), attempt >= orDefault(d.Attempts, defaultDialAttempts):
			return nil, err
		}
		if !sleep.For(ctx, delay) {
			return nil, fmt.Errorf("%w after %w", context.Cause(ctx), err)
		}
		delay *= 2
	}
}

// noDescriptor is a failure of our own that passes when others end. It is worth waiting for: the request is accepted already, and
// a frontend that is never dialled waits for ever.
func noDescriptor(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func (d *Dialer) attempt(ctx context.Context, address netip.AddrPort, info *ConnectionInfo) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, orDefault(d.Timeout, defaultDialTimeout))
	defer cancel()
	conn, err := d.open(ctx, address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	_, err = conn.Write(appendTwoPart(nil, encodeHandshake(info), nil))
	if !stop() && err == nil { // the deadline has been set, or is about to be
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return conn, nil
}

func (d *Dialer) open(ctx context.Context, address netip.AddrPort) (net.Conn, error) {
	if d.DialContext != nil {
		return d.DialContext(ctx, "tcp", address.String())
	}
	return rawconn.Dial(ctx, address) //nolint:wrapcheck // the caller says where and what for
}

func orDefault[T int | time.Duration](v, fallback T) T {
	if v <= 0 {
		return fallback
	}
	return v
}
