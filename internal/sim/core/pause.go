package core

// Pause says how much of the scheduling stands still. Requests are taken in and queued in any case.
type Pause int

const (
	// PauseNone is normal work.
	PauseNone Pause = iota
	// PauseNew lets running requests go on and starts none.
	PauseNew
	// PauseAll computes nothing.
	PauseAll
)

// SetPause changes how much stands still, from the next step on.
func (e *Engine) SetPause(p Pause) { e.paused = p }

// Paused says how much stands still.
func (e *Engine) Paused() Pause { return e.paused }

// ClearCache forgets what the prefix cache says of blocks that nobody uses. The content stays until a block is taken again, but
// nothing finds it any more.
func (e *Engine) ClearCache() {
	for id, b := range e.pool.blocks {
		if b.inFree {
			e.pool.unlabel(id)
		}
	}
}
