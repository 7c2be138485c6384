package sim

import (
	"strings"
	"testing"

	"remora/internal/sim/core"
)

// TestMetrics: every sample says what its name promises.
//
// Rules: usage, cache-metrics.
func TestMetrics(t *testing.T) {
	s, err := New(Config{Model: "m", ServedName: "a \"quoted\" name"})
	if err != nil {
		t.Fatal(err)
	}
	st := core.Stats{Running: 1, Waiting: 5, Deferred: 2, RecvPending: 9, Held: 9, UsedBlocks: 3, TotalBlocks: 4}
	st.CacheQueries, st.CacheHits, st.ExternalQueries, st.ExternalHits = 11, 12, 13, 14
	st.PromptTokens, st.GeneratedTokens, st.Preemptions = 15, 16, 17
	st.Finished = [core.Fatal + 1]int{core.Length: 21, core.Stop: 22, core.Aborted: 23, core.Failed: 24, core.Fatal: 100}
	s.ranks[0].loop.stats = st
	var got []string
	for line := range strings.Lines(s.metrics()) {
		if !strings.HasPrefix(line, "#") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	const labels = `engine="0",model_name="a \"quoted\" name"`
	want := []string{
		`vllm:num_requests_running{` + labels + `} 1`,
		`vllm:num_requests_waiting{` + labels + `} 5`,
		`vllm:num_requests_waiting_by_reason{` + labels + `,reason="capacity"} 3`,
		`vllm:num_requests_waiting_by_reason{` + labels + `,reason="deferred"} 2`,
		`vllm:kv_cache_usage_perc{` + labels + `} 0.75`,
		`vllm:prefix_cache_queries_total{` + labels + `} 11`,
		`vllm:prefix_cache_hits_total{` + labels + `} 12`,
		`vllm:external_prefix_cache_queries_total{` + labels + `} 13`,
		`vllm:external_prefix_cache_hits_total{` + labels + `} 14`,
		`vllm:prompt_tokens_total{` + labels + `} 15`,
		`vllm:generation_tokens_total{` + labels + `} 16`,
		`vllm:num_preemptions_total{` + labels + `} 17`,
		`vllm:request_success_total{` + labels + `,finished_reason="stop"} 22`,
		`vllm:request_success_total{` + labels + `,finished_reason="length"} 21`,
		`vllm:request_success_total{` + labels + `,finished_reason="abort"} 23`,
		`vllm:request_success_total{` + labels + `,finished_reason="error"} 124`,
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}
