package routing

import (
	"math"

	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/status"
	"remora/internal/kvevents"
	"remora/internal/kvrelay"
)

// counted is a relay that is counted under the names of the Rust sidecar: the engine's events as they come, and those that
// concern routers.
type counted struct {
	*kvrelay.Relay

	metrics *status.Metrics
	before  kvrelay.Counts
}

// Batch implements kvevents.Consumer.
func (c *counted) Batch(b *kvevents.Batch) {
	var received [3]int
	for i := range b.Events {
		switch b.Events[i].Kind {
		case kvevents.Stored:
			received[eventplane.Stored]++
		case kvevents.Removed:
			received[eventplane.Removed]++
		case kvevents.Cleared:
			received[eventplane.Cleared]++
		}
	}
	c.Relay.Batch(b)
	after := c.Counts()
	accepted := [3]uint64{after.Stored - c.before.Stored, after.Removed - c.before.Removed, after.Cleared - c.before.Cleared}
	for _, left := range [...]struct {
		why string
		n   uint64
	}{
		{"block_size", after.OtherBlockSize - c.before.OtherBlockSize},
		{"partial_block", after.Partial - c.before.Partial},
		{"cache_group", after.OtherGroup - c.before.OtherGroup},
		{"medium", after.OtherMedium - c.before.OtherMedium},
		{"elsewhere", after.Elsewhere - c.before.Elsewhere},
		{"rank", after.OtherRank - c.before.OtherRank},
	} {
		if left.n > 0 { // a reason shows with its first event
			c.metrics.KVEventsUnusable(left.why, left.n)
		}
	}
	c.before = after
	for kind := range eventplane.Kind(len(received)) {
		if received[kind] > 0 {
			c.metrics.KVEvents(kind.String(), received[kind], accepted[kind])
		}
	}
}

// Gap implements kvevents.Consumer.
func (c *counted) Gap(lost uint64, why string) {
	c.metrics.KVEventsDropped(int(min(lost, math.MaxInt32)))
	c.Relay.Gap(lost, why)
}
