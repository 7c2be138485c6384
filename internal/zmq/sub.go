package zmq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"remora/internal/sleep"
)

const (
	// A Sub waits so long before it connects again: doubled from the first to the last, with up to half of it taken off at
	// random. The last is short because all that is published meanwhile is lost, and what one connects to is near.
	firstPause = 100 * time.Millisecond
	lastPause  = time.Second
	// goodTime is how long a connection has to last for the next pause to be a first one again.
	goodTime = 5 * time.Second
)

// Sub is a subscription to a publisher that keeps connecting, again and again, while it runs.
type Sub struct {
	// Endpoint is where the publisher listens.
	Endpoint Endpoint
	// Topic is the prefix of the first frame that is wanted; empty for every message.
	Topic string
	// Limits bound a message; a publisher that sends a larger one is left and connected to anew.
	Limits Limits
	// Dial replaces the dialer in tests; nil for the network.
	Dial func(ctx context.Context) (net.Conn, error)
}

// SubHandler is told what happens on a subscription, on the goroutine of Run, one call after the other. While a call lasts
// nothing is read: that is how a slow handler holds back the publisher.
type SubHandler interface {
	// Connected: there is a new connection and the subscription is on its way. What the publisher sends before it has taken
	// effect is not delivered, and neither is what it sent since the last connection ended.
	Connected()
	// Message brings the frames of a message, one or more; they are good until the call returns.
	Message(frames [][]byte)
	// Disconnected: the connection has ended, or connecting has failed, for this reason. Run tries again.
	Disconnected(err error)
}

// Run connects, subscribes and delivers until the context ends; it returns the context's error. It fails at once when the
// endpoint is none that one can connect to.
func (s *Sub) Run(ctx context.Context, handler SubHandler) error {
	if err := s.Endpoint.dialable(); err != nil && s.Dial == nil {
		return err
	}
	pause := firstPause
	for {
		lived, err := s.session(ctx, handler)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		handler.Disconnected(err)
		if lived {
			pause = firstPause
		}
		if !sleep.For(ctx, pause-rand.N(pause/2)) {
			return ctx.Err()
		}
		pause = min(2*pause, lastPause)
	}
}

// session is one connection from beginning to end. lived says that it was a good one, which a peer that hangs up at once does
// not make.
func (s *Sub) session(ctx context.Context, handler SubHandler) (lived bool, err error) {
	c, err := s.connect(ctx)
	if err != nil {
		return false, err
	}
	start := time.Now()
	defer c.Close()
	defer context.AfterFunc(ctx, c.Close)()
	if err = c.subscribe(s.Topic); err != nil {
		return false, err
	}
	handler.Connected()
	for {
		got, err := c.next()
		lived = lived || time.Since(start) > goodTime
		switch {
		case errors.Is(err, io.EOF):
			return lived, fmt.Errorf("the publisher closed the connection: %w", err)
		case err != nil:
			return lived, err
		case len(got.frames) > 0 && bytes.HasPrefix(got.frames[0], []byte(s.Topic)):
			lived = true
			handler.Message(got.frames)
		}
	}
}

func (s *Sub) connect(ctx context.Context) (*Conn, error) {
	if s.Dial == nil {
		return dial(ctx, s.Endpoint, typeSub, s.Limits)
	}
	raw, err := s.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return open(ctx, raw, typeSub, s.Limits)
}
