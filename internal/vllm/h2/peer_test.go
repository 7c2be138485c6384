package h2_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"remora/internal/memnet"

	"remora/internal/vllm/h2"
	pb "remora/proto/vllm"
)

// peer is an HTTP/2 server by hand: it does what its script says and nothing more.
type peer struct {
	t        testing.TB
	listener *memnet.Listener
	settings []http2.Setting
	script   func(l *link) // runs once for each connection, after the settings

	mu    sync.Mutex
	links []*link // guarded by mu
}

// link is the server's end of one connection. It belongs to the goroutine of the script.
type link struct {
	*http2.Framer

	t       testing.TB
	conn    net.Conn
	block   bytes.Buffer
	fields  *hpack.Encoder
	started int // requests begun so far
	held    *bytes.Buffer
}

// Write is the framer's: to the connection, or to what leaves together.
func (l *link) Write(p []byte) (int, error) {
	if l.held != nil {
		return l.held.Write(p)
	}
	return l.conn.Write(p)
}

// together sends in one piece what do writes.
func (l *link) together(do func()) {
	l.held = new(bytes.Buffer)
	do()
	all := l.held.Bytes()
	l.held = nil
	_, err := l.conn.Write(all)
	l.do(err)
}

func newPeer(t testing.TB, script func(l *link), settings ...http2.Setting) *peer {
	t.Helper()
	p := &peer{t: t, listener: memnet.Listen(1 << 20), script: script, settings: settings}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := p.listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() {
		p.listener.Close()
		serving.Wait()
	})
	return p
}

func (p *peer) serve(conn net.Conn) {
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	l := &link{t: p.t, conn: conn}
	l.Framer = http2.NewFramer(l, conn)
	l.fields = hpack.NewEncoder(&l.block)
	l.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := l.WriteSettings(p.settings...); err != nil {
		return
	}
	p.mu.Lock()
	p.links = append(p.links, l)
	p.mu.Unlock()
	p.script(l)
}

func (p *peer) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// pool makes a pool with that many connections to the peer.
func (p *peer) pool(connections int, change func(c *h2.Config)) *h2.Pool {
	p.t.Helper()
	config := h2.Config{
		Dial:           func(ctx context.Context) (net.Conn, error) { return p.listener.DialContext(ctx) },
		Authority:      "engine.test:50051",
		AttemptTimeout: 10 * time.Second,
		ReconnectFirst: 100 * time.Millisecond, ReconnectMost: time.Second,
		PingInterval: 30 * time.Second, PingTimeout: 20 * time.Second,
		MaxConnections: connections,
		Log:            quiet,
	}
	if change != nil {
		change(&config)
	}
	pool := h2.New(config)
	for range connections {
		if err := pool.Connect(p.t.Context()); err != nil {
			p.t.Fatal(err)
		}
	}
	p.t.Cleanup(pool.Close)
	return pool
}

// next reads the next frame that is no acknowledgement; nil when the client has gone.
func (l *link) next() http2.Frame {
	for {
		frame, err := l.ReadFrame()
		if err != nil {
			return nil
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if f.IsAck() {
				continue
			}
			l.do(l.WriteSettingsAck())
		case *http2.PingFrame:
			if f.IsAck() {
				return f
			}
			l.do(l.WritePing(true, f.Data))
		default:
			return frame
		}
	}
}

// request reads up to the end of a request and returns its stream and the size of its body; 0 when the client has gone.
func (l *link) request() (stream uint32, size int) {
	for {
		switch f := l.next().(type) {
		case nil:
			return 0, 0
		case *http2.DataFrame:
			size += len(f.Data())
			if f.StreamEnded() {
				return f.StreamID, size
			}
		case *http2.MetaHeadersFrame:
			l.started++
			if stream = f.StreamID; f.StreamEnded() {
				return stream, 0
			}
		}
	}
}

// drain reads until the client goes.
func (l *link) drain() {
	for f := l.next(); f != nil; f = l.next() {
		continue
	}
}

func (l *link) do(err error) {
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		l.t.Errorf("peer writes: %v", err)
	}
}

func (l *link) headers(stream uint32, end bool, fields ...string) {
	l.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		l.do(l.fields.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	l.do(l.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: l.block.Bytes(), EndHeaders: true, EndStream: end}))
}

func (l *link) good(stream uint32) {
	l.headers(stream, false, ":status", "200", "content-type", "application/grpc")
}
func (l *link) trailers(stream uint32) { l.headers(stream, true, "grpc-status", "0") }

// token is the message of one token, framed.
func token(id byte) []byte { return []byte{0, 0, 0, 0, 7, 0x12, 5, 0x18, 1, 0x22, 1, id} }

func (l *link) data(stream uint32, data ...byte) { l.do(l.WriteData(stream, false, data)) }

func (l *link) answer(stream uint32, tokens ...byte) {
	l.good(stream)
	for _, id := range tokens {
		l.data(stream, token(id)...)
	}
	l.trailers(stream)
}

// sink writes down what it is told.
type sink struct {
	t  testing.TB
	on func(batch int) // runs in each OnMessages

	mu      sync.Mutex
	inside  bool     // guarded by mu
	headers bool     // guarded by mu
	ids     []uint32 // guarded by mu
	batches []int    // guarded by mu; messages of each call
	more    []bool   // guarded by mu; what each call but the last was told
	end     h2.End   // guarded by mu
	over    bool     // guarded by mu
	ended   chan struct{}
}

func newSink(t testing.TB) *sink {
	t.Helper()
	return &sink{t: t, ended: make(chan struct{})}
}

func (s *sink) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inside || s.over {
		s.t.Errorf("a sink call while another runs (%v) or after the end (%v)", s.inside, s.over)
	}
	s.inside = true
}

func (s *sink) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside = false
}

func (s *sink) OnHeaders(more bool) {
	s.enter()
	defer s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.headers {
		s.t.Error("headers twice")
	}
	s.headers = true
	s.more = append(s.more, more)
}

func (s *sink) OnMessages(messages []*pb.GenerateResponse, more bool) {
	s.enter()
	defer s.leave()
	s.mu.Lock()
	if !s.headers || len(messages) == 0 {
		s.t.Errorf("%d messages, headers before: %v", len(messages), s.headers)
	}
	for _, m := range messages {
		s.ids = append(s.ids, m.GetOutputs().GetTokenIds()...)
	}
	s.batches = append(s.batches, len(messages))
	s.more = append(s.more, more)
	s.mu.Unlock()
	if s.on != nil {
		s.on(len(messages))
	}
}

func (s *sink) OnEnd(end h2.End) {
	s.enter()
	defer s.leave()
	s.mu.Lock()
	s.end, s.over = end, true
	s.mu.Unlock()
	close(s.ended)
}

// wait returns the end.
func (s *sink) wait() h2.End {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	select {
	case <-s.ended:
	case <-ctx.Done():
		s.t.Fatal("no OnEnd")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

func (s *sink) got() (ids []uint32, batches []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]uint32(nil), s.ids...), append([]int(nil), s.batches...)
}

// run opens a call and returns its sink and handle.
func run(t testing.TB, pool *h2.Pool, request *pb.GenerateRequest) (*sink, *h2.Stream) {
	t.Helper()
	out, stream := newSink(t), new(h2.Stream)
	pool.Open(stream, request, nil, out)
	return out, stream
}

func small() *pb.GenerateRequest { return prompt(3) }

func prompt(tokens int) *pb.GenerateRequest {
	ids := make([]uint32, tokens)
	for i := range ids {
		ids[i] = uint32(i) + 1000
	}
	return &pb.GenerateRequest{RequestId: "a", Prompt: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}}}
}

var (
	ok    = h2.End{Code: codes.OK}
	quiet = slog.New(slog.DiscardHandler)
)
