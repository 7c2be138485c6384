package worker

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/modelcard"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
	"remora/internal/handoff"
	"remora/internal/vllm"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// TestShutdownOrder: out of routing at once; still serving for the grace; then refusing, while answers run on; gone with the
// last of them, and with every record.
func TestShutdownOrder(t *testing.T) {
	inWhole(t, protocol.Aggregated, nil, func(w *whole) {
		w.engine.Script("long", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Tokens(1), vllmtest.Sleep(20*time.Second), vllmtest.FinishToken(pb.FinishInfo_LENGTH, 2))
		target := w.target()
		long := w.mustSend(target, "long")
		synctest.Wait()
		if code, _ := w.get("/health"); code != 200 {
			t.Errorf("/health says %d before the stop", code)
		}
		began := time.Now()
		w.stop()
		if w.published(discovery.Instances) != "" {
			t.Error("the instance is still published")
		}
		if w.published(discovery.ModelCards) == "" {
			t.Error("the card has gone before the answers")
		}
		if code, _ := w.get("/health"); code != 503 {
			t.Errorf("/health says %d in the grace", code)
		}
		<-after(grace - time.Second)
		if got := w.mustSend(target, "late").read(); got != "1 2 3 length final" {
			t.Errorf("the late one read %q", got)
		}
		<-after(2 * time.Second)
		_, err := w.send(target, "too late")
		var refusal *requestplane.Refusal
		if !errors.As(err, &refusal) || refusal.Overloaded || refusal.Reason != "draining" {
			t.Errorf("the one after the grace got %v", err)
		}
		if got := long.read(); got != "1 2 length final" {
			t.Errorf("the long one read %q", got)
		}
		w.ends(nil, began, 20*time.Second, 21*time.Second)
	})
}

// TestShutdownPatience: what still runs at its end is told that the worker shuts down, never that it was cancelled; an unreleased
// decode gets an Abort and a second of reading.
func TestShutdownPatience(t *testing.T) {
	silent := []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Silence()}
	deaf := []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.WaitDeaf(nil)}
	for name, row := range map[string]struct {
		role   protocol.Role
		script []vllmtest.Step
		reads  string
		engine string
		longer time.Duration
	}{
		"in mid-stream": {
			protocol.Aggregated, []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Tokens(1), vllmtest.Silence()},
			"1 error(Backend.EngineShutdown) final", "received headers sent aborted gone", 0,
		},
		"before headers":       {protocol.Aggregated, []vllmtest.Step{vllmtest.Silence()}, "prologue(Backend.EngineShutdown)", "received dropped", 0},
		"prefill":              {protocol.Prefill, silent, "error(Backend.EngineShutdown) final", "received headers sent aborted gone", 0},
		"decode":               {protocol.Decode, silent, "error(Backend.EngineShutdown) final", "received headers sent aborted gone", 0},
		"decode, deaf":         {protocol.Decode, deaf, "error(Backend.EngineShutdown) final", "received headers sent aborted", time.Second},
		"decode, headers late": {protocol.Decode, []vllmtest.Step{vllmtest.Silence()}, "prologue(Backend.EngineShutdown)", "received dropped", time.Second},
		"decode, whole within the second": {
			// The Abort that follows the headers may be noted before what the engine sends in the same breath.
			protocol.Decode, []vllmtest.Step{vllmtest.WaitDeaf(nil)}, "3 stop final", "received headers", 500 * time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWhole(t, row.role, nil, func(w *whole) {
				target := w.target()
				if strings.HasPrefix(name, "decode, whole") { // its timer must be of the bubble; an engine that hears the Abort has no whole answer
					w.engine.Set(func(b *vllmtest.Behaviour) { b.Deaf = true })
					row.script = []vllmtest.Step{
						vllmtest.WaitDeaf(after(grace + timeout + row.longer)), vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.FinishToken(pb.FinishInfo_STOP, 3),
					}
				}
				w.engine.Script("x", row.script...)
				o := w.mustSend(target, "x")
				synctest.Wait()
				began := time.Now()
				w.stop()
				if got := o.read(); got != row.reads {
					t.Errorf("read %q, want %q", got, row.reads)
				}
				w.ends(nil, began, grace+timeout+row.longer, grace+timeout+row.longer+time.Second)
				if got := w.saw("x"); !strings.HasPrefix(got, row.engine) {
					t.Errorf("engine saw %q, want %q", got, row.engine)
				}
			})
		})
	}
}

// TestShutdownWaitsForDrains also for those whose client has gone for long.
func TestShutdownWaitsForDrains(t *testing.T) {
	inWhole(t, protocol.Decode, nil, func(w *whole) {
		w.engine.Script("x", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Sleep(20*time.Second), vllmtest.Tokens(1), vllmtest.Silence())
		o := w.mustSend(w.target(), "x")
		synctest.Wait()
		o.Kill()
		began := time.Now()
		w.stop()
		w.ends(nil, began, 20*time.Second, 21*time.Second)
		if got := w.saw("x"); got != "received headers sent aborted gone" {
			t.Errorf("engine saw %q", got)
		}
	})
}

// TestShutdownWaitsForReleases: the hand-off of a declined decode is fetched although its request is over.
func TestShutdownWaitsForReleases(t *testing.T) {
	inWhole(t, protocol.Decode, func(w *whole) { w.cfg.ReleaseDeclined, w.cfg.GracePeriod = true, 0 }, func(w *whole) {
		w.engine.Script("x", vllmtest.Status(codes.NotFound, "no such adapter"))
		w.engine.Set(func(b *vllmtest.Behaviour) {
			b.Script = func(*pb.GenerateRequest) []vllmtest.Step {
				return []vllmtest.Step{
					vllmtest.Headers(), vllmtest.Prompt(1), vllmtest.Sleep(3 * time.Second), vllmtest.FinishToken(pb.FinishInfo_LENGTH, 1),
				}
			}
		})
		if got := w.mustSend(w.target(), "x").read(); got != "prologue(Backend.InvalidArgument)" {
			t.Errorf("read %q", got)
		}
		synctest.Wait()
		began := time.Now()
		w.stop()
		w.ends(nil, began, 3*time.Second, 4*time.Second)
		released := ""
		for _, ev := range w.engine.Events() {
			if ev.Kind == vllmtest.Received && ev.ID != "x" {
				released = ev.ID
			}
		}
		if got := w.saw(released); got != "received headers sent ended" {
			t.Errorf("engine saw %q", got)
		}
	})
}

// TestSecondSignal cuts at once, whenever it comes.
func TestSecondSignal(t *testing.T) {
	for name, moment := range map[string]time.Duration{
		"with the first": 0, "in the grace": time.Second, "while answers run on": grace + time.Second,
	} {
		for _, role := range []protocol.Role{protocol.Aggregated, protocol.Prefill, protocol.Decode} {
			t.Run(name+"/"+role.String(), func(t *testing.T) {
				inWhole(t, role, nil, func(w *whole) {
					w.engine.Script("x", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.WaitDeaf(nil))
					o := w.mustSend(w.target(), "x")
					synctest.Wait()
					w.stop()
					<-after(moment)
					began := time.Now()
					w.cut()
					if got := o.read(); got != "error(Backend.EngineShutdown) final" {
						t.Errorf("read %q", got)
					}
					w.ends(ErrCut, began, 0, 2*time.Second)
				})
			})
		}
	}
}

// TestCutAlone ends a worker that nobody has told to stop.
func TestCutAlone(t *testing.T) {
	inWhole(t, protocol.Decode, nil, func(w *whole) {
		w.engine.Script("x", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.WaitDeaf(nil))
		o := w.mustSend(w.target(), "x")
		synctest.Wait()
		began := time.Now()
		w.cut()
		if got := o.read(); got != "error(Backend.EngineShutdown) final" {
			t.Errorf("read %q", got)
		}
		w.ends(ErrCut, began, 0, 2*time.Second)
	})
}

// TestShutdownIdle: a worker without requests, prefill or not, stays for the grace and no longer.
func TestShutdownIdle(t *testing.T) {
	for _, role := range []protocol.Role{protocol.Aggregated, protocol.Prefill, protocol.Decode} {
		t.Run(role.String(), func(t *testing.T) {
			inWhole(t, role, nil, func(w *whole) {
				w.target()
				began := time.Now()
				w.stop()
				w.ends(nil, began, grace, grace+time.Second)
			})
		})
	}
}

// TestTimesAreTold: the gauges of how long the engine was waited for at the start, and the requests at the end.
func TestTimesAreTold(t *testing.T) {
	metrics := status.NewMetrics()
	inWhole(t, protocol.Aggregated, func(w *whole) {
		w.cfg.Metrics = metrics
		w.engine.Down()
		time.AfterFunc(10*time.Second, w.engine.Up)
	}, func(w *whole) {
		w.target()
		w.stop()
		<-w.done
	})
	told := httptest.NewRecorder()
	metrics.Handler().ServeHTTP(told, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	for _, name := range []string{"model_load_time", "drain_time"} {
		line := regexp.MustCompile(`(?m)^dynamo_component_` + name + `_seconds{.*} ([1-9][0-9.]*)$`)
		if !line.MatchString(told.Body.String()) {
			t.Errorf("%s is not told", name)
		}
	}
}

// TestShutdownMute: a client that does not read costs a shutdown its patience, but does not keep it.
func TestShutdownMute(t *testing.T) {
	inWhole(t, protocol.Aggregated, nil, func(w *whole) {
		w.engine.Script("x", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Repeat(50_000, 7), vllmtest.Silence())
		o := w.mustSend(w.target(), "x")
		synctest.Wait()
		began := time.Now()
		w.stop()
		w.ends(ErrCut, began, grace+timeout, grace+timeout+shutdownRead+settleTime+cutTime+time.Second)
		o.Kill()
	})
}

// TestServiceOfTheConfiguration: what the machines of all requests go by is what was configured, or the documented defaults.
func TestServiceOfTheConfiguration(t *testing.T) {
	serve := func(cfg Config, version vllm.Version) *service {
		cfg.ReleaseDeclined = true
		w := &worker{cfg: cfg.withDefaults(), metrics: status.NewMetrics()}
		return w.newService(t.Context(), nil, vllm.Discovery{Version: version}, modelcard.Card{})
	}
	old, current := vllm.Version{Minor: releaseSince - 1}, vllm.Version{Minor: releaseSince}
	s := serve(Config{Role: protocol.Decode, DrainDeadline: 7 * time.Second, Lease: 12 * time.Second, Policy: handoff.Release}, current)
	want := handoff.Config{
		Role: handoff.Decode, Policy: handoff.Release, DrainDeadline: 7 * time.Second, AbortPatience: 5 * time.Second, ShutdownRead: time.Second,
	}
	if s.machine != want || s.handoffs.lease != 12*time.Second || !s.releases {
		t.Errorf("%+v, lease %v, releases %v", s.machine, s.handoffs.lease, s.releases)
	}
	s = serve(Config{Role: protocol.Prefill}, old)
	if s.machine.DrainDeadline != 30*time.Second || s.handoffs.lease != 30*time.Second || s.machine.Policy != handoff.Drain || s.releases {
		t.Errorf("by default %+v, lease %v, releases %v", s.machine, s.handoffs.lease, s.releases)
	}
}
