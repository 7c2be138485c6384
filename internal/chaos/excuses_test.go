package chaos

import (
	"slices"

	"remora/internal/handoff"
	"remora/internal/translate"
)

// excuse is a reason for which the blocks of a hand-off may wait for their lease to end.
type excuse struct {
	why   string
	holds func(g *grant) bool
	rare  bool // too rare to be met in every run
}

// excuses is the whole list, first match first. What stands here is lost by design or by somebody else's fault; a hand-off
// whose lease ends for any other reason is a violation.
var excuses = []excuse{
	// The prefill's own end.
	{"prefill finished before its Abort came (orphan)", func(g *grant) bool { return g.prefill != nil && g.prefill.orphan }, false},
	{"prefill let go unread: deadline, end of the shutdown or cut", func(g *grant) bool { return g.prefill != nil && g.prefill.bounded() }, false},
	{"prefill let go unread: its engine had stopped to answer", func(g *grant) bool {
		return g.prefill != nil && g.prefill.dropped && g.prefill.dropOn == handoff.EventLost
	}, false},
	{"prefill's answer broke the protocol", func(g *grant) bool { return g.prefill != nil && g.prefill.bad }, false},

	// The frontend.
	{"frontend gone before it had the hand-off", func(g *grant) bool {
		return !g.received && g.prefill != nil && g.prefill.terminal == handoff.Finished && g.prefill.closed
	}, false},
	{"frontend gone or given up before it sent the decode", func(g *grant) bool {
		return g.received && len(g.legs) == 0 && (g.prefill.conv.gaveUp || g.prefill.conv.front.dead || g.prefill.conv.attempt > 0)
	}, false},
	{"decode came to a worker that takes no requests", anyLeg(func(l *leg) bool { return l.turnedAway }), false},

	// Refused before the engine: it would have answered with wrong text, or not survived.
	{"stale: refused", anyLeg(func(l *leg) bool { return l.fault == "stale" }), false},
	{"malformed: refused", anyLeg(func(l *leg) bool {
		malformed := l.fault != "" && l.fault != "declined" && l.fault != "reused" || l.fault == "declined" && l.unclaimed == nil
		return malformed && l.conv.run.plan.has(faultBroken) && l.conv.plan.struck
	}), false},
	{"came too late, and nobody could tell", anyLeg(func(l *leg) bool {
		return l.grant.blind && (translate.Stamp{Lease: l.conv.run.plan.lease}).Stale(l.admittedAt-l.grant.made)
	}), false},

	// Declined, and not released.
	{"declined, and too old to be released", anyLeg(func(l *leg) bool { return l.tooLate }), false},
	{"declined, M10 is off", anyLeg(func(l *leg) bool { return l.declined() && !l.conv.run.plan.releases }), false},
	{"declined, and let go before it read that: deadline, end of the shutdown or cut", anyLeg(func(l *leg) bool {
		return l.declined() && l.bounded()
	}), true},
	{"declined, the release had no turn before the deadline", anyLeg(func(l *leg) bool { return l.declined() && l.releaseLate }), true},

	// The engines.
	{"D is gone", anyStream(func(s *stream) bool { return s.lostEngine }), false},
	{"READ failed", anyStream(func(s *stream) bool { return s.readFailed }), false},
	{"READ never ended", anyStream(func(s *stream) bool { return s.readHung }), false},
	{"D was frozen, and its heartbeats with it", anyStream(func(s *stream) bool { return s.frozen }), false},
	{"heartbeats lost", anyStream(func(s *stream) bool { return s.lostBeats }), false},
	{"let go during a READ, which ends the heartbeats", anyStream(func(s *stream) bool { return s.endedInRead }), false},

	// The worker's own bounds.
	{"never reached the engine: deadline, end of the shutdown or cut", anyLeg(func(l *leg) bool {
		return l.stream != nil && l.stream.unheard && l.bounded()
	}), false},
	{"never submitted: end of the shutdown or cut", anyLeg(func(l *leg) bool {
		return l.stream == nil && l.refusal == nil && l.worker.last != handoff.EventDispatch
	}), true},
}

// bounded: its stream was let go because one of the bounds of waiting was reached.
func (l *leg) bounded() bool {
	return l.dropped && (l.dropOn == handoff.EventTimer || l.dropOn == handoff.EventPatience || l.dropOn == handoff.EventCut)
}

// declined: refused although the hand-off is good, here or by the engine.
func (l *leg) declined() bool { return l.fault == "declined" || l.stream != nil && l.stream.declined }

func anyLeg(is func(*leg) bool) func(*grant) bool {
	return func(g *grant) bool { return slices.ContainsFunc(g.legs, is) }
}

func anyStream(is func(*stream) bool) func(*grant) bool {
	return anyLeg(func(l *leg) bool { return slices.ContainsFunc(l.streams, is) })
}
