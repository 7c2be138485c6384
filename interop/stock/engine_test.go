package stock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"remora/interop/harness"
)

// away bounds how long a dead engine may stay in routing. The sidecar needs milliseconds; the rest is for a busy machine.
const away = 2 * time.Second

// TestEngineDiesAndReturns wants a worker to leave routing with its engine, its answers to end, and the worker to be back with
// the same engine, without anybody's help.
func TestEngineDiesAndReturns(t *testing.T) {
	d := aggregated(t, harness.Remora)
	engine, worker := d.sims[0], d.sidecars[0]
	before := good(t, d.Frontend, prompt("the same again")).Text
	s := d.Open(t, endless("dies"))
	s.ReadChunks(t, 3)

	engine.Stop(harness.AtOnce)
	harness.Poll(t, "the instance record to go", away, func() error { return noInstance(t, d) })
	s.ReadAll(t)
	if s.Error == "" {
		t.Errorf("the answer of the dead engine ended with finish %q and no error", s.Finish)
	}
	d.WaitGone(t, model, away)
	if _, err := worker.Status.Get(t.Context(), "/health"); err == nil {
		t.Error("the worker of a dead engine says that it is healthy")
	}

	engine.Restart(t)
	d.WaitServing(t, model)
	worker.WaitReady(t)
	if after := good(t, d.Frontend, prompt("the same again")).Text; after != before {
		t.Errorf("said %q before and %q after", before, after)
	}

	// Blocks of another size: hand-offs and routing tables of before are void, and so is the card.
	engine.Stop(harness.AtOnce)
	harness.Poll(t, "the instance record to go", away, func() error { return noInstance(t, d) })
	engine.Restart(t, "--block-size", "32")
	if code := worker.WaitExit(t, harness.Grace); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	if log := worker.Log(); !strings.Contains(log, "KV block size was 16 and is 32") {
		t.Errorf("the last words do not say what has changed: %s", worker.LogTail(3))
	}
}

var (
	errThere = errors.New("it is still there")
	errQuiet = errors.New("no hand-off was refused yet")
)

func noInstance(t *testing.T, d *deployment) error {
	t.Helper()
	for _, r := range records(t, d.Discovery) {
		if strings.HasPrefix(r, "v1/instances/") {
			return errThere
		}
	}
	return nil
}

// TestRefusedHandOff shows what a frontend makes of a hand-off that a decode worker refuses: an error, after as many prefills
// as it may migrate, and the worker stays in routing. The two engines have blocks of different sizes, which nobody else notices.
func TestRefusedHandOff(t *testing.T) {
	for limit, prefills := range map[string]float64{"0": 1, "2": 3} {
		t.Run("migration limit "+limit, func(t *testing.T) {
			d := &deployment{Cluster: harness.NewCluster(t)}
			// A Rust prefill worker writes no stamp, so that the decode worker must go by its own block size.
			d.add(t, harness.Rust, harness.Prefill, harness.StartSim(t))
			d.add(t, harness.Remora, harness.Decode, harness.StartSim(t, "--block-size", "32"))
			d.Frontend = d.Cluster.Frontend(t, "--migration-limit", limit)
			d.WaitModel(t, model)
			refused := func() float64 { return d.sidecars[1].Status.Metrics(t)["remora_handoffs_refused_total"] }
			// A fresh pair answers 503 for a moment of its own; the first refusal says that it is over.
			harness.Poll(t, "the pair to work together", time.Minute, func() error {
				if d.Ask(t, prompt(story[:200])); refused() == 0 {
					return errQuiet
				}
				return nil
			})
			done := d.sims[0].Metrics(t)["vllm:request_success_total"]
			count := refused()
			answer := d.Ask(t, prompt(story[:200]))
			if answer.Status != 503 {
				t.Errorf("a refused hand-off gave status %d: %s", answer.Status, answer.Body)
			}
			if got := d.sims[0].Metrics(t)["vllm:request_success_total"] - done; got != prefills {
				t.Errorf("%v prefills, want %v", got, prefills)
			}
			if got := refused() - count; got != prefills {
				t.Errorf("%v refusals counted, want %v", got, prefills)
			}
			t.Logf("status %d after %v prefills: %s", answer.Status, prefills, answer.Body)
			if got := d.Models(t); len(got) != 1 {
				t.Errorf("the frontend lists %q: a refusal must not take the worker out", got)
			}
		})
	}
}
