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
