package zmq

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// handshakeTime bounds greeting and READY together.
	handshakeTime = 10 * time.Second
	// commandTime bounds how long the answer to a command may wait for a peer that does not read.
	commandTime = 10 * time.Second
)

// Conn is one established connection to a peer socket. One goroutine may receive while others send.
type Conn struct {
	net   net.Conn
	in    reader     // owned by whoever receives
	minor byte       // the lower of both sides' minor versions; set once
	mu    sync.Mutex // guards writing, so that messages and commands stay whole
	out   []byte     // guarded by mu: reused encoding buffer
}

// DialDealer connects a DEALER to a ROUTER, or to a REP when the caller writes the empty frame itself. It does not try again.
func DialDealer(ctx context.Context, to Endpoint, limits Limits) (*Conn, error) {
	return dial(ctx, to, typeDealer, limits)
}

func dial(ctx context.Context, to Endpoint, own socketType, limits Limits) (*Conn, error) {
	if err := to.dialable(); err != nil {
		return nil, err
	}
	raw, err := new(net.Dialer).DialContext(ctx, to.Network, to.address())
	if err != nil {
		return nil, err
	}
	c, err := open(ctx, raw, own, limits)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", to, err)
	}
	return c, nil
}

// NewDealer is DialDealer over a connection that is there already; it is closed when the handshake fails.
func NewDealer(ctx context.Context, raw net.Conn, limits Limits) (*Conn, error) {
	return open(ctx, raw, typeDealer, limits)
}

// open greets the peer over a fresh connection and closes it when that fails.
func open(ctx context.Context, raw net.Conn, own socketType, limits Limits) (*Conn, error) {
	c := &Conn{net: raw, in: reader{from: bufio.NewReaderSize(raw, 16<<10), limits: limits.withDefaults()}}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if err := c.under(ctx, c.net.SetDeadline, func() error { return c.handshake(own) }); err != nil {
		c.Close()
		return nil, fmt.Errorf("ZMTP handshake: %w", err)
	}
	return c, nil
}

func (c *Conn) handshake(own socketType) error {
	if _, err := c.net.Write(greeting()); err != nil {
		return err
	}
	var peers [greetingSize]byte
	if _, err := io.ReadFull(c.in.from, peers[:]); err != nil {
		return unexpected(err)
	}
	minor, err := parseGreeting(peers[:])
	if err != nil {
		return err
	}
	c.minor = min(minor, 1)
	if _, err = c.net.Write(appendReady(nil, own)); err != nil {
		return err
	}
	got, err := c.in.next()
	if err != nil {
		return unexpected(err)
	}
	switch got.name {
	case "READY":
	case "ERROR":
		return fmt.Errorf("%w: the peer refused: %s", ErrProtocol, errorReason(got.data))
	default:
		return fmt.Errorf("%w: the peer is not ready but sends something else", ErrProtocol)
	}
	peer, err := parseReady(got.data)
	if err == nil && !own.fits(peer) {
		err = fmt.Errorf("%w: the peer is a %q socket, which is no partner of %s", ErrProtocol, peer, own)
	}
	return err
}

// under runs f, which blocks on the network, and cuts it short when the context ends, by a deadline in the past. Afterwards
// there is no deadline, unless f was cut short.
func (c *Conn) under(ctx context.Context, setDeadline func(time.Time) error, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = setDeadline(time.Unix(1, 0)) // fails on a closed connection only, and then f ends anyway
		close(cut)
	})
	err := f()
	if stop() {
		return err
	}
	<-cut
	if err != nil {
		return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	return setDeadline(time.Time{}) // f was through before
}

// Receive returns the next message; its frames are good until the next call. A message that the context's end leaves
// half-read is lost with the connection: close it then. io.EOF means that the peer has closed between two messages.
func (c *Conn) Receive(ctx context.Context) (frames [][]byte, err error) {
	err = c.under(ctx, c.net.SetReadDeadline, func() (err error) {
		var got item
		for got.frames == nil {
			if got, err = c.next(); err != nil {
				return err
			}
		}
		frames = got.frames
		return nil
	})
	return frames, err
}

// next returns the next message, or a command that is not about the connection itself.
func (c *Conn) next() (item, error) {
	for {
		got, err := c.in.next()
		if err != nil {
			return item{}, closedHere(err)
		}
		switch got.name {
		case "PING":
			if err = c.pong(got.data); err != nil {
				return item{}, closedHere(err)
			}
		case "ERROR":
			return item{}, fmt.Errorf("%w: the peer gave up: %s", ErrProtocol, errorReason(got.data))
		default:
			return got, nil
		}
	}
}

// pong answers a PING, whose data are a time to live of two bytes, which asks us to end a silent connection and which
// keep-alives of TCP stand in for, and a context of up to 16 bytes that goes back.
func (c *Conn) pong(data []byte) error {
	if len(data) < 2 || len(data) > 2+16 {
		return fmt.Errorf("%w: a PING of %d bytes", ErrProtocol, len(data))
	}
	return c.command("PONG", data[2:])
}

// command sends a command, and gives up on a peer that does not read.
func (c *Conn) command(name string, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = appendCommand(c.out[:0], name, data)
	return c.flush(commandTime)
}

// flush writes out within a time; mu is held. A write that failed half-way leaves the connection of no use, so it is closed.
func (c *Conn) flush(within time.Duration) error {
	err := c.net.SetWriteDeadline(time.Now().Add(within))
	if err == nil {
		err = c.write(c.out)
	}
	if err == nil {
		err = c.net.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		c.Close()
	}
	return closedHere(err)
}

func (c *Conn) write(data []byte) error {
	_, err := c.net.Write(data)
	return closedHere(err)
}

// Send writes a message of at least one frame. When it fails, for whatever reason, the connection is closed.
func (c *Conn) Send(ctx context.Context, frames ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cap(c.out) > bigBuffer {
		c.out = nil
	}
	c.out = appendMessage(c.out[:0], frames)
	err := c.under(ctx, c.net.SetWriteDeadline, func() error { return c.write(c.out) })
	if err != nil {
		c.Close()
	}
	return err
}

// subscribe tells a publisher which topics are wanted: those that begin with the prefix.
func (c *Conn) subscribe(prefix string) error {
	if c.minor >= 1 {
		return c.command("SUBSCRIBE", []byte(prefix))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = appendFrame(c.out[:0], 0, append([]byte{1}, prefix...))
	return c.flush(commandTime)
}

// Close ends the connection, and whatever waits on it.
func (c *Conn) Close() { c.net.Close() }

// closedHere names the error of a connection that has been closed on our side.
func closedHere(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) {
		return ErrClosed
	}
	return err
}
