package status

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// KVRank is what is known of one rank's KV events; all but the sizes only grow.
type KVRank struct {
	Rank uint32

	// From the engine.
	Connections uint64 // to its publisher
	Batches     uint64
	LostBatches uint64 // for good: dropped by the engine's socket, and not replayed
	Resets      uint64 // the engine began anew
	Replays     uint64 // asked for
	Skipped     uint64 // events that were not understood

	// To routers.
	Stored, Removed, Cleared uint64 // events
	Messages                 uint64
	DroppedMessages          uint64 // a subscriber did not read; counted for each
	HeldBlocks               uint64 // had to wait for a parent
	Overflows                uint64 // everything was dropped, because it was more than the bound

	// Recovery queries, by answer.
	AnsweredEvents, AnsweredDump, AnsweredRange, AnsweredError uint64

	// Sizes.
	Blocks      []int // by tier
	KeptEvents  int
	Subscribers int
	LastEvent   uint64
}

// kvTiers are the words for KVRank.Blocks.
var kvTiers = [...]string{"device", "host_pinned", "disk", "external"}

// kvRanks turns what read gives into metrics with the label dp_rank, when they are asked for.
type kvRanks struct {
	read func() []KVRank

	connections, batches, lost, resets, replays, skipped   *prometheus.Desc
	published, messages, dropped, held, overflows, queries *prometheus.Desc
	blocks, kept, subscribers, last                        *prometheus.Desc
}

// ReportKVRanks has the metrics of the ranks' KV events read from there. Once a Metrics at most.
func (m *Metrics) ReportKVRanks(read func() []KVRank) {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("remora_kv_"+name, help, append([]string{"dp_rank"}, more...), nil)
	}
	m.registry.MustRegister(&kvRanks{
		read:        read,
		connections: desc("engine_connections_total", "Connections made to the engine's KV events."),
		batches:     desc("engine_batches_total", "Batches of KV events that the engine sent and that arrived, by replay or not."),
		lost:        desc("engine_batches_lost_total", "Batches of KV events that were lost for good."),
		resets:      desc("engine_resets_total", "How often the engine's KV events began anew: it was restarted, or may have been."),
		replays:     desc("engine_replays_total", "Replays of KV events that the engine was asked for."),
		skipped:     desc("engine_events_skipped_total", "KV events of the engine that were not understood, and left out."),
		published:   desc("events_published_total", "KV events sent to routers.", "event_type"),
		messages:    desc("messages_total", "Messages in which KV events were sent to routers."),
		dropped:     desc("messages_dropped_total", "Messages that a router lost because it did not read; it notices, and asks."),
		held:        desc("blocks_held_total", "Blocks that were not announced at once because routers did not know their parent."),
		overflows:   desc("index_overflows_total", "How often everything known was dropped because it was more than any engine holds."),
		queries:     desc("queries_total", "Recovery queries of routers, by answer.", "answer"),
		blocks:      desc("blocks", "Blocks in the rank's cache, by tier, as routers are told.", "tier"),
		kept:        desc("events_kept", "Latest events that are kept for routers that lost some."),
		subscribers: desc("subscribers", "Routers that listen."),
		last:        desc("last_event_id", "Id of the newest event."),
	})
}

// Describe implements prometheus.Collector.
func (k *kvRanks) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		k.connections, k.batches, k.lost, k.resets, k.replays, k.skipped, k.published, k.messages, k.dropped, k.held, k.overflows,
		k.queries, k.blocks, k.kept, k.subscribers, k.last,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (k *kvRanks) Collect(to chan<- prometheus.Metric) {
	for _, r := range k.read() {
		rank := strconv.FormatUint(uint64(r.Rank), 10)
		count := func(d *prometheus.Desc, v uint64, more ...string) {
			to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{rank}, more...)...)
		}
		size := func(d *prometheus.Desc, v float64, more ...string) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{rank}, more...)...)
		}
		count(k.connections, r.Connections)
		count(k.batches, r.Batches)
		count(k.lost, r.LostBatches)
		count(k.resets, r.Resets)
		count(k.replays, r.Replays)
		count(k.skipped, r.Skipped)
		count(k.published, r.Stored, "stored")
		count(k.published, r.Removed, "removed")
		count(k.published, r.Cleared, "cleared")
		count(k.messages, r.Messages)
		count(k.dropped, r.DroppedMessages)
		count(k.held, r.HeldBlocks)
		count(k.overflows, r.Overflows)
		count(k.queries, r.AnsweredEvents, "events")
		count(k.queries, r.AnsweredDump, "tree_dump")
		count(k.queries, r.AnsweredRange, "out_of_range")
		count(k.queries, r.AnsweredError, "error")
		for i, n := range r.Blocks[:min(len(r.Blocks), len(kvTiers))] {
			size(k.blocks, float64(n), kvTiers[i])
		}
		size(k.kept, float64(r.KeptEvents))
		size(k.subscribers, float64(r.Subscribers))
		size(k.last, float64(r.LastEvent))
	}
}
