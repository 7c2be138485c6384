package kvrelay

import (
	"remora/internal/dynamo/eventplane"
	"remora/internal/kvevents"
)

// maxMerged bounds the blocks of an event that is made of several: what fits into one message.
const maxMerged = 8192

// output collects the events of a batch. Stores that continue one another become one event, as do removals in a row. All
// blocks of a batch share one piece of memory, as do all removed hashes; it is new for each batch, because it is given away.
type output struct {
	relay  *Relay
	blocks []eventplane.Block
	hashes []uint64
}

// reserve makes room for all that a batch may hold.
func (o *output) reserve(events []kvevents.Event) {
	blocks, hashes := 0, 0
	for i := range events {
		switch e := &events[i]; e.Kind {
		case kvevents.Stored:
			blocks += blocksOf(e)
		case kvevents.Removed:
			hashes += len(e.Hashes)
		case kvevents.Cleared:
		}
	}
	o.blocks, o.hashes = make([]eventplane.Block, 0, blocks), make([]uint64, 0, hashes)
}

// last is the event before, if it is of that kind, tier and session.
func (o *output) last(kind eventplane.Kind, tier eventplane.Tier, session string) *eventplane.Event {
	if len(o.relay.events) == 0 {
		return nil
	}
	e := &o.relay.events[len(o.relay.events)-1]
	if e.Kind != kind || e.Tier != tier || e.SessionID != session {
		return nil
	}
	return e
}

// extend adds n blocks, to the event before where they continue it, and returns them to be filled.
func (o *output) extend(tier eventplane.Tier, e *kvevents.Event, n int) []eventplane.Block {
	start := len(o.blocks)
	o.blocks = o.blocks[:start+n]
	added := o.blocks[start : start+n : start+n]
	before := o.last(eventplane.Stored, tier, e.SessionID)
	if before != nil && e.HasParent && before.Blocks[len(before.Blocks)-1].Hash == e.Parent && len(before.Blocks)+n <= maxMerged {
		first := start - len(before.Blocks)
		before.Blocks = o.blocks[first : start+n : start+n]
		return added
	}
	o.relay.events = append(o.relay.events, eventplane.Event{
		Kind: eventplane.Stored, Tier: tier, SessionID: e.SessionID, Parent: e.Parent, HasParent: e.HasParent, Blocks: added,
	})
	return added
}

// remove adds removed hashes, to the event before where that is a removal, too.
func (o *output) remove(tier eventplane.Tier, e *kvevents.Event) {
	if len(e.Hashes) == 0 {
		return
	}
	start := len(o.hashes)
	o.hashes = append(o.hashes, e.Hashes...)
	end := len(o.hashes)
	if before := o.last(eventplane.Removed, tier, ""); before != nil && len(before.Hashes)+len(e.Hashes) <= maxMerged {
		before.Hashes = o.hashes[start-len(before.Hashes) : end : end]
		return
	}
	o.relay.events = append(o.relay.events, eventplane.Event{Kind: eventplane.Removed, Tier: tier, Hashes: o.hashes[start:end:end]})
}
