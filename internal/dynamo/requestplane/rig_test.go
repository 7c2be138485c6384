package requestplane

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"remora/internal/dynamo/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handlerFunc is a Handler made of functions; a nil admit accepts.
type handlerFunc struct {
	admit func(*Request) error
	serve func(context.Context, *Request)
}

func (h handlerFunc) Admit(r *Request) error {
	if h.admit == nil {
		return nil
	}
	return h.admit(r)
}

func (h handlerFunc) Serve(ctx context.Context, r *Request) { h.serve(ctx, r) }

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// startServer runs a Server with one endpoint "w/generate" and returns its target.
func startServer(tb testing.TB, cfg ServerConfig, h Handler) (s *Server, target string) {
	tb.Helper()
	s = NewServer(cfg)
	s.Handle("w/generate", h)
	l := listen(tb)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Serve(l); err != nil {
			tb.Errorf("server: %v", err)
		}
	})
	tb.Cleanup(func() {
		s.Close()
		wg.Wait()
	})
	return s, l.Addr().String() + "/w/generate"
}

func startResponses(tb testing.TB, cfg ResponseServerConfig) *ResponseServer {
	tb.Helper()
	s := NewResponseServer(listen(tb), cfg)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Serve(); err != nil {
			tb.Errorf("response server: %v", err)
		}
	})
	tb.Cleanup(func() {
		s.Close()
		wg.Wait()
	})
	return s
}

// events collects what a stream reports; leaving is closed by the last event.
type events struct {
	mu      sync.Mutex
	got     []Event // guarded by mu
	leaving chan struct{}
	stopped chan struct{} // gets one element for each stop
}

func newEvents() *events {
	return &events{leaving: make(chan struct{}), stopped: make(chan struct{}, 16)}
}

func (e *events) on(ev Event) {
	e.mu.Lock()
	e.got = append(e.got, ev)
	e.mu.Unlock()
	if ev.Leaving() {
		close(e.leaving) // a second one would panic, and so fail the test
	} else {
		e.stopped <- struct{}{}
	}
}

func (e *events) kinds() (kinds []EventKind) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.got {
		kinds = append(kinds, ev.Kind)
	}
	return kinds
}

func wait(tb testing.TB, what string, c <-chan struct{}) {
	tb.Helper()
	select {
	case <-c:
	case <-tb.Context().Done():
		tb.Fatalf("waiting for %s: %v", what, context.Cause(tb.Context()))
	}
}

// readAll reads a response to its end.
func readAll(ctx context.Context, in *Incoming) (items []protocol.Item, err error) {
	for {
		item, err := in.Next(ctx)
		if errors.Is(err, io.EOF) {
			return items, nil
		}
		if err != nil {
			return items, err
		}
		items = append(items, item)
	}
}

func tokens(ids ...uint32) protocol.Item {
	index := uint32(0)
	return protocol.Item{Data: &protocol.EngineOutput{TokenIDs: ids, Index: &index}}
}

// answer is a whole response of these items.
func answer(codec protocol.Codec, items ...protocol.Item) []byte {
	frames := AppendPrologue(nil)
	for i := range items {
		frames = AppendItem(frames, codec, &items[i])
	}
	return AppendSentinel(AppendFinal(frames, codec))
}

func generateControl(id string, codec protocol.Codec, info ConnectionInfo) *Control {
	return &Control{ID: id, RequestType: "single_in", ResponseType: "many_out", Codec: codec, Connection: info}
}
