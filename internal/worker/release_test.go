package worker

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/handoff"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// releases lists the requests that the engine got for the sake of a hand-off alone.
func (r *rig) releases() (all []*pb.GenerateRequest) {
	for _, ev := range r.engine.Events() {
		if ev.Kind == vllmtest.Received && strings.Contains(ev.ID, "-release-") {
			all = append(all, ev.Request)
		}
	}
	return all
}

// TestRelease: the hand-off of a decode that is declined is fetched once by a request of one token (M10), unless it is too old or
// was used before, and only where the engine itself declined it or it was declined here.
func TestRelease(t *testing.T) {
	stamped := prefilled(t, true)
	unfit := func(b *protocol.PreprocessedRequest) { n := uint8(2); b.SamplingOptions.N = &n }
	for name, row := range map[string]struct {
		spoil    func(b *protocol.PreprocessedRequest)
		engine   []vllmtest.Step
		age      time.Duration // of the hand-off when the decode is sent
		off      bool
		again    bool // the same hand-off was used before
		want     string
		releases int
		result   string // of the metric
	}{
		"declined here":             {spoil: unfit, age: time.Second, want: "prologue(Backend.InvalidArgument)", releases: 1, result: "done"},
		"declined by the engine":    {engine: []vllmtest.Step{vllmtest.Status(codes.NotFound, "model `x` not found")}, age: time.Second, want: "prologue(Backend.InvalidArgument)", releases: 1, result: "done"},
		"declined for want of room": {engine: []vllmtest.Step{vllmtest.Status(codes.ResourceExhausted, "full")}, age: time.Second, want: "prologue(WorkerOverloaded)", releases: 1, result: "done"},
		"declined late: too old":    {engine: []vllmtest.Step{vllmtest.Sleep(25 * time.Second), vllmtest.Status(codes.NotFound, "no")}, age: time.Second, want: "prologue(Backend.InvalidArgument)", result: "failed"},
		"declined here: too old":    {spoil: unfit, age: time.Minute, want: "prologue(Backend.InvalidArgument)"},
		"declined here: used":       {spoil: unfit, age: time.Second, again: true, want: "prologue(Backend.InvalidArgument)"},
		"switched off":              {spoil: unfit, age: time.Second, off: true, want: "prologue(Backend.InvalidArgument)"},
		"the engine broke":          {engine: []vllmtest.Step{vllmtest.Status(codes.Internal, "engine failed")}, age: time.Second, want: "error(Backend.Unknown) final"},
		"declined after headers":    {engine: []vllmtest.Step{vllmtest.Headers(), vllmtest.Status(codes.InvalidArgument, "late")}, age: time.Second, want: "error(Backend.InvalidArgument) final"},
		"answered":                  {age: time.Second, want: "1 2 3 length final"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, protocol.Decode, func(r *rig) {
				r.svc.releases = !row.off
				ask := func(id string, spoil func(b *protocol.PreprocessedRequest)) *open {
					return r.sendSpoilt(id, func(in *requestplane.Request) {
						b := r.body()
						b.PrefillResult.DisaggregatedParams = stamped
						if spoil != nil {
							spoil(b)
						}
						in.Body = protocol.AppendRequest(nil, protocol.MsgPack, b)
						in.Headers.FrontendSendNS = sentAt + (2*time.Second + row.age).Nanoseconds()
					})
				}
				if row.again {
					ask("before", nil).read()
				}
				if row.engine != nil {
					r.engine.Script("x", row.engine...)
				}
				if got := ask("x", row.spoil).read(); got != row.want {
					t.Errorf("read %q, want %q", got, row.want)
				}
				r.wg.Wait()
				r.svc.background.Wait()
				sent := r.releases()
				if len(sent) != row.releases {
					t.Fatalf("%d releases, want %d", len(sent), row.releases)
				}
				for _, q := range sent {
					params := q.GetKv().GetKvTransferParams()
					if len(q.GetTokenIds().GetIds()) != 1 || q.GetStopping().GetMaxNewTokens() != 1 || params.GetFields()["remote_request_id"] == nil {
						t.Errorf("released by %v", q)
					}
				}
				if row.result != "" && r.count("remora_handoff_releases_total", `"`+row.result+`"`) != 1 {
					t.Errorf("not counted as %s", row.result)
				}
			})
		})
	}
}

// TestReleaseFails: a release that the engine refuses, or does not end within the drain deadline, is counted as failed.
func TestReleaseFails(t *testing.T) {
	for name, row := range map[string]struct {
		script []vllmtest.Step
		takes  time.Duration
	}{
		"refused": {[]vllmtest.Step{vllmtest.Status(codes.Internal, "no")}, 0},
		"silence": {[]vllmtest.Step{vllmtest.Headers(), vllmtest.Silence()}, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, protocol.Decode, func(r *rig) {
				r.svc.releases = true
				r.engine.Script("x", vllmtest.Status(codes.NotFound, "no"))
				r.engine.Set(func(b *vllmtest.Behaviour) {
					b.Script = func(*pb.GenerateRequest) []vllmtest.Step { return row.script }
				})
				began := time.Now()
				r.send("x").read()
				r.wg.Wait()
				r.svc.background.Wait()
				if took := time.Since(began); took < row.takes || took > row.takes+time.Second {
					t.Errorf("it took %v, want %v", took, row.takes)
				}
				if failed, done := r.count("remora_handoff_releases_total", `"failed"`), r.count("remora_handoff_releases_total", `"done"`); failed != 1 || done != 0 {
					t.Errorf("%v failed, %v done", failed, done)
				}
			})
		})
	}
}

// TestReleaseDoesNotWaitForTheFrontend: a refused decode dials back and releases at once.
func TestReleaseDoesNotWaitForTheFrontend(t *testing.T) {
	bubble(t, protocol.Decode, func(r *rig) {
		r.svc.releases = true
		r.dialing = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		b := r.body()
		n := uint8(2)
		b.SamplingOptions.N = &n
		began := time.Now()
		if _, err := r.sendBody("x", protocol.AppendRequest(nil, protocol.MsgPack, b)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if sent := r.releases(); len(sent) != 1 || !time.Now().Equal(began) {
			t.Errorf("%d releases after %v", len(sent), time.Since(began))
		}
	})
}

// TestDrainOutcomes: each is counted under its own word.
func TestDrainOutcomes(t *testing.T) {
	bubble(t, protocol.Decode, func(r *rig) {
		for o := handoff.DrainReleased; o <= handoff.DrainCut; o++ {
			r.svc.metrics.DrainEnded(drainOutcome(o), time.Second)
			if n := r.count("remora_drains_total", `"`+o.String()+`"`); n != 1 {
				t.Errorf("%v is counted %v times under its name", o, n)
			}
		}
	})
}

// TestPolicyRelease: an Abort as soon as the headers are there frees the hand-off although no token would come for long; an
// engine that does not know Abort is drained instead.
func TestPolicyRelease(t *testing.T) {
	for name, row := range map[string]struct {
		control func(ctx context.Context, method string) error
		deaf    bool
		want    string
		outcome string
		held    time.Duration
	}{
		"confirmed":  {want: "received headers sent aborted gone", outcome: "aborted", held: 0},
		"unanswered": {deaf: true, want: "received headers sent aborted gone", outcome: "deadline", held: 5 * time.Second},
		"unknown": {
			control: func(_ context.Context, method string) error {
				if method == "Abort" {
					return status.Error(codes.Unimplemented, "")
				}
				return nil
			},
			want: "received headers sent aborted gone", outcome: "released", held: 20 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, protocol.Decode, func(r *rig) {
				r.svc.machine.Policy, r.svc.machine.AbortPatience = handoff.Release, abortTimeout
				r.engine.Set(func(b *vllmtest.Behaviour) { b.Control, b.Deaf = row.control, row.deaf })
				r.engine.Script("x", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Sleep(20*time.Second), vllmtest.Tokens(1), vllmtest.Silence())
				o := r.send("x")
				synctest.Wait()
				began := time.Now()
				o.Kill()
				r.wg.Wait()
				if held := time.Since(began); held < row.held || held > row.held+abortGrace {
					t.Errorf("held for %v, want %v", held, row.held)
				}
				r.svc.background.Wait()
				synctest.Wait()
				if got := r.saw("x"); got != row.want {
					t.Errorf("engine saw %q, want %q", got, row.want)
				}
				if r.count("remora_drains_total", `"`+row.outcome+`"`) != 1 {
					t.Errorf("the drain is not counted as %s", row.outcome)
				}
			})
		})
	}
}

// TestShutdownReplacesPatience: the end of a shutdown reads on for its second, though the patience for an Abort ends within it;
// and what has ended leaves no timer behind.
func TestShutdownReplacesPatience(t *testing.T) {
	bubble(t, protocol.Decode, func(r *rig) {
		r.svc.machine.Policy, r.svc.machine.AbortPatience = handoff.Release, abortTimeout
		r.engine.Set(func(b *vllmtest.Behaviour) { b.Deaf = true })
		r.engine.Script("x", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Silence())
		o := r.send("x")
		synctest.Wait()
		req := r.svc.requests()[0]
		began := time.Now()
		o.Kill()
		<-after(abortTimeout - shutdownRead/2)
		r.svc.broadcast(handoff.EventShutdown)
		r.wg.Wait()
		if held := time.Since(began); held != abortTimeout+shutdownRead/2 {
			t.Errorf("held for %v, want %v", held, abortTimeout+shutdownRead/2)
		}
		if req.deadline.Stop() || req.patience.Stop() {
			t.Error("a timer still runs")
		}
	})
}

// TestDropWaitsForTheAbort: an engine that does not answer an Abort keeps the drop that follows it for a second, not longer.
func TestDropWaitsForTheAbort(t *testing.T) {
	for name, row := range map[string]struct{ answer, dropped time.Duration }{
		"answered":  {answer: 300 * time.Millisecond, dropped: 300 * time.Millisecond},
		"too late":  {answer: 3 * time.Second, dropped: time.Second},
		"never":     {answer: time.Hour, dropped: time.Second},
		"in a wink": {},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, protocol.Aggregated, func(r *rig) {
				r.engine.Set(func(b *vllmtest.Behaviour) {
					b.Deaf = true // it answers, but does nothing
					b.Control = func(ctx context.Context, method string) error {
						if method == "Abort" && row.answer > 0 {
							select {
							case <-after(row.answer):
							case <-ctx.Done():
							}
						}
						return nil
					}
				})
				r.engine.Script("x", vllmtest.Headers(), vllmtest.Silence())
				o := r.send("x")
				synctest.Wait()
				left := time.Now()
				o.Kill()
				r.wg.Wait()
				synctest.Wait()
				for _, ev := range r.engine.Events() {
					if ev.Kind == vllmtest.Dropped && ev.At.Sub(left) != row.dropped {
						t.Errorf("dropped after %v, want %v", ev.At.Sub(left), row.dropped)
					}
				}
				if n := r.engine.Count(vllmtest.Dropped, "x"); n != 1 {
					t.Errorf("dropped %d times", n)
				}
			})
		})
	}
}

// TestAbortNamesItsOwn: the Abort of a request that got another id at the engine bears that one (M9).
func TestAbortNamesItsOwn(t *testing.T) {
	bubble(t, protocol.Aggregated, func(r *rig) {
		r.answersSlowly()
		first := r.send("x")
		synctest.Wait()
		second := r.send("x")
		synctest.Wait()
		second.Kill()
		if got := first.read(); got != "1 2 stop final" {
			t.Errorf("the first one read %q", got)
		}
		r.wg.Wait()
		synctest.Wait()
		if mine, all := r.engine.Count(vllmtest.Aborted, "x"), r.engine.Count(vllmtest.Aborted, ""); mine != 0 || all != 1 {
			t.Errorf("%d aborts of x, %d in all", mine, all)
		}
	})
}

// TestLateAbortSparesTheNext: as long as an Abort is on its way, nobody else may bear the id (M9).
func TestLateAbortSparesTheNext(t *testing.T) {
	bubble(t, protocol.Aggregated, func(r *rig) {
		r.engine.Set(func(b *vllmtest.Behaviour) {
			b.Control = func(ctx context.Context, method string) error {
				if method == "Abort" {
					select {
					case <-after(3 * time.Second):
					case <-ctx.Done():
					}
				}
				return nil
			}
		})
		r.engine.Script("x", vllmtest.Headers(), vllmtest.Silence())
		o := r.send("x")
		synctest.Wait()
		o.Kill()
		<-after(2 * time.Second) // the stream was dropped a second ago, the Abort has not arrived
		r.engine.Script("x", vllmtest.Headers(), vllmtest.Silence())
		next := r.send("x")
		if got := next.read(); got != "1 2 3 length final" {
			t.Errorf("the next one read %q", got)
		}
	})
}
