package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/handoff"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// hold blocks a dial-back until the channel is closed or the dialer gives up.
func hold(until <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-until:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func refused(context.Context) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// TestDialBackFails: a frontend that can't be reached has left. An aggregated request and a prefill cost no RPC; a decode's
// hand-off reaches the engine all the same and is drained.
func TestDialBackFails(t *testing.T) {
	for name, dialing := range map[string]func(context.Context) error{
		"refused": refused,
		"unreachable": func(context.Context) error {
			return errors.New("no route to host")
		},
		"hangs": hold(nil),
	} {
		for _, role := range []protocol.Role{protocol.Aggregated, protocol.Prefill, protocol.Decode} {
			t.Run(name+"/"+role.String(), func(t *testing.T) {
				bubble(t, role, func(r *rig) {
					logs := r.watchLog()
					r.dialing = dialing
					r.engine.Script("x", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Sleep(10*time.Second), vllmtest.Tokens(1), vllmtest.Silence())
					o := r.send("x")
					defer o.Kill()
					r.wg.Wait()
					synctest.Wait()
					want := ""
					if role == protocol.Decode {
						want = "received headers sent aborted gone"
					}
					if got := r.saw("x"); got != want {
						t.Errorf("engine saw %q, want %q", got, want)
					}
					r.counted(map[string]float64{"cancelled": 1}, 0)
					if n := r.count("dynamo_component_errors_total", `"response_stream"`); n != 1 {
						t.Errorf("%v failures of the response stream counted, want 1", n)
					}
					if got := logs.above("INFO"); len(got) != 1 || !strings.Contains(got[0], "dialled back") || !strings.Contains(got[0], "request_id=x") {
						t.Errorf("log: %q", got)
					}
				})
			})
		}
	}
}

func TestDialBackIsTriedAgain(t *testing.T) {
	bubble(t, protocol.Aggregated, func(r *rig) {
		attempts := 0
		r.dialing = func(ctx context.Context) error {
			if attempts++; attempts < 3 {
				return refused(ctx)
			}
			return nil
		}
		if got := r.send("x").read(); got != "1 2 3 length final" {
			t.Errorf("read %q", got)
		}
	})
}

// TestSlowDial: the engine answers a decode while the dial-back is still on its way. What is kept for the client is bounded,
// the engine is held back, and nothing is lost or turned around.
func TestSlowDial(t *testing.T) {
	const messages, each = 10_000, 30
	bubble(t, protocol.Decode, func(r *rig) {
		steps := []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4)}
		var want []string
		for range messages {
			ids := make([]uint32, each)
			for i := range ids {
				ids[i] = uint32(len(want))
				want = append(want, strconv.Itoa(len(want)))
			}
			steps = append(steps, vllmtest.Batch(ids...))
		}
		r.engine.Script("x", append(steps, vllmtest.FinishToken(pb.FinishInfo_STOP, 7))...)
		r.dialing = hold(after(4 * time.Second))
		o := r.send("x")
		synctest.Wait()
		if sent := r.engine.Count(vllmtest.Sent, "x"); sent < 100 || sent > messages*3/4 {
			t.Errorf("%d messages sent while nobody reads", sent)
		}
		if kept := r.pendingOf("x"); kept == 0 || kept > pendingBeforeDial+1<<20 {
			t.Errorf("%d bytes kept", kept)
		}
		if got := o.read(); got != strings.Join(want, " ")+" 7 stop final" {
			t.Errorf("read %d bytes, ending in %q", len(got), got[max(0, len(got)-60):])
		}
	})
}

// TestKillBeforeDialEnds: the frontend has forgotten the request when the worker calls.
func TestKillBeforeDialEnds(t *testing.T) {
	for role, want := range map[protocol.Role]string{
		protocol.Aggregated: "", protocol.Prefill: "", protocol.Decode: "received headers sent aborted gone",
	} {
		t.Run(role.String(), func(t *testing.T) {
			bubble(t, role, func(r *rig) {
				r.engine.Script("x", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Sleep(10*time.Second), vllmtest.Tokens(1), vllmtest.Silence())
				r.dialing = hold(after(2 * time.Second))
				o := r.send("x")
				synctest.Wait()
				o.Kill()
				if role != protocol.Decode {
					// The dial succeeds before the frontend hangs up, so whether the engine hears of it is a race. It must not stay.
					r.wg.Wait()
					synctest.Wait()
					if n := r.engine.Live(); n != 0 {
						t.Errorf("%d requests live at the engine", n)
					}
					return
				}
				r.wg.Wait()
				synctest.Wait()
				if got := r.saw("x"); got != want {
					t.Errorf("engine saw %q, want %q", got, want)
				}
			})
		})
	}
}

// TestResetWhileWriting: the loss of the connection shows in a write first.
func TestResetWhileWriting(t *testing.T) {
	reset := os.NewSyscallError("write", syscall.ECONNRESET)
	for name, row := range map[string]struct {
		role              protocol.Role
		after             []vllmtest.Step
		engine            string
		terminal, counted string
	}{
		"a token, aggregated": {protocol.Aggregated, []vllmtest.Step{vllmtest.Tokens(2), vllmtest.Silence()},
			"received headers sent aborted gone", "cancelled", "publish_response"},
		"a token, decode": {protocol.Decode, []vllmtest.Step{vllmtest.Tokens(2), vllmtest.Silence()},
			"received headers sent aborted gone", "cancelled", "publish_response"},
		"the end": {protocol.Aggregated, []vllmtest.Step{vllmtest.FinishToken(pb.FinishInfo_LENGTH, 2)},
			"received headers sent ended", "finished", "publish_final"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, row.role, func(r *rig) {
				steps := []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Tokens(1), vllmtest.Sleep(time.Second)}
				r.engine.Script("x", append(steps, row.after...)...)
				o := r.send("x")
				synctest.Wait()
				r.taps.of(&r.taps.dialled, o.subject).breakWrites(reset)
				r.wg.Wait()
				r.svc.background.Wait()
				synctest.Wait()
				if got := r.saw("x"); got != row.engine {
					t.Errorf("engine saw %q, want %q", got, row.engine)
				}
				r.counted(map[string]float64{row.terminal: 1}, 0)
				if n := r.count("dynamo_component_errors_total", `"`+row.counted+`"`); n != 1 {
					t.Errorf("%v times %s, want 1", n, row.counted)
				}
				o.Kill()
			})
		})
	}
}

// TestConsumerThatDoesNotRead holds back its own stream alone, at a bounded price, and can still be heard.
func TestConsumerThatDoesNotRead(t *testing.T) {
	const tokens = 50_000
	for _, way := range []string{"kill", "cut", "shutdown"} {
		t.Run(way, func(t *testing.T) {
			bubble(t, protocol.Aggregated, func(r *rig) {
				sent := make(chan struct{})
				r.engine.Script("mute", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Repeat(tokens, 7),
					vllmtest.Do(func(*vllmtest.Call) { close(sent) }), vllmtest.Silence())
				mute := r.send("mute")
				synctest.Wait()
				select {
				case <-sent:
					t.Error("the engine could send everything")
				default:
				}
				if kept := r.pendingOf("mute"); kept > 64<<10 {
					t.Errorf("%d bytes kept", kept)
				}
				if got := r.send("other").read(); got != "1 2 3 length final" {
					t.Errorf("the other request read %q", got)
				}
				began := time.Now()
				if way == "shutdown" {
					// Its terminal is behind all that was not read: it gets readOutTimeout, and then goes.
					r.svc.broadcast(handoff.EventShutdown)
				} else {
					mute.leave(way)
				}
				r.wg.Wait()
				if took := time.Since(began); way != "shutdown" && took > 2*time.Second || took > readOutTimeout {
					t.Errorf("it stayed for %v", took)
				}
				synctest.Wait()
				if n := r.engine.Live(); n != 0 {
					t.Errorf("%d requests live at the engine", n)
				}
				mute.Kill()
			})
		})
	}
}

// TestFrontendDies with many decodes open: none is aborted before its release, all are drained, nothing is left (M4).
func TestFrontendDies(t *testing.T) {
	const many = 100
	bubble(t, protocol.Decode, func(r *rig) {
		r.svc.gate = newGate(many, 0, r.svc.metrics)
		r.engine.Set(func(b *vllmtest.Behaviour) {
			b.Script = func(*pb.GenerateRequest) []vllmtest.Step {
				return []vllmtest.Step{
					vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Sleep(10 * time.Second), vllmtest.Tokens(1), vllmtest.Silence(),
				}
			}
		})
		var all []*open
		for i := range many {
			all = append(all, r.send(fmt.Sprintf("x%d", i)))
		}
		synctest.Wait()
		for _, o := range all {
			o.cut()
		}
		<-after(9 * time.Second)
		synctest.Wait()
		if live, aborted := r.engine.Live(), r.engine.Count(vllmtest.Aborted, ""); live != many || aborted != 0 {
			t.Errorf("before the release: %d live, %d aborted", live, aborted)
		}
		if _, err := r.try("one more"); err == nil {
			t.Error("drains do not count against the limit")
		}
		r.wg.Wait()
		synctest.Wait()
		if n := r.count("remora_drains_total", `"released"`); n != many {
			t.Errorf("%v released, want %d", n, many)
		}
		r.counted(map[string]float64{"cancelled": many}, 0)
		for _, o := range all {
			o.Kill()
		}
	})
}

// TestStopThenKill: the drain that the stop began goes on, once.
func TestStopThenKill(t *testing.T) {
	bubble(t, protocol.Decode, func(r *rig) {
		r.engine.Script("x", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Sleep(10*time.Second), vllmtest.Tokens(1), vllmtest.Silence())
		o := r.send("x")
		synctest.Wait()
		for range 3 {
			o.say("stop")
			synctest.Wait()
		}
		o.Kill()
		r.wg.Wait()
		synctest.Wait()
		if got := r.saw("x"); !strings.HasPrefix(got, "received headers sent aborted") { // then its answer or the drop, by chance
			t.Errorf("engine saw %q", got)
		}
		if n := r.count("dynamo_component_cancellation_total"); n != 1 {
			t.Errorf("%v cancels counted, want 1", n)
		}
		r.counted(map[string]float64{"cancelled": 1}, 0)
	})
}

// pendingOf tells how many bytes wait to be written for a request.
func (r *rig) pendingOf(engineID string) int {
	r.svc.mu.Lock()
	req := r.svc.live[engineID]
	r.svc.mu.Unlock()
	if req == nil {
		r.t.Errorf("%s is not live", engineID)
		return 0
	}
	req.mu.Lock()
	defer req.mu.Unlock()
	return len(req.answer.pending)
}
