package core

// EventKind says what happened to the prefix cache.
type EventKind int

// The kinds of events.
const (
	// Stored: a request's next full blocks can be hit from now on.
	Stored EventKind = iota + 1
	// Removed: one cached block was taken for something else.
	Removed
	// Cleared: nothing is cached any more.
	Cleared
)

// Event is one change of the prefix cache. A hash that is stored twice names two blocks, and stands until it is removed twice.
type Event struct {
	Kind   EventKind
	Hashes []uint64 // Stored: in order of position; Removed: one
	Parent *uint64  // Stored: the block before the first one; nil when that is the prompt's first
	Tokens []uint32 // Stored: of all these blocks. Nobody changes them
	Salt   string   // Stored: the request's cache salt when Parent is nil
	// Media, of a Stored: what reaches into each of the blocks. Nil: nothing into any.
	Media [][]MediaKey
}

// journal collects events until a step publishes them. A nil journal keeps nothing. It grows by at most one Stored a request
// and one Removed a block in a step.
type journal struct {
	pending   []Event // of the step under way, or of the next one
	later     []Event // of the step after the one under way
	published []Event // of steps that are over, until they are taken
}

func (j *journal) removed(hash uint64) {
	if j != nil {
		j.pending = append(j.pending, Event{Kind: Removed, Hashes: []uint64{hash}})
	}
}

// stored enters the blocks from, ... to-1 of a sequence, whose hashes are known.
func (j *journal) stored(s *sequence, from, to, blockSize int) {
	if j == nil {
		return
	}
	ev := Event{Kind: Stored, Hashes: append([]uint64(nil), s.hashes[from:to]...), Tokens: s.tokens[from*blockSize : to*blockSize : to*blockSize]}
	if from > 0 {
		parent := s.hashes[from-1]
		ev.Parent = &parent
	} else {
		ev.Salt = s.req.CacheSalt
	}
	for i := from; i < to; i++ {
		if keys := mediaKeys(s.req.Media, i*blockSize, (i+1)*blockSize); keys != nil {
			if ev.Media == nil {
				ev.Media = make([][]MediaKey, to-from)
			}
			ev.Media[i-from] = keys
		}
	}
	j.pending = append(j.pending, ev)
}

// cleared belongs to the next step, also when one is under way.
func (j *journal) cleared(underWay bool) {
	switch {
	case j == nil:
	case underWay:
		j.later = append(j.later, Event{Kind: Cleared})
	default:
		j.pending = append(j.pending, Event{Kind: Cleared})
	}
}

// publish ends a step.
func (j *journal) publish() {
	if j != nil {
		j.published = append(j.published, j.pending...)
		j.pending, j.later = append(j.pending[:0], j.later...), j.later[:0]
	}
}

// TakeEvents returns the changes of the prefix cache that the last step published, in their order; they make one message. It
// is to be called after Apply, and after a Schedule whose plan is not Busy. A step publishes at its end; an engine that has
// nothing at all to do makes no steps, so what ClearCache does to it waits for the next request. Nothing is ever returned
// without Config.KVEvents.
func (e *Engine) TakeEvents() []Event {
	if e.journal == nil || len(e.journal.published) == 0 {
		return nil
	}
	events := e.journal.published
	e.journal.published = nil
	return events
}

// Cached counts the blocks under each hash in the prefix cache: what its events say when they are replayed.
func (e *Engine) Cached() map[uint64]int {
	all := make(map[uint64]int, len(e.pool.cached))
	for hash, ids := range e.pool.cached {
		all[hash] = len(ids)
	}
	return all
}
