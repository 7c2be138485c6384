package requestplane

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"remora/internal/dynamo/protocol"
)

// ResponseServerConfig configures a ResponseServer. Zero values mean the defaults.
type ResponseServerConfig struct {
	Logger           *slog.Logger  // nil: none
	Address          string        // what workers are told to dial, literal ip:port; default the listener's address
	HandshakeTimeout time.Duration // default 10 s
	MaxFrame         int           // of a response in bytes; default 256 MiB
}

// ResponseServer awaits the response streams that workers dial.
type ResponseServer struct {
	cfg    ResponseServerConfig // set once
	listen net.Listener         // set once
	ctx    context.Context
	cancel context.CancelFunc

	handshakes sync.WaitGroup // connection goroutines, which end with the handshake

	mu      sync.Mutex
	pending map[string]*Incoming  // by subject: registered, not yet over; guarded by mu
	greet   map[net.Conn]struct{} // handshake outstanding; guarded by mu
	closed  bool                  // guarded by mu
}

// NewResponseServer returns a server on l; Serve runs it.
func NewResponseServer(l net.Listener, cfg ResponseServerConfig) *ResponseServer {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Address == "" {
		cfg.Address = l.Addr().String()
	}
	cfg.HandshakeTimeout = orDefault(cfg.HandshakeTimeout, 10*time.Second)
	cfg.MaxFrame = orDefault(cfg.MaxFrame, 256<<20)
	ctx, cancel := context.WithCancel(context.Background())
	return &ResponseServer{
		cfg: cfg, listen: l, ctx: ctx, cancel: cancel,
		pending: map[string]*Incoming{},
		greet:   map[net.Conn]struct{}{},
	}
}

// Serve accepts response streams until Close, and then returns nil.
func (s *ResponseServer) Serve() error {
	for {
		conn, err := acceptPatiently(s.ctx, s.listen, s.cfg.Logger)
		if err != nil {
			if s.ctx.Err() != nil {
				return nil //nolint:nilerr // the error of a listener that Close has closed
			}
			return fmt.Errorf("accept response stream: %w", err)
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = conn.Close()
			return nil
		}
		s.greet[conn] = struct{}{}
		s.handshakes.Go(func() { s.handshake(conn) })
		s.mu.Unlock()
	}
}

// Register announces a response for request id, and returns what the request's control header has to say. The response is
// killed when ctx ends; the caller must call Kill, or read to the end.
func (s *ResponseServer) Register(ctx context.Context, id string, codec protocol.Codec) (*Incoming, ConnectionInfo) {
	in := &Incoming{
		server: s, subject: newSubject(), codec: codec,
		connected: make(chan struct{}),
		over:      make(chan struct{}),
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.pending[in.subject] = in
	}
	s.mu.Unlock()
	in.mu.Lock() // so that an end of ctx finds unwatch set
	in.unwatch = context.AfterFunc(ctx, func() { in.finish(context.Cause(ctx), true) })
	in.mu.Unlock()
	if closed {
		in.finish(ErrClosed, false)
	}
	return in, ConnectionInfo{
		Transport: transportTCP, Address: s.cfg.Address, Subject: in.subject, Context: id, StreamType: streamResponse,
	}
}

// Close stops accepting and kills every response that is not over.
func (s *ResponseServer) Close() {
	s.cancel()
	s.mu.Lock()
	s.closed = true
	for conn := range s.greet {
		_ = conn.Close()
	}
	all := make([]*Incoming, 0, len(s.pending))
	for _, in := range s.pending {
		all = append(all, in)
	}
	s.mu.Unlock()
	_ = s.listen.Close()
	for _, in := range all {
		in.finish(ErrClosed, true)
	}
	s.handshakes.Wait()
}

// handshake finds out whose response conn is. An unknown subject gets the connection closed: its request is over already.
func (s *ResponseServer) handshake(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(s.cfg.HandshakeTimeout))
	in := bufio.NewReader(conn)
	header, body, err := readTwoPart(in, maxControlWord)
	var subject string
	if err == nil {
		subject, err = parseHandshake(header)
	}
	if err == nil && len(body) > 0 {
		err = ErrBadResponse
	}
	_ = conn.SetReadDeadline(time.Time{})
	s.mu.Lock()
	delete(s.greet, conn)
	incoming := s.pending[subject]
	s.mu.Unlock()
	if err != nil || incoming == nil || !incoming.connect(conn, in) {
		s.cfg.Logger.Debug("response connection refused", "peer", conn.RemoteAddr(), "subject", subject, "error", err)
		hangUp(conn)
	}
}

func (s *ResponseServer) forget(subject string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, subject)
}

// newSubject returns a random UUID.
func newSubject() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// hangUp closes conn as a stock frontend does: the end of the stream and a reset together.
func hangUp(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
