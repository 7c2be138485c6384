package routing

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/status"
	"remora/internal/kvevents"
)

// exposed is what the metrics page says.
func exposed(m *status.Metrics) string {
	recorder := httptest.NewRecorder()
	m.Handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return recorder.Body.String()
}

// TestRankMetrics: every number arrives under its name, for each rank.
func TestRankMetrics(t *testing.T) {
	metrics := status.NewMetrics()
	metrics.Register(newCollector(func() []rankCounts {
		return []rankCounts{
			{
				rank:   4,
				engine: kvevents.Stats{Connections: 1, Batches: 2, Lost: 3, Resets: 4, Replays: 5, Skipped: 6},
				routers: eventplane.Counts{
					Stored: 7, Removed: 8, Cleared: 9, Messages: 10, Dropped: 11, Held: 12, Overflows: 13, AnsweredEvents: 14, AnsweredDump: 15,
					AnsweredRange: 16, AnsweredError: 17, Blocks: [...]int{18, 19, 20, 21}, RingEvents: 22, LastEvent: 24,
				},
				subscribers: 23,
			},
			{rank: 5},
		}
	}))
	want := `engine_connections_total{dp_rank="4"} 1
engine_batches_total{dp_rank="4"} 2
engine_batches_lost_total{dp_rank="4"} 3
engine_resets_total{dp_rank="4"} 4
engine_replays_total{dp_rank="4"} 5
engine_events_skipped_total{dp_rank="4"} 6
events_published_total{dp_rank="4",event_type="stored"} 7
events_published_total{dp_rank="4",event_type="removed"} 8
events_published_total{dp_rank="4",event_type="cleared"} 9
messages_total{dp_rank="4"} 10
messages_dropped_total{dp_rank="4"} 11
blocks_held_total{dp_rank="4"} 12
index_overflows_total{dp_rank="4"} 13
queries_total{answer="events",dp_rank="4"} 14
queries_total{answer="tree_dump",dp_rank="4"} 15
queries_total{answer="out_of_range",dp_rank="4"} 16
queries_total{answer="error",dp_rank="4"} 17
blocks{dp_rank="4",tier="device"} 18
blocks{dp_rank="4",tier="host_pinned"} 19
blocks{dp_rank="4",tier="disk"} 20
blocks{dp_rank="4",tier="external"} 21
events_kept{dp_rank="4"} 22
subscribers{dp_rank="4"} 23
last_event_id{dp_rank="4"} 24`
	got, samples := exposed(metrics), strings.Split(want, "\n")
	for _, line := range samples {
		line = "remora_kv_" + line
		name, _, _ := strings.Cut(line, " ")
		for _, sample := range []string{line, strings.ReplaceAll(name, `"4"`, `"5"`) + " 0"} {
			if !strings.Contains(got, "\n"+sample+"\n") {
				t.Errorf("%s is missing", sample)
			}
		}
	}
	if n := strings.Count(got, "\nremora_kv_"); n != 2*len(samples) {
		t.Errorf("%d samples, want %d", n, 2*len(samples))
	}
}
