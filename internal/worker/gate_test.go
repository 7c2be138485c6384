package worker

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/handoff"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// busy fills the one place of the gate until the channel is closed, and the one place in the line; a third gets none.
func (r *rig) busy(until <-chan struct{}) (running, waiting *open) {
	r.svc.gate = newGate(1, 1, r.svc.metrics)
	r.engine.Script("running", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.WaitDeaf(until), vllmtest.FinishToken(pb.FinishInfo_STOP, 1))
	running = r.send("running")
	synctest.Wait()
	r.engine.Script("waiting", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.FinishToken(pb.FinishInfo_LENGTH, 2))
	waiting = r.send("waiting")
	synctest.Wait()
	if got := r.saw("waiting"); got != "" {
		r.t.Errorf("the engine has the waiting request already: %s", got)
	}
	return running, waiting
}

func TestGateFull(t *testing.T) {
	bubble(t, protocol.Aggregated, func(r *rig) {
		running, waiting := r.busy(after(7 * time.Second))
		_, err := r.try("third")
		if err == nil || err.Error() != "Server overloaded: worker at capacity" {
			t.Errorf("the third got %v", err)
		}
		for name, want := range map[string]float64{
			"dynamo_rejection_request_total": 1, "dynamo_work_handler_enqueue_rejected_total": 1, "dynamo_request_queue": 1,
			"dynamo_work_handler_queue_depth": 1, "dynamo_engine_request": 1, "dynamo_work_handler_pool_active_tasks": 1,
			"dynamo_work_handler_pool_capacity": 1, "dynamo_work_handler_queue_capacity": 1, "dynamo_component_inflight_requests": 2,
		} {
			if got := r.count(name); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		if got := running.read(); got != "1 stop final" {
			t.Errorf("the running one read %q", got)
		}
		if got := waiting.read(); got != "2 length final" {
			t.Errorf("the waiting one read %q", got)
		}
		r.wg.Wait()
		r.counted(map[string]float64{"finished": 2}, 0)
		if got := r.count("dynamo_work_handler_permit_wait_seconds_sum"); got != 7 {
			t.Errorf("waited %v s in sum, want 7", got)
		}
		if got := r.count("dynamo_request_queue") + r.count("dynamo_engine_request"); got != 0 {
			t.Errorf("%v requests left in the gauges", got)
		}
	})
}

// TestLeaveTheLine: a waiting request whose client leaves costs no RPC, but for a decode, which must fetch its hand-off: it goes
// at once, without a place, and short.
func TestLeaveTheLine(t *testing.T) {
	for _, role := range []protocol.Role{protocol.Aggregated, protocol.Prefill, protocol.Decode} {
		for _, way := range []string{"stop", "kill", "cut", "shutdown"} {
			t.Run(role.String()+"/"+way, func(t *testing.T) {
				bubble(t, role, func(r *rig) {
					release := make(chan struct{})
					running, waiting := r.busy(release)
					want, other := "cancelled final", ""
					if way == "shutdown" {
						want = "prologue(Backend.EngineShutdown)"
						if role == protocol.Decode {
							// The Abort that follows the headers races with an engine that has all in one breath, and which notes its
							// headers when they are under way already.
							other = "2 length final"
						}
						r.svc.broadcast(handoff.EventShutdown)
					} else {
						waiting.leave(way)
					}
					if got := waiting.read(); way != "kill" && way != "cut" && got != want && got != other {
						t.Errorf("read %q, want %q", got, want)
					}
					synctest.Wait()
					seen := ""
					if role == protocol.Decode {
						seen = "received headers sent ended"
					}
					if got := r.saw("waiting"); got != seen && (other == "" || !strings.HasPrefix(got, "received") || !strings.Contains(got, " headers")) {
						t.Errorf("engine saw %q, want %q", got, seen)
					}
					for _, ev := range r.engine.Events() {
						if ev.Kind == vllmtest.Received && ev.ID == "waiting" && ev.Request.GetStopping().GetMaxNewTokens() != 1 {
							t.Error("submitted in full length")
						}
					}
					close(release)
					running.read()
					running.Kill()
				})
			})
		}
	}
}

// TestBroadcastReachesTheLate: a request that was let in just before the end of a shutdown, or a cut, and is known only after it.
func TestBroadcastReachesTheLate(t *testing.T) {
	for _, role := range []protocol.Role{protocol.Aggregated, protocol.Prefill, protocol.Decode} {
		for kind, seen := range map[handoff.EventKind]string{handoff.EventShutdown: "received headers", handoff.EventCut: ""} {
			t.Run(fmt.Sprint(role, "/", kind), func(t *testing.T) {
				bubble(t, role, func(r *rig) {
					r.engine.Script("x", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Silence())
					r.svc.broadcast(kind)
					began := time.Now()
					if got := r.send("x").read(); got != "prologue(Backend.EngineShutdown)" {
						t.Errorf("read %q", got)
					}
					r.wg.Wait()
					if role != protocol.Decode {
						seen = ""
					}
					if got := r.saw("x"); !strings.HasPrefix(got, seen) || seen == "" && got != "" || time.Since(began) > shutdownRead {
						t.Errorf("engine saw %q after %v, want %q", got, time.Since(began), seen)
					}
				})
			})
		}
	}
}

func TestGateClosed(t *testing.T) {
	bubble(t, protocol.Aggregated, func(r *rig) {
		r.svc.gate.close()
		if _, err := r.try("x"); err == nil || err.Error() != "Server unavailable: draining" {
			t.Errorf("got %v", err)
		}
	})
}

// TestBadRequests: what can't be read is answered, counted once, logged once, and costs no RPC.
func TestBadRequests(t *testing.T) {
	for name, row := range map[string]struct {
		id      string
		spoil   func(in *requestplane.Request)
		want    string
		counted string
	}{
		"malformed": {"x", func(in *requestplane.Request) {
			in.Malformed = &protocol.Error{Kind: protocol.ErrorInvalidArgument, Message: "control header: no id"}
		}, "prologue(InvalidArgument)", "invalid_message"},
		"malformed, without an id": {"", func(in *requestplane.Request) {
			in.Malformed = &protocol.Error{Kind: protocol.ErrorInvalidArgument, Message: "control header: no id"}
		}, "prologue(InvalidArgument)", "invalid_message"},
		"empty body":      {"x", func(in *requestplane.Request) { in.Body = nil }, "prologue(InvalidArgument)", "deserialization"},
		"body of nil":     {"x", func(in *requestplane.Request) { in.Body = []byte{0xc0} }, "prologue(InvalidArgument)", "deserialization"},
		"cut off body":    {"x", func(in *requestplane.Request) { in.Body = in.Body[:len(in.Body)/2] }, "prologue(InvalidArgument)", "deserialization"},
		"body of noughts": {"x", func(in *requestplane.Request) { clear(in.Body) }, "prologue(InvalidArgument)", "deserialization"},
		"no tokens": {"x", func(in *requestplane.Request) {
			in.Body = protocol.AppendRequest(nil, protocol.MsgPack, &protocol.PreprocessedRequest{Model: "tiny"})
		}, "prologue(Backend.InvalidArgument)", "generate"},
	} {
		for _, role := range []protocol.Role{protocol.Aggregated, protocol.Prefill, protocol.Decode} {
			t.Run(name+"/"+role.String(), func(t *testing.T) {
				bubble(t, role, func(r *rig) {
					logs := r.watchLog()
					o := r.sendSpoilt(row.id, row.spoil)
					if got := o.read(); got != row.want {
						t.Errorf("read %q, want %q", got, row.want)
					}
					r.wg.Wait()
					for _, kind := range []string{"invalid_message", "deserialization", "generate", "response_stream", "publish_response", "publish_final"} {
						want := 0.0
						if kind == row.counted {
							want = 1
						}
						if got := r.count("dynamo_component_errors_total", `"`+kind+`"`); got != want {
							t.Errorf("%v of %s counted, want %v", got, kind, want)
						}
					}
					if got := r.count("remora_requests_terminal_total", `"refused"`); got != 1 {
						t.Errorf("%v refused, want 1", got)
					}
					if n := r.engine.Count(vllmtest.Received, ""); n != 0 {
						t.Errorf("%d RPCs", n)
					}
					if got := logs.above("DEBUG"); len(got) != 1 {
						t.Errorf("log: %q", got)
					}
				})
			})
		}
	}
}

// sendSpoilt sends a request after spoil has changed it.
func (r *rig) sendSpoilt(id string, spoil func(in *requestplane.Request)) *open {
	incoming, info := r.frontend.Register(r.t.Context(), id, protocol.MsgPack)
	in := &requestplane.Request{
		Path: "x", Body: protocol.AppendRequest(nil, protocol.MsgPack, r.body()), ReceivedAt: time.Now(),
		Control: requestplane.Control{ID: id, Codec: protocol.MsgPack, Connection: info},
	}
	spoil(in)
	o, err := r.sendRequest(incoming, in)
	if err != nil {
		r.t.Fatalf("admit: %v", err)
	}
	return o
}

// TestUnacked: the frontend takes the request for refused, so nobody is called and nothing is run.
func TestUnacked(t *testing.T) {
	bubble(t, protocol.Decode, func(r *rig) {
		o := r.sendSpoilt("x", func(in *requestplane.Request) { in.Unacked = true })
		r.wg.Wait()
		if n := len(r.taps.dialled) + r.engine.Count(vllmtest.Received, ""); n != 0 {
			t.Errorf("%d calls", n)
		}
		o.Kill()
	})
}

// answersSlowly: every request gets its first token at once, and its last ten seconds later.
func (r *rig) answersSlowly() {
	r.engine.Set(func(b *vllmtest.Behaviour) {
		b.Script = func(*pb.GenerateRequest) []vllmtest.Step {
			return []vllmtest.Step{
				vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Tokens(1), vllmtest.Sleep(10 * time.Second), vllmtest.FinishToken(pb.FinishInfo_STOP, 2),
			}
		}
	})
}

// TestSameID: a second live request under one id gets another at the engine, so that an Abort hits only its own (M9).
func TestSameID(t *testing.T) {
	bubble(t, protocol.Decode, func(r *rig) {
		r.answersSlowly()
		first := r.send("x")
		synctest.Wait()
		second, third := r.send("x"), r.send("x")
		synctest.Wait()
		ids := map[string]bool{}
		for _, ev := range r.engine.Events() {
			if ev.Kind == vllmtest.Received {
				ids[ev.ID] = true
			}
		}
		if len(ids) != 3 || !ids["x"] {
			t.Fatalf("ids at the engine: %v", ids)
		}
		first.Kill()
		for _, o := range []*open{second, third} {
			if got := o.read(); got != "1 2 stop final" {
				t.Errorf("an innocent one read %q", got)
			}
		}
		r.wg.Wait()
		synctest.Wait()
		if mine, all := r.engine.Count(vllmtest.Aborted, "x"), r.engine.Count(vllmtest.Aborted, ""); mine != 1 || all != 1 {
			t.Errorf("%d aborts of x, %d in all", mine, all)
		}
		if got := r.send("x").read(); got != "1 2 stop final" {
			t.Errorf("a later one read %q", got)
		}
		if n := r.engine.Count(vllmtest.Received, "x"); n != 2 {
			t.Errorf("the id is not free again: %d", n)
		}
	})
}
