package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// What a peer may take at most, so that a stuck one costs a connection for a while and no more.
const (
	readTimeout    = 10 * time.Second // a request has no body worth the name
	writeTimeout   = 10 * time.Minute // model files go to other hosts
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
	stopGrace      = 2 * time.Second
)

// ErrPath says that the health or live path cannot be used.
var ErrPath = errors.New("invalid status path")

// Config is what a Server is made of.
type Config struct {
	HealthPath string       // empty: /health
	LivePath   string       // empty: /live
	Metrics    http.Handler // nil: /metrics is unknown
	Log        *slog.Logger // nil discards
}

// Server answers from its first moment on, long before there is an engine: with "notready" until SetReady.
type Server struct {
	healthPath string                          // set once
	livePath   string                          // set once
	metrics    http.Handler                    // set once
	log        *slog.Logger                    // set once
	ready      atomic.Bool                     // what /health says
	files      atomic.Pointer[map[string]File] // by URL path; the map is never changed
}

// New checks the paths and makes a server that is not listening yet.
func New(c Config) (*Server, error) {
	s := &Server{healthPath: c.HealthPath, livePath: c.LivePath, metrics: c.Metrics, log: c.Log}
	if s.healthPath == "" {
		s.healthPath = "/health"
	}
	if s.livePath == "" {
		s.livePath = "/live"
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for _, path := range []string{s.healthPath, s.livePath} {
		if !strings.HasPrefix(path, "/") || path == metricsPath || strings.HasPrefix(path, filePrefix) {
			return nil, fmt.Errorf("%w: %q must begin with / and be neither %s nor below %s", ErrPath, path, metricsPath, filePrefix)
		}
	}
	if s.healthPath == s.livePath {
		return nil, fmt.Errorf("%w: %q is given for both health and live", ErrPath, s.healthPath)
	}
	return s, nil
}

// SetReady decides what /health says: whether this worker can serve requests now.
func (s *Server) SetReady(ready bool) { s.ready.Store(ready) }

// Serve answers on l until ctx ends, and closes l. The error is nil after an end by ctx.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s, ReadTimeout: readTimeout, ReadHeaderTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // broken connections of scanners and the like
	}
	stopped := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, done := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
		defer done()
		if server.Shutdown(grace) != nil {
			_ = server.Close() // cuts what the grace did not end
		}
	})
	err := server.Serve(l)
	if cancel() {
		_ = server.Close() // nobody else will end the open connections
		return fmt.Errorf("status server: %w", err)
	}
	<-stopped
	return nil
}

const metricsPath = "/metrics"

// ServeHTTP implements http.Handler. Paths match exactly: nothing is cleaned, joined or redirected.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer http.HandlerFunc
	switch path := r.URL.Path; {
	case path == s.healthPath:
		answer = s.health
	case path == s.livePath:
		answer = func(http.ResponseWriter, *http.Request) {} // 200, empty
	case path == metricsPath && s.metrics != nil:
		answer = s.metrics.ServeHTTP
	default:
		file, ok := s.file(path)
		if !ok {
			writeJSON(w, http.StatusNotFound, map[string]string{"error": "not found"})
			return
		}
		answer = func(w http.ResponseWriter, r *http.Request) { s.serveFile(w, r, file) }
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		writeJSON(w, http.StatusMethodNotAllowed, map[string]string{"error": "method not allowed"})
		return
	}
	answer(w, r)
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if s.ready.Load() {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
		return
	}
	writeJSON(w, http.StatusServiceUnavailable, map[string]string{"status": "notready"})
}

func writeJSON(w http.ResponseWriter, code int, body map[string]string) {
	text, err := json.Marshal(body)
	if err != nil { // a map of strings always marshals
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(text) // a peer that went away is no one to tell
}
