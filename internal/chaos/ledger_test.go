package chaos

import (
	"slices"
	"time"

	"remora/internal/sim/core"
)

// fate is what became of the blocks of a hand-off.
type fate string

const (
	fateHeld      fate = "held"
	fateCompleted fate = "completion"
	fateExpired   fate = "expiry"
	fateLost      fate = "engine lost"
)

// grant is one hand-off, from the prefill that made it to the release of its blocks.
type grant struct {
	key      string // engine id and the engine's request id
	id       string // the engine's request id
	prefill  *leg   // nil: nobody read it
	fate     fate
	made     time.Duration
	ended    time.Duration
	legs     []*leg // that were to consume it
	uses     int    // by D's core
	usedAt   time.Duration
	received bool
	// blind: the decode could not tell its age, or not rightly.
	blind bool
}

func grantKey(engineID, requestID string) string { return engineID + " " + requestID }

// ledger keeps the books of one engine process on the blocks that it holds, by what it is told and by the rules alone, and
// compares them with the core's counters after each step. The core does not say which request a counter was moved by.
type ledger struct {
	engine    *engine
	id        string // of the process
	headScan  bool
	lease     time.Duration
	open      []*holding // oldest first
	notes     []note     // until the next step
	completed int
	expired   int
}

type holding struct {
	grant    *grant
	deadline time.Duration
}

type note struct {
	done bool // else a heartbeat
	id   string
}

// hold enters a finished prefill.
func (l *ledger) hold(h *core.HandOff, s *stream) {
	g := &grant{key: grantKey(h.EngineID, h.RequestID), id: h.RequestID, fate: fateHeld, made: l.engine.now}
	if s != nil {
		g.prefill = s.owner
		s.grant = g
	}
	l.engine.grants[g.key] = g
	l.engine.granted = append(l.engine.granted, g)
	l.open = append(l.open, &holding{grant: g, deadline: l.engine.now + l.lease})
	l.engine.logf(l.engine.name, "holds %d blocks of %s", len(h.Blocks), h.RequestID)
}

func (l *ledger) complete(id string) { l.notes = append(l.notes, note{done: true, id: id}) }

func (l *ledger) beat(ids []string) {
	for _, id := range ids {
		l.notes = append(l.notes, note{id: id})
	}
}

// settle does what the next step will do: messages first, then leases.
func (l *ledger) settle(now time.Duration) {
	for _, n := range l.notes {
		i := slices.IndexFunc(l.open, func(h *holding) bool { return h.grant.id == n.id })
		switch {
		case i < 0:
		case n.done:
			l.completed++
			l.end(i, fateCompleted)
		default:
			l.open[i].deadline = max(l.open[i].deadline, now+l.lease*2/3)
		}
	}
	l.notes = l.notes[:0]
	for i := 0; i < len(l.open); {
		if l.open[i].deadline <= now {
			l.expired++
			l.end(i, fateExpired)
			continue
		}
		if l.headScan {
			break
		}
		i++
	}
}

func (l *ledger) end(i int, f fate) {
	g := l.open[i].grant
	g.fate, g.ended = f, l.engine.now
	l.open = slices.Delete(l.open, i, i+1)
	l.engine.logf(l.engine.name, "frees the blocks of %s by %s", g.id, f)
}

// lose: the process is gone, and its blocks with it.
func (l *ledger) lose() {
	for len(l.open) > 0 {
		l.end(0, fateLost)
	}
	l.notes = nil
}

func (l *ledger) holds(id string) bool {
	return slices.ContainsFunc(l.open, func(h *holding) bool { return h.grant.id == id })
}

func (l *ledger) compare(s core.Stats) {
	if s.Dead {
		return
	}
	if s.Held != len(l.open) || s.Completed != l.completed || s.Expired != l.expired {
		l.engine.violatef("C1", "%s: the engine says held %d, completed %d, expired %d; by the rules it is %d, %d, %d",
			l.id, s.Held, s.Completed, s.Expired, len(l.open), l.completed, l.expired)
	}
}

// consume books that D's core takes a hand-off up (C4).
func (r *run) consume(s *stream, src *core.Source) {
	g := s.grant
	if g == nil {
		if src.Defect == core.Sound {
			r.violatef("C4", "%s consumes %s, which nobody handed off", s.id, src.RequestID)
		}
		return
	}
	g.uses++
	late := r.now-g.usedAt >= r.plan.lease // beyond what a worker remembers; a stamp would tell
	g.usedAt = r.now
	if g.uses > 1 && (!g.blind || !late) {
		r.violatef("C4", "%s is consumed a second time, by %s", g.id, s.id)
	}
}
