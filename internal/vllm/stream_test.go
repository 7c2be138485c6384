package vllm_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

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

func TestStreamIsPushedInOrder(t *testing.T) { overBackends(t, testStreamIsPushedInOrder) }

func testStreamIsPushedInOrder(t *testing.T, backend vllm.Backend) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		client := dialOn(t, backend, engine, nil)
		sink := newRecorder(t, nil)
		client.Open(request("a"), proto.Uint32(3), sink)
		if status := sink.end(); status != (vllm.Status{}) {
			t.Errorf("status %v", status)
		}
		want := "[headers prompt 3 tokens [1] tokens [2] finish LENGTH [3] end]"
		if got := fmt.Sprint(sink.got()); got != want {
			t.Errorf("calls %s, want %s", got, want)
		}
		if event := engine.Await(t, vllmtest.Received, "a"); event.Rank != "3" {
			t.Errorf("rank %q", event.Rank)
		}
	})
}

func TestStreamEnds(t *testing.T) { overBackends(t, testStreamEnds) }

func testStreamEnds(t *testing.T, backend vllm.Backend) {
	tests := []struct {
		name  string
		steps []vllmtest.Step
		calls string
		want  vllm.Status
		kind  vllm.Kind
	}{
		{
			name:  "refusal of trailers only has no headers",
			steps: []vllmtest.Step{vllmtest.Status(codes.NotFound, "model `x` not found")},
			calls: "[end]",
			want:  vllm.Status{RPC: "GenerateStream", Code: codes.NotFound, Message: "model `x` not found"},
			kind:  vllm.InvalidArgument,
		},
		{
			name:  "error after the headers",
			steps: []vllmtest.Step{vllmtest.Headers(), vllmtest.Status(codes.Internal, "engine failed during generation")},
			calls: "[headers end]",
			want:  vllm.Status{RPC: "GenerateStream", Code: codes.Internal, Message: "engine failed during generation"},
			kind:  vllm.Unknown,
		},
		{
			name: "death of EngineCore in mid-stream",
			steps: []vllmtest.Step{
				vllmtest.Headers(), vllmtest.Prompt(3), vllmtest.Tokens(1),
				vllmtest.Status(codes.Internal, "engine-core error: engine core reported fatal failure"),
			},
			calls: "[headers prompt 3 tokens [1] end]",
			want: vllm.Status{
				RPC: "GenerateStream", Code: codes.Internal, Message: "engine-core error: engine core reported fatal failure",
			},
			kind: vllm.EngineDead,
		},
		{
			name:  "end without a finish",
			steps: []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(3), vllmtest.EOF()},
			calls: "[headers prompt 3 end]",
		},
		{
			name:  "end without anything",
			steps: []vllmtest.Step{vllmtest.Headers()},
			calls: "[headers end]",
		},
		{
			name:  "messages of many tokens and of none",
			steps: []vllmtest.Step{vllmtest.Headers(), vllmtest.Batch(4, 5, 6), vllmtest.Batch(), vllmtest.Finish(pb.FinishInfo_ABORTED)},
			calls: "[headers tokens [4 5 6] tokens [] finish ABORTED [] end]",
		},
		{
			name:  "headers that come late",
			steps: append([]vllmtest.Step{vllmtest.Sleep(time.Hour)}, vllmtest.Answer(1)...),
			calls: "[headers prompt 3 finish LENGTH [1] end]",
		},
		{
			name:  "the peer says UNAVAILABLE",
			steps: []vllmtest.Step{vllmtest.Headers(), vllmtest.Status(codes.Unavailable, "gone")},
			calls: "[headers end]",
			want:  vllm.Status{RPC: "GenerateStream", Code: codes.Unavailable, Message: "gone", Transport: true},
			kind:  vllm.Disconnected,
		},
		{
			name:  "the peer cancels and nobody here did",
			steps: []vllmtest.Step{vllmtest.Headers(), vllmtest.Status(codes.Canceled, "cancelled by the engine")},
			calls: "[headers end]",
			want:  vllm.Status{RPC: "GenerateStream", Code: codes.Canceled, Message: "cancelled by the engine"},
			kind:  vllm.Cancelled,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := vllmtest.New(t)
				engine.Script("a", test.steps...)
				sink := newRecorder(t, nil)
				dialOn(t, backend, engine, nil).Open(request("a"), nil, sink)
				if status := sink.endWithin(2 * time.Hour); status != test.want || vllm.KindOf(status) != test.kind {
					t.Errorf("status %+v of kind %v, want %+v of kind %v", status, vllm.KindOf(status), test.want, test.kind)
				}
				if got := fmt.Sprint(sink.got()); got != test.calls {
					t.Errorf("calls %s, want %s", got, test.calls)
				}
				if event := engine.Await(t, vllmtest.Received, "a"); event.Rank != "" {
					t.Errorf("rank %q without one asked for", event.Rank)
				}
			})
		})
	}
}

// Wherever a Drop falls, the end comes at once, comes once, and the engine sees the reset.
func TestDropAtEveryMoment(t *testing.T) { overBackends(t, testDropAtEveryMoment) }

func testDropAtEveryMoment(t *testing.T, backend vllm.Backend) {
	script := func() []vllmtest.Step {
		return []vllmtest.Step{
			vllmtest.Sleep(time.Second), vllmtest.Headers(),
			vllmtest.Sleep(time.Second), vllmtest.Prompt(3),
			vllmtest.Sleep(time.Second), vllmtest.Tokens(1),
			vllmtest.Sleep(time.Second), vllmtest.Tokens(2),
			vllmtest.Silence(),
		}
	}
	tests := []struct {
		after  time.Duration
		calls  string
		engine string
	}{
		{500 * time.Millisecond, "[end]", "received dropped"},
		{1500 * time.Millisecond, "[headers end]", "received headers dropped"},
		{2500 * time.Millisecond, "[headers prompt 3 end]", "received headers sent dropped"},
		{3500 * time.Millisecond, "[headers prompt 3 tokens [1] end]", "received headers sent dropped"},
		{time.Hour, "[headers prompt 3 tokens [1] tokens [2] end]", "received headers sent dropped"},
	}
	for _, test := range tests {
		t.Run(test.after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := vllmtest.New(t)
				engine.Script("a", script()...)
				client := dialOn(t, backend, engine, nil)
				sink := newRecorder(t, nil)
				stream := client.Open(request("a"), nil, sink)
				time.Sleep(test.after) // the bubble's time
				start := time.Now()
				stream.Drop()
				stream.Drop()
				status := sink.end()
				synctest.Wait()
				if !status.Dropped || status.Transport || status.NotSent || vllm.KindOf(status) != vllm.Cancelled {
					t.Errorf("status %+v", status)
				}
				if waited := time.Since(start); waited != 0 {
					t.Errorf("the end took %v", waited)
				}
				if got := fmt.Sprint(sink.got()); got != test.calls {
					t.Errorf("calls %s, want %s", got, test.calls)
				}
				if got := engine.Of("a"); got != test.engine {
					t.Errorf("engine saw %q, want %q", got, test.engine)
				}
			})
		})
	}
}

func TestDropBeforeAnything(t *testing.T) { overBackends(t, testDropBeforeAnything) }

func testDropBeforeAnything(t *testing.T, backend vllm.Backend) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		client := dialOn(t, backend, engine, nil)
		sink := newRecorder(t, nil)
		client.Open(request("a"), nil, sink).Drop()
		if status := sink.end(); !status.Dropped {
			t.Errorf("status %+v", status)
		} else if status.NotSent {
			synctest.Wait()
			if engine.Count(vllmtest.Received, "a") != 0 {
				t.Error("the engine has a request that was not sent")
			}
		}
	})
}

func TestDropInsideTheSink(t *testing.T) { overBackends(t, testDropInsideTheSink) }

func testDropInsideTheSink(t *testing.T, backend vllm.Backend) {
	for _, at := range []string{"headers", "prompt 3", "tokens [1]"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := vllmtest.New(t)
				// All is sent in one go, so that messages wait here already when Drop is called.
				engine.Script("a", vllmtest.Headers(), vllmtest.Prompt(3), vllmtest.Tokens(1, 2, 3), vllmtest.Silence())
				client := dialOn(t, backend, engine, nil)
				opened := make(chan vllm.Stream, 1)
				var sink *recorder
				before := 0
				sink = newRecorder(t, func(call string) {
					if call == at {
						synctest.Wait()
						before = sink.sinkCalls()
						(<-opened).Drop()
					}
				})
				opened <- client.Open(request("a"), nil, sink)
				if status := sink.end(); !status.Dropped {
					t.Errorf("status %+v", status)
				}
				if got := sink.sinkCalls(); before == 0 || got != before+1 {
					t.Errorf("calls %v: something came between the drop in %q and the end", sink.got(), at)
				}
				synctest.Wait()
				if engine.Live() != 0 {
					t.Error("the engine still runs the request")
				}
			})
		})
	}
}

func TestDropAfterTheEnd(t *testing.T) { overBackends(t, testDropAfterTheEnd) }

func testDropAfterTheEnd(t *testing.T, backend vllm.Backend) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		sink := newRecorder(t, nil)
		stream := dialOn(t, backend, engine, nil).Open(request("a"), nil, sink)
		status := sink.end()
		stream.Drop()
		synctest.Wait()
		if status.Dropped || engine.Count(vllmtest.Dropped, "") != 0 {
			t.Errorf("status %+v, engine saw %v", status, engine.Events())
		}
	})
}

func TestConnectionLost(t *testing.T) { overBackends(t, testConnectionLost) }

func testConnectionLost(t *testing.T, backend vllm.Backend) {
	tests := []struct {
		name  string
		steps func(engine *vllmtest.Engine) []vllmtest.Step
		calls string
	}{
		{"before headers", func(e *vllmtest.Engine) []vllmtest.Step {
			return []vllmtest.Step{vllmtest.Do(func(*vllmtest.Call) { e.Kill() }), vllmtest.Silence()}
		}, "[end]"},
		{"in mid-stream", func(e *vllmtest.Engine) []vllmtest.Step {
			return []vllmtest.Step{
				vllmtest.Headers(), vllmtest.Prompt(3), vllmtest.Tokens(1), vllmtest.Sleep(time.Second),
				vllmtest.Do(func(*vllmtest.Call) { e.Kill() }), vllmtest.Silence(),
			}
		}, "[headers prompt 3 tokens [1] end]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := vllmtest.New(t)
				engine.Script("a", test.steps(engine)...)
				client := dialOn(t, backend, engine, nil)
				sink := newRecorder(t, nil)
				client.Open(request("a"), nil, sink)
				status := sink.end()
				if !status.Transport || status.Dropped || status.NotSent || vllm.KindOf(status) != vllm.Disconnected {
					t.Errorf("status %+v", status)
				}
				if got := fmt.Sprint(sink.got()); got != test.calls {
					t.Errorf("calls %s, want %s", got, test.calls)
				}
				// The next request gets a new connection.
				again := newRecorder(t, nil)
				client.Open(request("b"), nil, again)
				if status = again.end(); status != (vllm.Status{}) {
					t.Errorf("second request: %+v", status)
				}
			})
		})
	}
}

func TestEngineAway(t *testing.T) { overBackends(t, testEngineAway) }

func testEngineAway(t *testing.T, backend vllm.Backend) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		client := dialOn(t, backend, engine, nil)
		engine.Down()
		synctest.Wait() // the client has noticed
		for i := range 3 {
			sink := newRecorder(t, nil)
			start := time.Now()
			client.Open(request("a"), nil, sink)
			status := sink.end()
			if !status.NotSent || !status.Transport || vllm.KindOf(status) != vllm.CannotConnect {
				t.Errorf("request %d: %+v", i, status)
			}
			if waited := time.Since(start); waited > time.Second {
				t.Errorf("request %d: refused after %v", i, waited)
			}
		}
		time.Sleep(time.Minute)
		engine.Up()
		time.Sleep(1500 * time.Millisecond)
		sink := newRecorder(t, nil)
		client.Open(request("b"), nil, sink)
		if status := sink.end(); status != (vllm.Status{}) {
			t.Errorf("an engine that is back: %+v", status)
		}
	})
}

func TestGoAwayLetsStreamsRunOn(t *testing.T) { overBackends(t, testGoAwayLetsStreamsRunOn) }

func testGoAwayLetsStreamsRunOn(t *testing.T, backend vllm.Backend) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		resume := make(chan struct{})
		engine.Script("old", vllmtest.Headers(), vllmtest.Wait(resume), vllmtest.FinishToken(pb.FinishInfo_STOP, 9))
		client := dialOn(t, backend, engine, nil)
		old := newRecorder(t, nil)
		client.Open(request("old"), nil, old)
		engine.Await(t, vllmtest.HeadersSent, "old")
		engine.GoAway()
		synctest.Wait()
		next := newRecorder(t, nil)
		client.Open(request("new"), nil, next)
		if status := next.end(); status != (vllm.Status{}) {
			t.Errorf("new request: %+v", status)
		}
		close(resume)
		if status := old.end(); status != (vllm.Status{}) {
			t.Errorf("old request: %+v", status)
		}
	})
}

// A sink that blocks holds back its own stream by its window, and its neighbours on the same connection run on.
func TestSlowSinkHoldsBackItself(t *testing.T) { overBackends(t, testSlowSinkHoldsBackItself) }

func testSlowSinkHoldsBackItself(t *testing.T, backend vllm.Backend) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		const messages, size = 64, 16 << 10 // 1 MiB in all, more than a stream's window
		engine.Set(func(b *vllmtest.Behaviour) {
			b.Script = func(*pb.GenerateRequest) []vllmtest.Step {
				steps := []vllmtest.Step{vllmtest.Headers()}
				for range messages {
					steps = append(steps, vllmtest.Message(&pb.GenerateResponse{
						Outputs: &pb.SequenceOutput{Text: strings.Repeat("x", size), NumTokens: 1, TokenIds: []uint32{1}},
					}))
				}
				return steps
			}
		})
		client := dialOn(t, backend, engine, nil)
		release := make(chan struct{})
		opened := make(chan vllm.Stream, 1)
		yield := sync.OnceFunc(func() { (<-opened).Yield() })
		slow := newRecorder(t, func(call string) {
			if call != "headers" {
				yield()
				<-release
			}
		})
		opened <- client.Open(request("slow"), nil, slow)
		synctest.Wait()
		held := engine.Count(vllmtest.Sent, "slow")
		if held == messages {
			t.Errorf("the engine could send all %d messages to a sink that does not read", messages)
		}
		for i := range 5 {
			fast := newRecorder(t, nil)
			client.Open(request(fmt.Sprint("fast", i)), nil, fast)
			if status := fast.end(); status != (vllm.Status{}) {
				t.Errorf("neighbour: %+v", status)
			}
		}
		if now := engine.Count(vllmtest.Sent, "slow"); now != held {
			t.Errorf("the slow stream moved from %d to %d messages", held, now)
		}
		close(release)
		if status := slow.end(); status != (vllm.Status{}) {
			t.Errorf("slow: %+v", status)
		}
		if got := len(slow.got()); got != messages+2 {
			t.Errorf("%d calls, want %d", got, messages+2)
		}
	})
}

func TestRequestThatCannotBeSent(t *testing.T) { overBackends(t, testRequestThatCannotBeSent) }

func testRequestThatCannotBeSent(t *testing.T, backend vllm.Backend) {
	tests := []struct {
		name   string
		change func(r *pb.GenerateRequest)
	}{
		{"text that is not UTF-8", func(r *pb.GenerateRequest) { r.SessionId = new("\xff") }},
		{"over the limit", func(r *pb.GenerateRequest) { r.SessionId = new(strings.Repeat("x", 64<<20)) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := dialOn(t, backend, vllmtest.New(t), nil)
				broken := request("a")
				test.change(broken)
				sink := newRecorder(t, nil)
				client.Open(broken, nil, sink)
				status := sink.end()
				if !status.NotSent || vllm.KindOf(status) != vllm.InvalidArgument {
					t.Errorf("status %.200s of kind %v", status, vllm.KindOf(status))
				}
			})
		})
	}
}

func TestAnswerOverTheLimit(t *testing.T) { overBackends(t, testAnswerOverTheLimit) }

func testAnswerOverTheLimit(t *testing.T, backend vllm.Backend) {
	engine := vllmtest.New(t)
	engine.Script("a", vllmtest.Headers(), vllmtest.Message(&pb.GenerateResponse{
		Outputs: &pb.SequenceOutput{Text: strings.Repeat("x", 64<<20)},
	}), vllmtest.Silence())
	engine.Script("b", vllmtest.Headers(), vllmtest.Message(&pb.GenerateResponse{
		Outputs: &pb.SequenceOutput{Text: strings.Repeat("x", 63<<20)},
	}))
	client := dialOn(t, backend, engine, nil)
	sink := newRecorder(t, nil)
	client.Open(request("a"), nil, sink)
	if status := sink.end(); vllm.KindOf(status) != vllm.Protocol || status.Transport {
		t.Errorf("status %+v of kind %v", status, vllm.KindOf(status))
	}
	sink = newRecorder(t, nil)
	client.Open(request("b"), nil, sink)
	if status := sink.end(); status != (vllm.Status{}) || len(sink.got()) != 3 {
		t.Errorf("63 MiB: %+v", status)
	}
}

// Two hundred streams, dropped at random moments by their neighbours, all end once, and nothing is left.
func TestManyStreamsAndDrops(t *testing.T) { overBackends(t, testManyStreamsAndDrops) }

func testManyStreamsAndDrops(t *testing.T, backend vllm.Backend) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		engine.Set(func(b *vllmtest.Behaviour) {
			b.Script = func(*pb.GenerateRequest) []vllmtest.Step {
				steps := []vllmtest.Step{vllmtest.Sleep(time.Millisecond), vllmtest.Headers(), vllmtest.Prompt(3)}
				for id := range uint32(20) {
					steps = append(steps, vllmtest.Sleep(time.Millisecond), vllmtest.Tokens(id))
				}
				return append(steps, vllmtest.Finish(pb.FinishInfo_STOP))
			}
		})
		client := dialOn(t, backend, engine, func(c *vllm.Config) { c.Connections = 4 })
		random := rand.New(rand.NewPCG(1, 2))
		const streams = 200
		sinks := make([]*recorder, streams)
		var drops sync.WaitGroup
		for i := range sinks {
			sinks[i] = newRecorder(t, nil)
			stream := client.Open(request(fmt.Sprint("r", i)), nil, sinks[i])
			if delay := time.Duration(random.IntN(40)) * time.Millisecond; delay < 25*time.Millisecond {
				drops.Go(func() {
					time.Sleep(delay)
					stream.Drop()
				})
			}
		}
		drops.Wait()
		dropped := 0
		for i, sink := range sinks {
			status := sink.end()
			switch {
			case status.Dropped:
				dropped++
			case status != vllm.Status{}:
				t.Errorf("stream %d: %+v", i, status)
			}
		}
		synctest.Wait()
		if dropped == 0 || dropped == streams || engine.Live() != 0 {
			t.Errorf("%d dropped, %d live at the engine", dropped, engine.Live())
		}
	})
}

func TestClose(t *testing.T) { overBackends(t, testClose) }

func testClose(t *testing.T, backend vllm.Backend) {
	t.Run("drops what is open", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			engine := vllmtest.New(t)
			engine.Script("a", vllmtest.Headers(), vllmtest.Silence())
			client := dialOn(t, backend, engine, nil)
			sink := newRecorder(t, nil)
			client.Open(request("a"), nil, sink)
			engine.Await(t, vllmtest.HeadersSent, "a")
			if err := client.Close(t.Context()); err != nil {
				t.Error(err)
			}
			select {
			case <-sink.ended:
			default:
				t.Error("Close returned before OnEnd")
			}
			if status := sink.end(); !status.Dropped {
				t.Errorf("status %+v", status)
			}
			late := newRecorder(t, nil)
			client.Open(request("late"), nil, late).Drop()
			if status := late.end(); !status.NotSent || vllm.KindOf(status) != vllm.CannotConnect {
				t.Errorf("opened after Close: %+v", status)
			}
			if err := client.Close(t.Context()); err != nil {
				t.Errorf("second Close: %v", err)
			}
		})
	})
	t.Run("is bounded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			engine := vllmtest.New(t)
			client := dialOn(t, backend, engine, nil)
			release := make(chan struct{})
			opened := make(chan vllm.Stream, 1)
			yield := sync.OnceFunc(func() { (<-opened).Yield() })
			sink := newRecorder(t, func(string) {
				yield()
				<-release
			})
			opened <- client.Open(request("a"), nil, sink)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			start := time.Now()
			err := client.Close(ctx)
			if err == nil || !strings.Contains(err.Error(), "1 streams") || time.Since(start) != 5*time.Second {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
			close(release)
			sink.end()
		})
	})
}
