package worker

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/protocol"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// TestEngineAway: within two seconds out of routing, not ready and refusing; back, with the same instance, when the
// same engine serves again. Answers of an engine that is gone end so that their clients can go elsewhere; those of one that
// says NOT_SERVING go on.
func TestEngineAway(t *testing.T) {
	for name, row := range map[string]struct {
		away, back func(e *vllmtest.Engine)
		reads      string // by a client whose answer runs
		counted    string // as the state
	}{
		"not serving": {
			func(e *vllmtest.Engine) { e.SetAllHealth(healthpb.HealthCheckResponse_NOT_SERVING) },
			func(e *vllmtest.Engine) { e.SetAllHealth(healthpb.HealthCheckResponse_SERVING) },
			"1 2 length final", "not_serving",
		},
		"gone":   {(*vllmtest.Engine).Down, (*vllmtest.Engine).Up, "1 error(Backend.EngineShutdown) final", "gone"},
		"frozen": {(*vllmtest.Engine).Freeze, (*vllmtest.Engine).Thaw, "1 error(Backend.EngineShutdown) final", "silent"},
	} {
		t.Run(name, func(t *testing.T) {
			inWhole(t, protocol.Aggregated, nil, func(w *whole) {
				target := w.target()
				w.engine.Script("x", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Tokens(1), vllmtest.Sleep(10*time.Second), vllmtest.FinishToken(pb.FinishInfo_LENGTH, 2))
				o := w.mustSend(target, "x")
				synctest.Wait()
				row.away(w.engine)
				<-after(2 * time.Second)
				if got := w.published(discovery.Instances); got != "" {
					t.Errorf("published: %s", got)
				}
				if w.published(discovery.ModelCards) == "" {
					t.Error("the card has gone, too")
				}
				if code, _ := w.get("/health"); code != 503 {
					t.Errorf("/health says %d", code)
				}
				if _, body := w.get("/metrics"); !strings.Contains(body, "\nremora_engine_up 0") {
					t.Error("the metrics say that the engine is up")
				} else if !strings.Contains(body, "\nremora_engine_losses_total{state=\""+row.counted+"\"} 1\n") {
					t.Errorf("no loss %s is counted", row.counted)
				}
				if _, err := w.send(target, "late"); err == nil || !strings.Contains(err.Error(), "Server unavailable: engine ") {
					t.Errorf("a late request got %v", err)
				}
				if got := o.read(); got != row.reads {
					t.Errorf("read %q, want %q", got, row.reads)
				}
				row.back(w.engine)
				<-after(10 * time.Second)
				if got := w.published(discovery.Instances); !strings.Contains(got, target) {
					t.Errorf("published: %q", got)
				}
				if code, _ := w.get("/health"); code != 200 {
					t.Errorf("/health says %d", code)
				}
				if _, body := w.get("/metrics"); !strings.Contains(body, "\nremora_engine_up 1") {
					t.Error("the metrics say that the engine is away")
				}
				if got := w.mustSend(target, "again").read(); got != "1 2 3 length final" {
					t.Errorf("read %q", got)
				}
			})
		})
	}
}

// TestStopWhileEngineIsAway: nothing is published again, and the stop takes no longer than its grace.
func TestStopWhileEngineIsAway(t *testing.T) {
	for name, away := range map[string]func(e *vllmtest.Engine){
		"gone": (*vllmtest.Engine).Down, "frozen": (*vllmtest.Engine).Freeze,
	} {
		t.Run(name, func(t *testing.T) {
			inWhole(t, protocol.Prefill, nil, func(w *whole) {
				w.target()
				away(w.engine)
				<-after(5 * time.Second)
				began := time.Now()
				w.stop()
				<-after(time.Second)
				w.engine.Thaw()
				w.engine.Up()
				w.ends(nil, began, grace, grace+time.Second)
			})
		})
	}
}

// TestAnotherEngine in the place of ours ends the worker: its card would be wrong.
func TestAnotherEngine(t *testing.T) {
	inWhole(t, protocol.Aggregated, nil, func(w *whole) {
		w.target()
		w.engine.Set(func(b *vllmtest.Behaviour) { b.Model.ServedModelName = "other" })
		w.engine.Restart("2")
		<-w.done
		if w.err == nil || !strings.Contains(w.err.Error(), `served_model_name was "tiny" and is "other"`) || strings.Contains(w.err.Error(), "\n") {
			t.Errorf("got %v", w.err)
		}
	})
}

// TestEngineRestarts as the same: the worker takes it up again.
func TestEngineRestarts(t *testing.T) {
	inWhole(t, protocol.Decode, nil, func(w *whole) {
		target := w.target()
		w.engine.Restart("2")
		<-after(40 * time.Second)
		if got := w.mustSend(target, "x").read(); got != "1 2 3 length final" {
			t.Errorf("read %q", got)
		}
	})
}

// TestCardFollowsCapacity: an engine that is back with another number of KV blocks gets another card, under the same key; one
// whose answers fail at first is asked until they are good.
func TestCardFollowsCapacity(t *testing.T) {
	inWhole(t, protocol.Aggregated, nil, func(w *whole) {
		target := w.target()
		before := w.published(discovery.ModelCards)
		fails := 3
		w.engine.Set(func(b *vllmtest.Behaviour) {
			b.Server.TotalKvBlocks = 33
			b.Control = func(_ context.Context, method string) error {
				if method == "GetModelInfo" && fails > 0 {
					fails--
					return status.Error(codes.Internal, "not yet")
				}
				return nil
			}
		})
		w.engine.Restart("2")
		<-after(20 * time.Second)
		card := w.published(discovery.ModelCards)
		if card == before || !strings.Contains(card, `"total_kv_blocks":33`) {
			t.Errorf("card: %s", card)
		}
		if got := w.published(discovery.Instances); !strings.Contains(got, target) || fails != 0 {
			t.Errorf("published %q with %d failures to come", got, fails)
		}
	})
}

// TestSilentEngine: out of routing at once, but answers wait for an engine that is only too busy, or stopped for a moment.
func TestSilentEngine(t *testing.T) {
	for name, row := range map[string]struct {
		silent time.Duration
		reads  string
	}{
		"for a moment":     {3500 * time.Millisecond, "1 2 length final"},
		"at the last look": {5500 * time.Millisecond, "1 2 length final"},
		"for good":         {time.Hour, "1 error(Backend.EngineShutdown) final"},
	} {
		t.Run(name, func(t *testing.T) {
			inWhole(t, protocol.Aggregated, nil, func(w *whole) {
				target := w.target()
				w.engine.Script("x", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Tokens(1), vllmtest.Sleep(20*time.Second), vllmtest.FinishToken(pb.FinishInfo_LENGTH, 2))
				o := w.mustSend(target, "x")
				synctest.Wait()
				began := time.Now()
				time.AfterFunc(row.silent, w.engine.Thaw)
				w.engine.Freeze()
				<-after(2 * time.Second)
				if got := w.published(discovery.Instances); got != "" {
					t.Errorf("published: %s", got)
				}
				if got := o.read(); got != row.reads {
					t.Errorf("read %q, want %q", got, row.reads)
				}
				if took := time.Since(began); row.silent == time.Hour && (took < 4*time.Second || took > 6*time.Second) {
					t.Errorf("the answer ended after %v", took)
				}
				if row.silent == time.Hour {
					return
				}
				if got := w.published(discovery.Instances); !strings.Contains(got, target) {
					t.Errorf("published: %q", got)
				}
			})
		})
	}
}

// hungStore is a discovery that can stop to answer.
type hungStore struct {
	discovery.Store

	hung      atomic.Bool
	instances atomic.Int32 // that were published
}

func (s *hungStore) Create(ctx context.Context, bucket discovery.Bucket, key string, value []byte) error {
	if bucket == discovery.Instances {
		s.instances.Add(1)
	}
	return s.Store.Create(ctx, bucket, key, value)
}

func (s *hungStore) Delete(ctx context.Context, bucket discovery.Bucket, key string) error {
	if s.hung.Load() {
		<-ctx.Done()
	}
	return s.Store.Delete(ctx, bucket, key)
}

func (s *hungStore) Close(ctx context.Context) error {
	if s.hung.Load() {
		<-ctx.Done()
	}
	return s.Store.Close(context.WithoutCancel(ctx))
}

// inHung runs body in a whole worker with such a discovery.
func inHung(t *testing.T, role protocol.Role, body func(w *whole, store *hungStore)) {
	t.Helper()
	store := new(hungStore)
	inWhole(t, role, func(w *whole) {
		store.Store = w.cfg.Store
		w.cfg.Store = store
	}, func(w *whole) { body(w, store) })
}

// TestEngineGoneWhileDiscoveryHangs: answers end all the same, and the worker is back when both are.
func TestEngineGoneWhileDiscoveryHangs(t *testing.T) {
	inHung(t, protocol.Aggregated, func(w *whole, store *hungStore) {
		target := w.target()
		w.engine.Script("x", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Tokens(1), vllmtest.Silence())
		o := w.mustSend(target, "x")
		synctest.Wait()
		store.hung.Store(true)
		w.engine.Freeze()
		began := time.Now()
		if got := o.read(); got != "1 error(Backend.EngineShutdown) final" || time.Since(began) > 7*time.Second {
			t.Errorf("read %q after %v", got, time.Since(began))
		}
		<-after(time.Second)
		store.hung.Store(false)
		w.engine.Thaw()
		<-after(10 * time.Second)
		if got := w.mustSend(target, "again").read(); got != "1 2 3 length final" {
			t.Errorf("read %q", got)
		}
	})
}

// TestCutWhileDiscoveryHangs: a second signal does not wait for a discovery that does not answer, whenever it comes: not once for
// each record, but for the first and for the lease.
func TestCutWhileDiscoveryHangs(t *testing.T) {
	for _, later := range []time.Duration{0, time.Second, 6 * time.Second, 11 * time.Second, 17 * time.Second} {
		t.Run(later.String(), func(t *testing.T) {
			inHung(t, protocol.Decode, func(w *whole, store *hungStore) {
				w.target()
				store.hung.Store(true)
				w.stop()
				<-after(later)
				began := time.Now()
				w.cut()
				w.ends(nil, began, 0, 2*hurriedTimeout+100*time.Millisecond)
			})
		})
	}
}

// TestEngineLostAgainWhileLookedAt: what was found before that puts the worker back into routing no more.
func TestEngineLostAgainWhileLookedAt(t *testing.T) {
	inHung(t, protocol.Aggregated, func(w *whole, store *hungStore) {
		target := w.target()
		looked := make(chan struct{})
		var once sync.Once
		w.engine.Set(func(b *vllmtest.Behaviour) {
			b.Control = func(_ context.Context, method string) error {
				if method == "GetModelInfo" {
					once.Do(func() {
						w.engine.SetAllHealth(healthpb.HealthCheckResponse_NOT_SERVING)
						<-after(3 * time.Second)
						w.engine.SetAllHealth(healthpb.HealthCheckResponse_SERVING)
						close(looked)
					})
				}
				return nil
			}
		})
		w.engine.SetAllHealth(healthpb.HealthCheckResponse_NOT_SERVING)
		<-after(time.Second)
		w.engine.SetAllHealth(healthpb.HealthCheckResponse_SERVING)
		<-looked
		<-after(500 * time.Millisecond)
		if n := store.instances.Load(); n != 1 {
			t.Errorf("published %d times", n)
		}
		if _, err := w.send(target, "early"); err == nil {
			t.Error("a request was taken by a worker that is out of routing")
		}
		<-after(10 * time.Second)
		if got := w.mustSend(target, "again").read(); got != "1 2 3 length final" {
			t.Errorf("read %q", got)
		}
	})
}
