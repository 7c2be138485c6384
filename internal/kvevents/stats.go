package kvevents

import "sync/atomic"

// Stats counts what a Reader has seen since it was made.
type Stats struct {
	Connections uint64 // connections to the engine's PUB socket that were established
	Batches     uint64 // delivered
	Events      uint64 // in them
	Skipped     uint64 // events that were not understood
	Malformed   uint64 // messages that were none, in number of frames or sequence number
	Undecodable uint64 // batches that were none; each is a gap of its own
	Gaps        uint64 // told to the consumer
	Lost        uint64 // batches in those gaps
	Resets      uint64 // told to the consumer
	Replays     uint64 // requests for a replay
	Replayed    uint64 // messages in their answers
}

type stats struct {
	connections, batches, events, skipped, malformed, undecodable, gaps, lost, resets, replays, replayed atomic.Uint64
}

// Stats may be called at any time.
func (r *Reader) Stats() Stats {
	s := &r.stats
	return Stats{
		Connections: s.connections.Load(), Batches: s.batches.Load(), Events: s.events.Load(), Skipped: s.skipped.Load(),
		Malformed: s.malformed.Load(), Undecodable: s.undecodable.Load(), Gaps: s.gaps.Load(), Lost: s.lost.Load(),
		Resets: s.resets.Load(), Replays: s.replays.Load(), Replayed: s.replayed.Load(),
	}
}

// Plus adds two counts up: of readers that followed each other.
func (s Stats) Plus(more Stats) Stats {
	return Stats{
		Connections: s.Connections + more.Connections, Batches: s.Batches + more.Batches, Events: s.Events + more.Events,
		Skipped: s.Skipped + more.Skipped, Malformed: s.Malformed + more.Malformed, Undecodable: s.Undecodable + more.Undecodable,
		Gaps: s.Gaps + more.Gaps, Lost: s.Lost + more.Lost, Resets: s.Resets + more.Resets,
		Replays: s.Replays + more.Replays, Replayed: s.Replayed + more.Replayed,
	}
}
