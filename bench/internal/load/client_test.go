package load

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"remora/bench/internal/engine"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
)

// handler is a worker: it shows each request to got, or answers it.
type handler struct {
	got    chan<- *requestplane.Request // nil: it answers
	dialer *requestplane.Dialer
	refuse bool
}

func (h *handler) Admit(*requestplane.Request) error {
	if h.refuse {
		return requestplane.Unavailable("not today")
	}
	return nil
}

// Serve answers with as many tokens as are asked for, until the consumer leaves.
func (h *handler) Serve(ctx context.Context, r *requestplane.Request) {
	if h.got != nil {
		h.got <- r
		return
	}
	body, err := protocol.ParseRequest(r.Control.Codec, r.Body)
	if err != nil {
		panic(err)
	}
	left := make(chan struct{})
	var once sync.Once
	stream, err := h.dialer.Dial(ctx, r.Control.Connection, func(requestplane.Event) { once.Do(func() { close(left) }) })
	if err != nil {
		return // hung up on: the request was killed before
	}
	defer stream.Close()
	frames := requestplane.AppendPrologue(nil)
	for range *body.StopConditions.MaxTokens {
		select {
		case <-left:
			return
		case <-time.After(time.Millisecond):
		}
		item := protocol.Item{Data: &protocol.EngineOutput{TokenIDs: []uint32{engine.Stamp()}}}
		if stream.WriteFrames(requestplane.AppendItem(frames, r.Control.Codec, &item), nil) != nil {
			return
		}
		frames = nil
	}
	if stream.EndFrames(requestplane.AppendSentinel(requestplane.AppendFinal(frames, r.Control.Codec)), nil) == nil {
		stream.Wait()
	}
}

func serve(t *testing.T, path string, got chan<- *requestplane.Request) (address string, closeServer func()) {
	t.Helper()
	return serveWith(t, path, &handler{got: got, dialer: &requestplane.Dialer{}})
}

func serveWith(t *testing.T, path string, h *handler) (address string, closeServer func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := requestplane.NewServer(requestplane.ServerConfig{})
	server.Handle(path, h)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	return l.Addr().String(), func() {
		server.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

func write(t *testing.T, address string, frame []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Write(frame); err != nil {
		t.Fatal(err)
	}
}

func client(t *testing.T, h *handler) *Client {
	t.Helper()
	const path = "1f/dynamo/backend/generate"
	h.dialer = &requestplane.Dialer{}
	address, closeServer := serveWith(t, path, h)
	c, err := New(t.Context(), Worker{address, path, protocol.MsgPack}, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		closeServer()
	})
	return c
}

func TestLoop(t *testing.T) {
	c := client(t, &handler{})
	result, err := c.Loop(t.Context(), LoopConfig{Shape: Shape{Prompt: 10, Tokens: 3}, Requests: 100, Warm: 5, AtOnce: 8}, Watched{"me": os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	if result.Finished != 100 || result.Errors != 0 || result.Tokens != 300 || result.First.Count != 100 || result.Later.Count != 200 {
		t.Errorf("%+v", result)
	}
	if result.CPU["me"] <= 0 || result.CPU[self] <= 0 || result.RSS["me"] <= 0 {
		t.Errorf("cost %v, %v", result.CPU, result.RSS)
	}
}

func TestLoopKills(t *testing.T) {
	c := client(t, &handler{})
	result, err := c.Loop(t.Context(), LoopConfig{Shape: Shape{Prompt: 10, Tokens: 4}, Requests: 100, AtOnce: 8, Killed: 3}, Watched{})
	if err != nil {
		t.Fatal(err)
	}
	if result.Finished != 70 || result.Killed != 30 || result.Errors != 0 {
		t.Errorf("%+v", result)
	}
}

func TestHold(t *testing.T) {
	c := client(t, &handler{})
	cfg := HoldConfig{Streams: 5, Prompt: 10, Interval: time.Millisecond, Window: 50 * time.Millisecond, Probes: 3}
	for range 2 { // what the first leaves behind must not disturb the second
		result, err := c.Hold(t.Context(), cfg, Watched{})
		if err != nil {
			t.Fatal(err)
		}
		if result.Tokens == 0 || result.Later.Count == 0 || result.First.Count != 3 || result.Finished != 3 || result.Errors != 0 {
			t.Errorf("%+v", result)
		}
	}
}

func TestErrorsAreCounted(t *testing.T) {
	c := client(t, &handler{refuse: true})
	result, err := c.Loop(t.Context(), LoopConfig{Shape: Shape{Prompt: 10, Tokens: 3}, Requests: 10, AtOnce: 4}, Watched{})
	if err != nil {
		t.Fatal(err)
	}
	if result.Errors != 10 || result.Finished != 0 || len(result.Samples) == 0 {
		t.Errorf("%+v", result)
	}
}
