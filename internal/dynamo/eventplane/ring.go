package eventplane

// A ring keeps the latest events: at most ringEvents of them with at most ringBlocks blocks, so some 6 MB.
const (
	ringEvents = 1024
	ringBlocks = 1 << 17
)

// ring holds the latest events, their ids one apart. The zero value is empty.
type ring struct {
	events []numbered // ring buffer once it is full
	start  int        // of the oldest
	count  int
	blocks int
}

// size is what an event counts: blocks stored or removed.
func (e *Event) size() int { return len(e.Blocks) + len(e.Hashes) }

func (r *ring) add(e numbered) {
	if r.events == nil {
		r.events = make([]numbered, ringEvents)
	}
	for r.count > 0 && (r.count == ringEvents || r.blocks+e.size() > ringBlocks) {
		r.blocks -= r.events[r.start].size()
		r.events[r.start] = numbered{}
		r.start = (r.start + 1) % ringEvents
		r.count--
	}
	if e.size() > ringBlocks {
		return // the ring is empty now, so nobody takes what is left for all there was
	}
	r.events[(r.start+r.count)%ringEvents] = e
	r.count++
	r.blocks += e.size()
}

// since returns the events from an id on; false where the oldest is younger.
func (r *ring) since(id uint64) ([]numbered, bool) {
	if r.count == 0 || id < r.events[r.start].id {
		return nil, false
	}
	var out []numbered
	for i := range r.count {
		if e := r.events[(r.start+i)%ringEvents]; e.id >= id {
			out = append(out, e)
		}
	}
	return out, true
}
