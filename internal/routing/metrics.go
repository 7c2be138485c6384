package routing

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"remora/internal/dynamo/eventplane"
	"remora/internal/kvevents"
)

// rankCounts is what is known of one rank's feed.
type rankCounts struct {
	rank        uint32
	engine      kvevents.Stats
	routers     eventplane.Counts
	subscribers int
}

// collector turns what read gives into metrics with the label dp_rank, when they are asked for. It implements
// prometheus.Collector.
type collector struct {
	read func() []rankCounts

	connections, batches, lost, resets, replays, skipped   *prometheus.Desc
	published, messages, dropped, held, overflows, queries *prometheus.Desc
	blocks, kept, subscribers, last                        *prometheus.Desc
}

func newCollector(read func() []rankCounts) *collector {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("remora_kv_"+name, help, append([]string{"dp_rank"}, more...), nil)
	}
	return &collector{
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
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.connections, c.batches, c.lost, c.resets, c.replays, c.skipped, c.published, c.messages, c.dropped, c.held, c.overflows,
		c.queries, c.blocks, c.kept, c.subscribers, c.last,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	for _, r := range c.read() {
		rank := strconv.FormatUint(uint64(r.rank), 10)
		count := func(d *prometheus.Desc, v uint64, more ...string) {
			to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{rank}, more...)...)
		}
		size := func(d *prometheus.Desc, v float64, more ...string) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{rank}, more...)...)
		}
		count(c.connections, r.engine.Connections)
		count(c.batches, r.engine.Batches)
		count(c.lost, r.engine.Lost)
		count(c.resets, r.engine.Resets)
		count(c.replays, r.engine.Replays)
		count(c.skipped, r.engine.Skipped)
		count(c.published, r.routers.Stored, eventplane.Stored.String())
		count(c.published, r.routers.Removed, eventplane.Removed.String())
		count(c.published, r.routers.Cleared, eventplane.Cleared.String())
		count(c.messages, r.routers.Messages)
		count(c.dropped, r.routers.Dropped)
		count(c.held, r.routers.Held)
		count(c.overflows, r.routers.Overflows)
		count(c.queries, r.routers.AnsweredEvents, "events")
		count(c.queries, r.routers.AnsweredDump, "tree_dump")
		count(c.queries, r.routers.AnsweredRange, "out_of_range")
		count(c.queries, r.routers.AnsweredError, "error")
		for tier, n := range r.routers.Blocks {
			size(c.blocks, float64(n), eventplane.Tier(tier).String())
		}
		size(c.kept, float64(r.routers.RingEvents))
		size(c.subscribers, float64(r.subscribers))
		size(c.last, float64(r.routers.LastEvent))
	}
}
