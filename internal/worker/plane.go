package worker

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"golang.org/x/sync/errgroup"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/requestplane"
)

// Plane brings requests to the worker.
type Plane interface {
	// Attach begins to take the requests of one of the worker's endpoints, and returns how its instance record says to call it.
	Attach(a discovery.Address, id uint64, h requestplane.Handler) (discovery.Transport, error)
	// Close takes no more requests, ends the contexts of those that run, and returns when they have. It may be called again.
	Close()
}

// openPlane opens the plane of the configuration.
func (w *worker) openPlane(stop context.Context, group *errgroup.Group) (Plane, error) {
	if w.cfg.OpenPlane != nil {
		return w.cfg.OpenPlane(stop)
	}
	listener, hostPort, err := w.listenAt(w.cfg.Port)
	if err != nil {
		at := net.JoinHostPort(w.host(), strconv.Itoa(int(w.cfg.Port)))
		return nil, fmt.Errorf("the request plane can't listen on %s (see DYN_TCP_RPC_HOST and DYN_TCP_RPC_PORT): %w", at, err)
	}
	server := requestplane.NewServer(requestplane.ServerConfig{Logger: w.log, MaxMessage: w.cfg.MaxMessage})
	group.Go(func() error { return server.Serve(listener) })
	return tcpPlane{server, hostPort}, nil
}

// tcpPlane is the TCP request plane. Requests for an endpoint that is not attached yet are refused.
type tcpPlane struct {
	server   *requestplane.Server
	hostPort string
}

// Attach implements Plane.
func (p tcpPlane) Attach(a discovery.Address, id uint64, h requestplane.Handler) (discovery.Transport, error) {
	p.server.Handle(a.Path(id), h)
	return discovery.Transport{TCP: a.TCP(p.hostPort, id)}, nil
}

// Close implements Plane.
func (p tcpPlane) Close() { p.server.Close() }
