package stock

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"remora/interop/harness"
)

// served counts the prompts that each rank of an engine has begun, in tokens.
func served(t *testing.T, s *harness.Sim, ranks ...uint32) []float64 {
	t.Helper()
	var all []float64
	for _, rank := range ranks {
		all = append(all, s.RankMetrics(t, rank)["vllm:prompt_tokens_total"])
	}
	return all
}

// grown says by which of two counts each rank has grown.
func grown(before, after []float64) []bool {
	var all []bool
	for i := range before {
		all = append(all, after[i] > before[i])
	}
	return all
}

// instanceID is that of the only worker.
func instanceID(t *testing.T, d *deployment) uint64 {
	t.Helper()
	for _, r := range records(t, d.Discovery) {
		if !strings.HasPrefix(r, "v1/instances/") || !strings.Contains(r, "generate") {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(d.Discovery, r))
		if err != nil {
			t.Fatal(err)
		}
		var instance struct {
			ID uint64 `json:"instance_id"`
		}
		if err := json.Unmarshal(raw, &instance); err != nil || instance.ID == 0 {
			t.Fatalf("%s: %s, %v", r, raw, err)
		}
		return instance.ID
	}
	t.Fatal("no instance record")
	return 0
}

// TestRanks: a frontend that goes round robin leaves the choice of the rank to the engine; a client that names worker and rank
// gets that rank, by its global number, and finds there what it has said before.
func TestRanks(t *testing.T) {
	for name, tt := range map[string]struct {
		args  []string
		ranks []uint32
	}{
		"all here":      {[]string{"--data-parallel-size", "2"}, []uint32{0, 1}},
		"the last ones": {[]string{"--data-parallel-size", "4", "--data-parallel-start-rank", "2"}, []uint32{2, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			d := aggregated(t, harness.Remora, tt.args...)
			engine := d.sims[0]
			for range 4 {
				sameStreamed(t, d.Frontend, prompt(story[:200]))
			}
			if got := served(t, engine, tt.ranks...); got[0]+got[1] == 0 {
				t.Errorf("nothing has arrived: %v", got)
			}
			worker := instanceID(t, d)
			for i := range 4 {
				rank := tt.ranks[i%2]
				r := prompt(story[300:500])
				r.NvExt = &harness.NvExt{Instance: worker, Rank: &rank}
				hits := engine.RankMetrics(t, rank)["vllm:prefix_cache_hits_total"]
				before := served(t, engine, tt.ranks...)
				good(t, d.Frontend, r)
				if got := grown(before, served(t, engine, tt.ranks...)); !slices.Equal(got, []bool{i%2 == 0, i%2 == 1}) {
					t.Errorf("asked for rank %d, ranks %v began prompts: %v", rank, tt.ranks, got)
				}
				if again := engine.RankMetrics(t, rank)["vllm:prefix_cache_hits_total"] > hits; again != (i >= 2) {
					t.Errorf("rank %d, time %d: prefix hit %v", rank, i/2+1, again)
				}
			}
		})
	}
}

// TestHandOffBetweenRanks: prefill and decode engines with ranks work together, whichever ranks the engines choose.
func TestHandOffBetweenRanks(t *testing.T) {
	d := pair(t, harness.Remora, harness.Remora, "--data-parallel-size", "2")
	for i := range 4 {
		sameStreamed(t, d.Frontend, prompt(story[i*50:i*50+200]))
	}
	for i, engine := range d.sims {
		if got := engine.Metrics(t)["vllm:kv_cache_usage_perc"]; i == 1 && got != 0 {
			t.Errorf("usage %v at rest", got)
		}
	}
	if got := d.sims[1].Metrics(t)["vllm:external_prefix_cache_hits_total"]; got == 0 {
		t.Error("no KV was handed over")
	}
}
