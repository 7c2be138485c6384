package zmq

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"remora/internal/sleep"
)

// acceptor owns a listener, the goroutine that accepts and one goroutine a peer.
type acceptor struct {
	listener net.Listener
	endpoint Endpoint
	peers    chan struct{} // one element a peer: a semaphore
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// listen binds an endpoint.
func listen(at Endpoint) (net.Listener, error) {
	if at.Network == "" {
		return nil, fmt.Errorf("%w: it is empty", ErrEndpoint)
	}
	if at.Network == "unix" {
		if err := removeStale(at.Path); err != nil {
			return nil, err
		}
	}
	return net.Listen(at.Network, at.address())
}

// boundTo is where a listener listens; the zero Endpoint for one that is not of the network.
func boundTo(listener net.Listener) Endpoint {
	switch at := listener.Addr().(type) {
	case *net.TCPAddr:
		host := at.IP.String()
		if at.Zone != "" {
			host += "%" + at.Zone
		}
		return Endpoint{Network: "tcp", Host: host, Port: uint16(at.Port)}
	case *net.UnixAddr:
		return Endpoint{Network: "unix", Path: at.Name}
	default:
		return Endpoint{}
	}
}

// accept serves each peer in a goroutine of its own. A peer beyond the number allowed is hung up on.
func accept(listener net.Listener, own socketType, limits Limits, peers int, serve func(ctx context.Context, c *Conn)) *acceptor {
	ctx, cancel := context.WithCancel(context.Background())
	a := &acceptor{listener: listener, endpoint: boundTo(listener), peers: make(chan struct{}, peers), ctx: ctx, cancel: cancel}
	a.wg.Go(func() {
		for {
			raw, err := listener.Accept()
			switch {
			case err == nil:
				a.start(raw, own, limits, serve)
			case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
				return
			default: // out of file descriptors, or a peer that left while it queued
				if !sleep.For(ctx, 50*time.Millisecond) {
					return
				}
			}
		}
	})
	return a
}

func (a *acceptor) start(raw net.Conn, own socketType, limits Limits, serve func(ctx context.Context, c *Conn)) {
	select {
	case a.peers <- struct{}{}:
	default:
		raw.Close()
		return
	}
	a.wg.Go(func() {
		defer func() { <-a.peers }()
		c, err := open(a.ctx, raw, own, limits)
		if err != nil {
			return // a peer that is none of ours; it has been hung up on
		}
		defer c.Close()
		defer context.AfterFunc(a.ctx, c.Close)()
		serve(a.ctx, c)
	})
}

// close ends everything and waits for it.
func (a *acceptor) close() {
	a.cancel()
	a.listener.Close()
	a.wg.Wait()
}

// removeStale removes the socket file of a listener that has gone, as libzmq does; one that somebody listens at stays, and
// binding it fails then.
func removeStale(path string) error {
	if path[0] == '@' {
		return nil // the abstract name space has no files
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%w: %s is a file but no socket", ErrEndpoint, path)
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return os.Remove(path)
	}
	return c.Close()
}
