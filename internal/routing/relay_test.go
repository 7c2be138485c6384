package routing

import (
	"strings"
	"testing"

	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/status"
	"remora/internal/kvevents"
	"remora/internal/kvrelay"
)

// TestEventsAreCounted under the Rust sidecar's names: those that came, those that concern routers, and those that never came.
func TestEventsAreCounted(t *testing.T) {
	metrics := status.NewMetrics()
	metrics.Bind(status.Identity{Namespace: "n", Component: "c", Endpoint: "e", WorkerID: 1})
	p := eventplane.NewPublisher(eventplane.Config{Socket: nowhere{}})
	c := &counted{Relay: kvrelay.New(kvrelay.Config{BlockSize: 2}, p), metrics: metrics}
	c.Batch(&kvevents.Batch{Events: []kvevents.Event{
		{Kind: kvevents.Stored, Hashes: []uint64{1}, Tokens: []uint32{1, 2}, BlockSize: 2},
		{Kind: kvevents.Stored, Hashes: []uint64{2}, Tokens: []uint32{1, 2}, BlockSize: 2, Medium: "a shelf"},
		{Kind: kvevents.Stored, Hashes: []uint64{3}, Tokens: []uint32{1, 2, 3}, BlockSize: 3},
		{Kind: kvevents.Removed, Hashes: []uint64{1}},
	}})
	c.Batch(&kvevents.Batch{Events: []kvevents.Event{{Kind: kvevents.Cleared}}})
	c.Gap(3, "for a test")
	got := exposed(metrics)
	for _, want := range []string{
		`event_type="stored",stage="received",worker_id="1"} 3`, `event_type="stored",stage="accepted",worker_id="1"} 1`,
		`event_type="removed",stage="accepted",worker_id="1"} 1`, `event_type="cleared",stage="received",worker_id="1"} 1`,
		`kv_publisher_engines_dropped_events_total{dynamo_component="c",dynamo_namespace="n",worker_id="1"} 3`,
		`remora_kv_engine_events_unusable_total{reason="medium"} 1`, `remora_kv_engine_events_unusable_total{reason="block_size"} 1`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing", want)
		}
	}
	if n := p.Counts(); n.Stored != 1 || n.Removed != 1 || n.Cleared != 1 || n.Lost != 1 {
		t.Errorf("%+v", n)
	}
}
