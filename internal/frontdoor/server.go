package frontdoor

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"remora/internal/dynamo/discovery"
)

// Config says what a Server works with. Store, Plane and Model are required.
type Config struct {
	Store discovery.Store // only watched
	Plane Plane
	Model Model
	Log   *slog.Logger // nil: no log

	// MaxConnections bounds the clients' connections; more are accepted when others have been closed. 0: 10,000.
	MaxConnections int
	// MaxRequests bounds the requests that are worked on at a time; more are refused. 0: 1024.
	MaxRequests int
	// ShutdownTime is what running requests get at a stop. 0: 5 s.
	ShutdownTime time.Duration
	// WriteTime is how long a client may take to make room for one write. 0: 60 s.
	WriteTime time.Duration
}

// Server is the front door. It may be used by any goroutine; Run is called once.
type Server struct {
	config   Config // set once, with the defaults filled in
	registry *registry
	slots    chan struct{} // one element a running request
}

// New makes a Server; nothing runs yet.
func New(config Config) *Server {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.MaxConnections == 0 {
		config.MaxConnections = 10_000
	}
	if config.MaxRequests == 0 {
		config.MaxRequests = 1024
	}
	if config.ShutdownTime == 0 {
		config.ShutdownTime = 5 * time.Second
	}
	if config.WriteTime == 0 {
		config.WriteTime = time.Minute
	}
	return &Server{
		config:   config,
		registry: newRegistry(config.Store, config.Log),
		slots:    make(chan struct{}, config.MaxRequests),
	}
}

// Models lists the models that can be called now, in order.
func (s *Server) Models() []string { return s.registry.table.Load().ready() }

// Run serves on ln, which it closes, until stop ends or something breaks. Running requests then get the shutdown time, or until
// cut ends. When it returns, nothing of it runs any more.
func (s *Server) Run(stop, cut context.Context, ln net.Listener) error {
	base, cutNow := context.WithCancel(cut)
	defer cutNow()
	server := &http.Server{
		Handler:           &handler{Server: s, base: base},
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.config.Log.Handler(), slog.LevelDebug),
	}
	var running sync.WaitGroup
	served, watched := make(chan error, 1), make(chan error, 1)
	watching, endWatch := context.WithCancel(base)
	running.Go(func() { served <- server.Serve(netutil.LimitListener(ln, s.config.MaxConnections)) })
	running.Go(func() { watched <- s.registry.run(watching) })

	var err error
	select {
	case <-stop.Done():
	case err = <-served:
		err = fmt.Errorf("front door: serve: %w", err)
	case err = <-watched:
		err = fmt.Errorf("front door: discovery: %w", err)
	}
	// The watch goes on while requests end: a decode may still have to be sent.
	s.shutdown(cut, server, cutNow)
	for range cap(s.slots) { // each request holds one to its end, also on a connection that had to be closed
		s.slots <- struct{}{}
	}
	endWatch()
	running.Wait()
	return err
}

// shutdown waits for the running requests, at last after having cut them: they all stop at base's end, but for those that hang
// in a write or an unread body, whose connections it closes.
func (s *Server) shutdown(cut context.Context, server *http.Server, cutNow context.CancelFunc) {
	grace, cancel := context.WithTimeout(cut, s.config.ShutdownTime)
	defer cancel()
	err := server.Shutdown(grace)
	if err == nil {
		return
	}
	if grace.Err() == nil {
		s.config.Log.Warn("front door: close the listener", "error", err)
	}
	s.config.Log.Info("front door: running requests are cut")
	cutNow()
	last, cancelLast := context.WithTimeout(context.Background(), cutLimit)
	defer cancelLast()
	if err := server.Shutdown(last); err != nil {
		if err := server.Close(); err != nil {
			s.config.Log.Warn("front door: close connections", "error", err)
		}
	}
}

// cutLimit is what clients get to read their last error event.
const cutLimit = time.Second / 2
