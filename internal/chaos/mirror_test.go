package chaos

import (
	"fmt"
	"maps"

	"remora/internal/sim/core"
)

// mirror is what a router knows of one engine process's prefix cache by its KV events alone: how often each hash is stored and
// not removed (C8).
type mirror struct {
	blocks   map[uint64]int
	messages int
}

// listen takes what the engine's last step published.
func (e *engine) listen() {
	events := e.core.TakeEvents()
	if len(events) == 0 {
		return
	}
	e.mirror.messages++
	if e.rules.deaf && e.mirror.messages%7 == 0 {
		return
	}
	for i := range events {
		if err := e.mirror.replay(&events[i], e.tally); err != nil {
			e.violatef("C8", "%s, message %d: %v", e.name, e.mirror.messages, err)
		}
	}
}

func (m *mirror) replay(ev *core.Event, t *tally) error {
	switch ev.Kind {
	case core.Stored:
		t.kvEvents["stored"]++
		if ev.Parent != nil && m.blocks[*ev.Parent] == 0 {
			return fmt.Errorf("blocks are stored after %x, which is not cached", *ev.Parent)
		}
		if len(ev.Tokens) != len(ev.Hashes)*blockSize {
			return fmt.Errorf("%d blocks of %d tokens", len(ev.Hashes), len(ev.Tokens))
		}
		for _, h := range ev.Hashes {
			m.blocks[h]++
		}
	case core.Removed:
		t.kvEvents["removed"]++
		for _, h := range ev.Hashes {
			switch m.blocks[h] {
			case 0:
				return fmt.Errorf("%x is removed and was not cached", h)
			case 1:
				delete(m.blocks, h)
			default:
				m.blocks[h]--
			}
		}
	case core.Cleared:
		clear(m.blocks)
	}
	return nil
}

// checkMirror compares what a router knows with what the pool holds, at rest.
func (e *engine) checkMirror() {
	if cached := e.core.Cached(); !maps.Equal(cached, e.mirror.blocks) {
		e.violatef("C8", "%s has %d hashes in its cache, its events say %d, or not the same", e.name, len(cached), len(e.mirror.blocks))
	}
}
