package stock

import (
	"slices"
	"testing"

	"remora/interop/harness"
)

// kinds are all ways to put two sidecars in front of a pair.
var kinds = []struct {
	name            string
	prefill, decode harness.Kind
}{
	{"Rust", harness.Rust, harness.Rust},
	{"Remora", harness.Remora, harness.Remora},
	{"Rust prefill, Remora decode", harness.Rust, harness.Remora},
	{"Remora prefill, Rust decode", harness.Remora, harness.Rust},
}

// TestPairSaysTheSame wants from every pair the text that one engine gives alone, and that the decode engine had the KV
// from the prefill engine.
func TestPairSaysTheSame(t *testing.T) {
	requests := []harness.Request{prompt("Hi"), prompt(story[:150]), prompt(story[:700]), chat("Who are you?"), chat(story[:400])}
	var alone []string
	t.Run("one engine alone", func(t *testing.T) {
		d := aggregated(t, harness.Rust)
		for _, r := range requests {
			alone = append(alone, good(t, d.Frontend, r).Text)
		}
	})
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			d := pair(t, k.prefill, k.decode)
			for i, r := range requests {
				pulled := d.sims[1].Metrics(t)[harness.KVPulled]
				if got := good(t, d.Frontend, r).Text; got != alone[i] {
					t.Errorf("request %d: %q, alone %q", i, got, alone[i])
				}
				if now := d.sims[1].Metrics(t)[harness.KVPulled]; now <= pulled {
					t.Errorf("request %d: the decode engine pulled nothing", i)
				}
			}
			harness.WaitSettled(t, d.engines, d.sidecars...)
		})
	}
}

func TestPairAnswersRust(t *testing.T) { answers(t, pair(t, harness.Rust, harness.Rust).Frontend) }

func TestPairAnswersRemora(t *testing.T) {
	f := pair(t, harness.Remora, harness.Remora).Frontend
	answers(t, f)
	withLogprobs(t, f)
}

// TestOneSetOfBothKinds puts a Rust and a Remora worker into one worker set, prefill and decode alike. A frontend gives
// requests only to workers whose cards agree with the set's first; a newcomer that differs idles without a word.
func TestOneSetOfBothKinds(t *testing.T) {
	for _, order := range [][]harness.Kind{{harness.Rust, harness.Remora}, {harness.Remora, harness.Rust}} {
		t.Run(string(order[0])+" first", func(t *testing.T) {
			d := &deployment{Cluster: harness.NewCluster(t)}
			d.Frontend = d.Cluster.Frontend(t)
			for _, kind := range order {
				d.add(t, kind, harness.Prefill, harness.StartSim(t))
				d.add(t, kind, harness.Decode, harness.StartSim(t))
				d.WaitServing(t, model)
			}
			texts := map[string]bool{}
			allWorked := func() bool {
				return !slices.ContainsFunc(d.sidecars, func(s *harness.Sidecar) bool { return s.Status.Metrics(t)[harness.Requests] < 2 })
			}
			for range 24 { // round-robin: a few are enough
				if texts[good(t, d.Frontend, prompt(story[:300])).Text] = true; allWorked() {
					break
				}
			}
			if !allWorked() {
				for _, s := range d.sidecars {
					t.Errorf("%s had %v requests", s.Name, s.Status.Metrics(t)[harness.Requests])
				}
			}
			if len(texts) != 1 {
				t.Errorf("one prompt, %d texts: %v", len(texts), texts)
			}
		})
	}
}
