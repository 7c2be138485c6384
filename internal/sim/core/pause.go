package core

// Pause says how much of the scheduling stands still. Requests are taken in and queued in any case.
type Pause int

const (
	// PauseNone is normal work.
	PauseNone Pause = iota
	// PauseNew lets running requests go on, and those whose KV is being fetched, and starts no others.
	PauseNew
	// PauseAll computes nothing.
	PauseAll
)

// SetPause changes how much stands still, from the next step on.
func (e *Engine) SetPause(p Pause) { e.paused = p }

// Paused says how much stands still.
func (e *Engine) Paused() Pause { return e.paused }

// ClearCache forgets what the prefix cache says of all blocks, unless one of them is in use: then it does nothing and says so.
// The content stays until a block is taken again, but nothing finds it any more. With everybody, running requests lose their
// blocks first, as in a preemption.
func (e *Engine) ClearCache(everybody bool) (done bool) {
	if everybody {
		for len(e.running) > 0 {
			e.preempt(e.running[len(e.running)-1])
		}
	}
	if e.pool.used() > 0 {
		return false
	}
	for id := range e.pool.blocks {
		e.pool.unlabel(id)
	}
	e.journal.cleared(len(e.batch) > 0)
	return true
}
