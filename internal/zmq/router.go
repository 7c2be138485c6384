package zmq

import (
	"context"
	"net"
	"time"
)

// RouterConfig sets bounds; a zero field means its default.
type RouterConfig struct {
	// Peers is the number of peers at once, 64 by default; further ones are hung up on.
	Peers int
	// SendTime bounds how long one answer may wait for a peer that does not read, 10 s by default; then it is hung up on.
	SendTime time.Duration
	// Limits bound a request.
	Limits Limits
}

func (c RouterConfig) withDefaults() RouterConfig {
	if c.Peers <= 0 {
		c.Peers = 64
	}
	if c.SendTime <= 0 {
		c.SendTime = 10 * time.Second
	}
	return c
}

// Router is a ROUTER socket that listens and answers requests. It needs no identities: an answer goes to the connection that
// asked.
type Router struct {
	acceptor *acceptor
}

// Answerer handles one request of a peer, on that peer's goroutine; its requests come one after the other. The frames are good
// until the call returns. reply sends one message of answer; it fails when the peer has gone or does not read, or when the
// socket is being closed, and there is no point in going on then.
type Answerer func(request [][]byte, reply func(frames ...[]byte) error)

// ListenRouter binds an endpoint.
func ListenRouter(at Endpoint, config RouterConfig, answer Answerer) (*Router, error) {
	listener, err := listen(at)
	if err != nil {
		return nil, err
	}
	return NewRouter(listener, config, answer), nil
}

// NewRouter takes a listener over.
func NewRouter(listener net.Listener, config RouterConfig, answer Answerer) *Router {
	config = config.withDefaults()
	return &Router{accept(listener, typeRouter, config.Limits, config.Peers, func(ctx context.Context, c *Conn) {
		reply := func(frames ...[]byte) error {
			within, cancel := context.WithTimeout(ctx, config.SendTime)
			defer cancel()
			return c.Send(within, frames...)
		}
		for {
			got, err := c.next()
			if err != nil {
				return
			}
			if got.frames != nil {
				answer(got.frames, reply)
			}
		}
	})}
}

// Endpoint is where the socket listens: an address, even where a name or a wildcard was asked for, and the port in use.
func (r *Router) Endpoint() Endpoint { return r.acceptor.endpoint }

// Close ends all connections and waits for the goroutines, answers included.
func (r *Router) Close() { r.acceptor.close() }
