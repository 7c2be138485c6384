package stock

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"remora/interop/harness"
)

// reasons are the refusals of hand-offs by a decode worker, by why.
func reasons(t *testing.T, s *harness.Sidecar) map[string]float64 {
	t.Helper()
	all := s.Status.Counts(t, "remora_handoffs_refused_total", "reason")
	maps.DeleteFunc(all, func(_ string, n float64) bool { return n == 0 })
	return all
}

// TestStaleHandOff has a hand-off grow too old on its way: the frontend stands still between prefill and decode. Its client is
// told 503, or, where the frontend may migrate, gets the right text from a second prefill and sees nothing of it.
func TestStaleHandOff(t *testing.T) {
	const lease = "4" // seconds; a hand-off is too old after half of that
	r := prompt(story[:500])
	for limit, want := range map[string]int{"0": 503, "1": 200} {
		t.Run("migration limit "+limit, func(t *testing.T) {
			d := &deployment{Cluster: harness.NewCluster(t)}
			for _, role := range []harness.Role{harness.Prefill, harness.Decode} {
				sim := harness.StartSim(t)
				d.sims = append(d.sims, sim)
				d.sidecars = append(d.sidecars, d.Sidecar(t, harness.Remora, role, sim, "--kv-lease", lease))
			}
			d.Frontend = d.Cluster.Frontend(t, "--migration-limit", limit)
			d.WaitServing(t, model)
			text := good(t, d.Frontend, r).Text
			if got := reasons(t, d.sidecars[1]); len(got) > 0 {
				t.Fatalf("refused without a pause: %v", got)
			}

			answer, err := d.lateDecode(t, r)
			if err != nil {
				t.Fatal(err)
			}
			if answer.Status != want || want == 200 && answer.Text != text {
				t.Errorf("status %d, %q: %s; want %d, %q", answer.Status, answer.Text, answer.Body, want, text)
			}
			if got := reasons(t, d.sidecars[1]); !maps.Equal(got, map[string]float64{"stale": 1}) {
				t.Errorf("refused: %v", got)
			}
			t.Logf("status %d: %s", answer.Status, answer.Body)
			if ids := d.Models(t); !slices.Contains(ids, model) {
				t.Errorf("the frontend lists %q: a refusal must not take the worker out", ids)
			}
			if again := good(t, d.Frontend, r).Text; again != text {
				t.Errorf("said %q before and %q after", text, again)
			}
		})
	}
}

// lateDecode asks, and stops the frontend from before the prefill's end to three seconds after.
func (d *deployment) lateDecode(t *testing.T, r harness.Request) (answer harness.Answer, err error) {
	t.Helper()
	prefill := d.sidecars[0]
	inflight := func(n float64) func() error {
		return func() error {
			if got := prefill.Status.Metrics(t)[harness.Inflight]; got != n {
				return fmt.Errorf("%v requests", got)
			}
			return nil
		}
	}
	d.sims[0].Freeze()
	over := make(chan struct{})
	go func() {
		defer close(over)
		answer, err = d.TryAsk(t.Context(), r)
	}()
	defer func() { <-over }() // both go on before that
	defer d.sims[0].Thaw()
	harness.Poll(t, "the prefill to be there", 20*time.Second, inflight(1))
	d.Frontend.Freeze()
	defer d.Frontend.Thaw()
	d.sims[0].Thaw()
	harness.Poll(t, "the prefill to be over", 20*time.Second, inflight(0))
	finished := time.Now()
	harness.Poll(t, "the hand-off to be old", time.Minute, func() error {
		if time.Since(finished) < 3*time.Second {
			return errors.New("it is not")
		}
		return nil
	})
	d.Frontend.Thaw()
	<-over
	return answer, err
}
