package core

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// This file is the giving side of a hand-off.

// ErrNoBlock refuses a read beyond the pool.
var ErrNoBlock = errors.New("core: no such block")

// notice is a message of a decode engine.
type notice struct {
	done bool // else a heartbeat
	id   string
}

// Serve copies blocks for another engine. As with remote memory access nobody checks whose they are: after the lease the
// content may be another request's. The request id is for the counters only.
func (e *Engine) Serve(requestID string, ids []int) ([][]uint64, error) {
	blocks := make([][]uint64, 0, len(ids))
	for _, id := range ids {
		if id < 0 || id >= e.cfg.Blocks {
			return nil, fmt.Errorf("%w: %d of %d", ErrNoBlock, id, e.cfg.Blocks)
		}
		blocks = append(blocks, e.pool.read(id))
	}
	e.counts.ServedReads++
	if e.holdIndex(requestID) < 0 {
		e.counts.StaleReads++
	}
	return blocks, nil
}

// NoteDone says that a reader is done with a request's blocks. It takes effect with the next Schedule.
func (e *Engine) NoteDone(requestID string) {
	e.notices = append(e.notices, notice{done: true, id: requestID})
}

// NoteBeat says that a reader still wants the blocks of these requests. It takes effect with the next Schedule.
func (e *Engine) NoteBeat(requestIDs []string) {
	for _, id := range requestIDs {
		e.notices = append(e.notices, notice{id: id})
	}
}

// settle takes up what has happened since the last step: messages of readers first, then leases, then transfers.
func (e *Engine) settle(now time.Duration) {
	for _, n := range e.notices {
		i := e.holdIndex(n.id)
		switch {
		case i < 0 && n.done:
			e.counts.UnknownNotices++
		case i < 0:
		case n.done:
			e.counts.Completed++
			e.releaseHold(i)
		default:
			e.counts.Beats++
			e.holds[i].deadline = max(e.holds[i].deadline, now+e.cfg.Lease*2/3)
		}
	}
	e.notices = e.notices[:0]
	for i := 0; i < len(e.holds); {
		if e.holds[i].deadline > now {
			if e.cfg.HeadFirstExpiry {
				break
			}
			i++
			continue
		}
		e.counts.Expired++
		e.releaseHold(i)
	}
	e.takeReceived()
}

func (e *Engine) releaseHold(i int) {
	e.pool.release(e.holds[i].table)
	e.holds = slices.Delete(e.holds, i, i+1)
}

func (e *Engine) holdIndex(id string) int {
	return slices.IndexFunc(e.holds, func(h *hold) bool { return h.id == id })
}
