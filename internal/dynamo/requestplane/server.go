package requestplane

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"remora/internal/rawconn"
	"remora/internal/sleep"
)

// ServerConfig configures a Server. Zero values mean the defaults.
type ServerConfig struct {
	Logger         *slog.Logger  // nil: none
	MaxMessage     int           // whole frame in bytes; default DefaultMaxMessage
	MaxConnections int           // beyond it new connections are closed; default 16384
	FrameTimeout   time.Duration // from a frame's first byte to its last, and for taking acknowledgements; default one minute. Between frames there is no limit
}

// Server accepts request frames and acknowledges them in order.
type Server struct {
	cfg    ServerConfig // set once
	ctx    context.Context
	cancel context.CancelFunc

	conns    sync.WaitGroup // connection goroutines
	requests sync.WaitGroup // Serve goroutines
	payloads sync.Pool      // *[]byte; the memory of payloads that have been read

	mu        sync.RWMutex
	handlers  map[string]Handler        // guarded by mu
	listeners map[net.Listener]struct{} // guarded by mu
	open      map[net.Conn]struct{}     // guarded by mu
	closed    bool                      // guarded by mu
}

// payload returns memory for a payload; it may be none.
func (s *Server) payload() *[]byte {
	if memory, ok := s.payloads.Get().(*[]byte); ok {
		return memory
	}
	return new([]byte)
}

// NewServer returns a server without endpoints.
func NewServer(cfg ServerConfig) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxMessage <= 0 {
		cfg.MaxMessage = DefaultMaxMessage
	}
	if cfg.MaxConnections <= 0 {
		cfg.MaxConnections = 16384
	}
	if cfg.FrameTimeout <= 0 {
		cfg.FrameTimeout = time.Minute
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Server{
		cfg: cfg, ctx: ctx, cancel: cancel,
		handlers:  map[string]Handler{},
		listeners: map[net.Listener]struct{}{},
		open:      map[net.Conn]struct{}{},
	}
}

// Handle sets the handler of an endpoint path.
func (s *Server) Handle(path string, h Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers[path] = h
}

func (s *Server) handler(path string) Handler {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.handlers[path]
}

// Serve accepts connections until Close, and closes l. It returns nil after Close, else the error of the listener.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
	for {
		conn, err := acceptPatiently(s.ctx, l, s.cfg.Logger)
		switch {
		case s.ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case err != nil:
			return err
		}
		s.start(conn)
	}
}

// start runs conn on a goroutine of its own, unless there are too many or the server is closed.
func (s *Server) start(conn net.Conn) {
	s.mu.Lock()
	refuse := s.closed || len(s.open) >= s.cfg.MaxConnections
	if !refuse {
		s.open[conn] = struct{}{}
		s.conns.Go(func() { s.run(conn) })
	}
	s.mu.Unlock()
	if refuse {
		s.cfg.Logger.Warn("request connection refused: too many", "peer", conn.RemoteAddr())
		_ = conn.Close()
		return
	}
}

func (s *Server) run(conn net.Conn) {
	(&serverConn{server: s, conn: rawconn.Wrap(conn)}).run()
	s.mu.Lock()
	delete(s.open, conn)
	s.mu.Unlock()
	_ = conn.Close()
}

// Close stops accepting, closes every connection, cancels the requests that still run and waits until all of them have
// returned. Whoever wants them to finish waits for them before.
func (s *Server) Close() {
	s.cancel() // first, so that Serve knows why its listener fails
	s.mu.Lock()
	s.closed = true
	for l := range s.listeners {
		_ = l.Close()
	}
	for c := range s.open {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.conns.Wait() // they start requests, so they end first
	s.requests.Wait()
}

// acceptPatiently sits out the errors that pass, such as having no descriptor left.
func acceptPatiently(ctx context.Context, l net.Listener, log *slog.Logger) (net.Conn, error) {
	delay := 5 * time.Millisecond
	for {
		conn, err := l.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
			return conn, err
		}
		var temporary interface{ Temporary() bool } // deprecated for general use, but exactly right for accept
		if !errors.As(err, &temporary) || !temporary.Temporary() {
			return nil, err
		}
		log.Warn("accept failed, trying again", "error", err, "delay", delay)
		sleep.For(ctx, delay)
		delay = min(2*delay, time.Second)
	}
}
