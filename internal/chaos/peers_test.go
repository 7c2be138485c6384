package chaos

import (
	"time"

	"remora/internal/sim/core"
)

// This file is the way between two engines: READs, completions and heartbeats, each with its delay and its faults.

// carry does what a step asks of the world outside.
func (e *engine) carry(step core.Plan) {
	for _, read := range step.Reads {
		e.read(read)
	}
	for _, done := range step.Dones {
		e.logf(e.name, "tells %s that %s is not needed", done.Source.EngineID, done.Source.RequestID)
		e.tell(done.Source.EngineID, func(p *engine) { p.complete(done.Source.RequestID) })
	}
	for _, beat := range step.Beats {
		if e.plan.has(faultBeats) && e.chance(80) {
			for _, id := range beat.RequestIDs {
				e.loseBeat(beat.Source.EngineID, id)
			}
			e.logf(e.name, "heartbeat for %v is lost", beat.RequestIDs)
			continue
		}
		e.tell(beat.Source.EngineID, func(p *engine) {
			p.core.NoteBeat(beat.RequestIDs)
			p.ledger.beat(beat.RequestIDs)
			p.wake()
		})
	}
}

// tell reaches an engine by its id a hop later, if that process still works.
func (e *engine) tell(id string, do func(p *engine)) {
	e.after(e.hop(), func() {
		if p := e.peer(id); p != nil {
			do(p)
		}
	})
}

// peer finds the working process with that id.
func (r *run) peer(id string) *engine {
	for _, e := range r.engines {
		if e.ledger.id == id && e.running() {
			return e
		}
	}
	return nil
}

func (e *engine) complete(id string) {
	e.core.NoteDone(id)
	e.ledger.complete(id)
	e.wake()
}

func (r *run) loseBeat(engineID, requestID string) {
	for _, l := range r.legs {
		for _, s := range l.streams {
			if s.grant != nil && s.grant.key == grantKey(engineID, requestID) {
				s.lostBeats = true
			}
		}
	}
}

// read carries a READ out. A READ that has begun ends when it likes; the request may be gone by then.
func (e *engine) read(r core.Read) {
	s, life := e.byID[r.ID], e.life
	s.reading = true
	e.logf(e.name, "%s: READ of %d blocks of %s begins", s.id, len(r.Blocks), r.Source.RequestID)
	s.mark(atRead)
	takes := e.plan.reads + e.hop()
	switch {
	case e.plan.has(faultReadHung) && s.struck():
		s.readHung = true
		e.hung++
		return
	case e.plan.has(faultReadSlow) && s.struck():
		takes = e.between(100*time.Millisecond, slowestRead(e.plan.lease))
	case e.plan.has(faultReadBad) && s.struck():
		s.readFailed = true
	}
	e.later(takes, func() { // both processes take part
		do := func() {
			if e.life == life && e.running() {
				e.endRead(s, r)
			}
		}
		if p := e.peer(r.Source.EngineID); p != nil {
			p.awake(do)
		} else {
			do()
		}
	})
}

func (e *engine) endRead(s *stream, r core.Read) {
	p := e.peer(r.Source.EngineID)
	var blocks [][]uint64
	var err error
	if p != nil && !s.readFailed {
		blocks, err = p.core.Serve(r.Source.RequestID, r.Blocks)
	}
	if p == nil || s.readFailed || err != nil {
		e.logf(e.name, "%s: READ fails", s.id)
		s.reading, s.readFailed = false, true
		e.core.ReadFailed(r.ID)
		e.wake()
		return
	}
	e.judgeRead(p, s, r)
	p.after(e.hop(), func() {
		if e.peer(r.Source.EngineID) == p {
			p.complete(r.Source.RequestID)
		}
	})
	life := e.life
	e.later(e.hop(), func() {
		if e.life != life || !e.running() {
			return
		}
		e.logf(e.name, "%s: READ ends", s.id)
		s.reading, s.received = false, true
		s.mark(atReceived)
		e.core.ReadDone(r.ID, blocks)
		e.wake()
	})
}

// judgeRead: blocks that are not held any more may be anybody's. A request that has ended does not care; for the others only
// few things excuse it, and then what D says from now on proves nothing.
func (e *engine) judgeRead(p *engine, s *stream, r core.Read) {
	if p.ledger.holds(r.Source.RequestID) || s.endedInRead {
		return
	}
	e.tally.stale++
	if s.lostBeats || s.frozen || s.grant != nil && s.grant.blind {
		e.poisoned = true
		return
	}
	e.violatef("C7", "%s reads blocks of %s, which are not held any more", s.id, r.Source.RequestID)
}
