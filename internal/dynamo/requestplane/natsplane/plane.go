package natsplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/requestplane"
	"remora/internal/sleep"
)

// serviceVersion is what the micro service says of itself: the release of Dynamo whose protocol this is.
const serviceVersion = "1.6.1"

// Plane is one connection to a NATS server and the endpoints on it.
type Plane struct {
	log    *slog.Logger    // set once
	conn   *nats.Conn      // set once
	ctx    context.Context // set once; of the requests, ends at Close
	cancel context.CancelFunc

	requests sync.WaitGroup // Serve goroutines; Add only under mu while open
	gone     chan struct{}  // closed by the client when it has ended

	mu       sync.Mutex
	closed   bool                     // guarded by mu
	services map[string]micro.Service // guarded by mu; by name
}

// Open connects. It tries again while the server can't be reached, until StartTimeout or until ctx ends.
func Open(ctx context.Context, cfg Config) (*Plane, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	options, err := cfg.options()
	if err != nil {
		return nil, err
	}
	cfg.Meter.SetPlaneUp(false)
	servers := make([]string, len(cfg.Servers))
	for i, s := range cfg.Servers {
		servers[i] = redacted(s)
	}
	where := strings.Join(servers, ",")
	deadline := time.Now().Add(cfg.StartTimeout)
	for delay := time.Second; ; delay = min(2*delay, 5*time.Second) {
		p, err := connect(cfg, options)
		if err == nil {
			cfg.Meter.SetPlaneUp(true)
			return p, nil
		}
		left := time.Until(deadline)
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("NATS: %w", ctx.Err())
		case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
			return nil, fmt.Errorf("%w: %s: %w", ErrRefused, where, err)
		case left <= 0:
			return nil, fmt.Errorf("%w at %s within %v: %w", ErrUnreachable, where, cfg.StartTimeout, err)
		}
		delay = min(delay, left)
		cfg.Log.Warn("the NATS server can't be reached yet, trying again (NATS_SERVER says where it is; --request-plane tcp needs none)",
			"servers", where, "error", err, "delay", delay, "left", left.Round(time.Second))
		if !sleep.For(ctx, delay) {
			return nil, fmt.Errorf("NATS: %w", ctx.Err())
		}
	}
}

func connect(cfg Config, options []nats.Option) (*Plane, error) {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Plane{
		log: cfg.Log, ctx: ctx, cancel: cancel, gone: make(chan struct{}), services: make(map[string]micro.Service),
	}
	options = append(slices.Clip(options),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if ctx.Err() == nil {
				cfg.Meter.SetPlaneUp(false)
				p.log.Error("the NATS server is away: no request arrives until it is back; those that run go on", "error", err)
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) {
			cfg.Meter.SetPlaneUp(true)
			cfg.Meter.PlaneReconnected()
			p.log.Info("the NATS server is back", "server", c.ConnectedUrlRedacted())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, s *nats.Subscription, err error) {
			subject := ""
			if s != nil {
				subject = s.Subject
			}
			p.log.Warn("NATS reports an error", "subject", subject, "error", err)
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(p.gone) }),
	)
	conn, err := nats.Connect(strings.Join(cfg.Servers, ","), options...)
	if err != nil {
		cancel()
		return nil, err
	}
	p.conn = conn
	return p, nil
}

// Attach begins to take the requests of an endpoint. When it returns, the server knows of it.
func (p *Plane) Attach(a discovery.Address, id uint64, h requestplane.Handler) (discovery.Transport, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return discovery.Transport{}, requestplane.ErrClosed
	}
	name := a.Service()
	service := p.services[name]
	if service == nil {
		var err error
		service, err = micro.AddService(p.conn, micro.Config{
			Name: name, Version: serviceVersion, Description: "Dynamo component " + a.Component + " of namespace " + a.Namespace,
		})
		if err != nil {
			return discovery.Transport{}, fmt.Errorf("NATS service %s: %w", name, err)
		}
		p.services[name] = service
	}
	subject := a.Subject(id)
	e := &endpoint{plane: p, subject: subject, handler: h, log: p.log.With("subject", subject)}
	err := service.AddEndpoint(a.EndpointService(id), micro.HandlerFunc(e.take),
		micro.WithEndpointSubject(subject), micro.WithEndpointPendingLimits(maxPending, maxPendingBytes))
	if err == nil {
		err = p.conn.FlushTimeout(dialTimeout)
	}
	if err != nil {
		return discovery.Transport{}, fmt.Errorf("NATS endpoint %s: %w", subject, err)
	}
	return discovery.Transport{NATS: subject}, nil
}

// Close takes the endpoints away, ends the contexts of the requests that run, and returns when all is over.
func (p *Plane) Close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		<-p.gone
		p.requests.Wait()
		return
	}
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	// Drain takes the subscriptions away, waits for the messages that have come, and closes the connection; without a
	// connection there is nothing to take away.
	if err := p.conn.Drain(); err != nil {
		p.conn.Close()
	}
	<-p.gone
	p.requests.Wait()
}

// endpoint is one endpoint of the plane.
type endpoint struct {
	plane   *Plane
	subject string
	handler requestplane.Handler
	log     *slog.Logger
}

// take acknowledges one message. It runs on the subscription's goroutine, one message after the other.
func (e *endpoint) take(m micro.Request) {
	req, err := requestplane.NewRequest(e.subject, m.Data())
	for name, values := range m.Headers() {
		if len(values) > 0 {
			req.Headers.Set(name, values[0])
		}
	}
	if err == nil {
		err = e.admit(req)
	}
	if err != nil {
		refusal := requestplane.RefusalOf(err)
		e.log.Debug("request refused", "id", req.Control.ID, "ack", refusal)
		if err = m.Respond([]byte(refusal.Error())); err != nil {
			e.log.Warn("a refusal could not be sent", "id", req.Control.ID, "error", err)
		}
		return
	}
	req.Unacked = m.Respond(nil) != nil
	go func() { // counted in requests by admit, because Close may have begun to wait by now
		defer e.plane.requests.Done()
		e.handler.Serve(e.plane.ctx, req)
	}()
}

// admit asks the handler, and counts the request if it takes it.
func (e *endpoint) admit(req *requestplane.Request) error {
	e.plane.mu.Lock()
	defer e.plane.mu.Unlock()
	if e.plane.closed {
		return requestplane.Unavailable("shutting down")
	}
	if err := e.handler.Admit(req); err != nil {
		return err
	}
	e.plane.requests.Add(1)
	return nil
}
