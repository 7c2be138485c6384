package vllm_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"remora/internal/vllm"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// recorder is a sink that writes down its calls, and checks that they do not overlap and that none follows the end.
type recorder struct {
	t  testing.TB
	on func(call string) // runs inside each sink call; may be nil

	mu     sync.Mutex
	inside bool        // guarded by mu
	calls  []string    // guarded by mu
	status vllm.Status // guarded by mu
	over   bool        // guarded by mu
	begun  int         // guarded by mu; sink calls, of which one may bring many messages
	ended  chan struct{}
}

func newRecorder(tb testing.TB, on func(call string)) *recorder {
	tb.Helper()
	return &recorder{t: tb, on: on, ended: make(chan struct{})}
}

func (r *recorder) call(text string) {
	r.mu.Lock()
	if r.inside || r.over {
		r.t.Errorf("sink call %q while another runs (%v) or after the end (%v)", text, r.inside, r.over)
	}
	r.inside = true
	r.calls = append(r.calls, text)
	r.mu.Unlock()
	if r.on != nil {
		r.on(text)
	}
	r.mu.Lock()
	r.inside = false
	r.mu.Unlock()
}

func (r *recorder) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun++
}

// sinkCalls returns how many calls have begun.
func (r *recorder) sinkCalls() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun
}

func (r *recorder) OnHeaders(bool) {
	r.begin()
	r.call("headers")
}

func (r *recorder) OnMessages(messages []*pb.GenerateResponse, _ bool) {
	r.begin()
	for _, message := range messages {
		switch {
		case message.GetPromptInfo() != nil:
			r.call(fmt.Sprintf("prompt %d", message.GetPromptInfo().GetNumPromptTokens()))
		case message.GetOutputs().GetFinishInfo() != nil:
			r.call(fmt.Sprintf("finish %v %d", message.GetOutputs().GetFinishInfo().GetFinishReason(), message.GetOutputs().GetTokenIds()))
		default:
			r.call(fmt.Sprintf("tokens %d", message.GetOutputs().GetTokenIds()))
		}
	}
}

func (r *recorder) OnEnd(status vllm.Status) {
	r.begin()
	r.mu.Lock()
	r.status = status
	r.mu.Unlock()
	r.call("end")
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	close(r.ended)
}

// got returns the calls so far.
func (r *recorder) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.calls...)
}

// end waits for OnEnd and returns its status.
func (r *recorder) end() vllm.Status {
	r.t.Helper()
	return r.endWithin(30 * time.Second)
}

func (r *recorder) endWithin(d time.Duration) vllm.Status {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), d)
	defer cancel()
	select {
	case <-r.ended:
	case <-ctx.Done():
		r.t.Fatalf("no OnEnd; calls so far: %v", r.got())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// dial connects to the engine and closes the client with the test.
func dial(tb testing.TB, engine *vllmtest.Engine, change func(c *vllm.Config)) *vllm.Client {
	tb.Helper()
	config := vllm.Config{Endpoint: vllm.Endpoint{Host: "engine.test", Port: 50051}, Dialer: engine.Dial}
	if change != nil {
		change(&config)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
	defer cancel()
	client, err := vllm.Dial(ctx, config)
	if err != nil {
		tb.Fatalf("dial: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := client.Close(ctx); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return client
}

// dialOn is dial with that backend.
func dialOn(tb testing.TB, backend vllm.Backend, engine *vllmtest.Engine, change func(c *vllm.Config)) *vllm.Client {
	tb.Helper()
	return dial(tb, engine, func(c *vllm.Config) {
		c.Backend = backend
		if change != nil {
			change(c)
		}
	})
}

// overBackends runs a test with each: what streams do is the same on both.
func overBackends(t *testing.T, test func(t *testing.T, backend vllm.Backend)) {
	t.Run("grpc", func(t *testing.T) { test(t, vllm.BackendGRPC) })
	t.Run("h2", func(t *testing.T) { test(t, vllm.BackendH2) })
}

func request(id string) *pb.GenerateRequest {
	return &pb.GenerateRequest{
		RequestId: id,
		Prompt:    &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: []uint32{5, 6, 7}}},
	}
}
