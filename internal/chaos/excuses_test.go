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
}

// excuses is the whole list, first match first. What stands here is lost by design or by somebody else's fault; a hand-off
// whose lease ends for any other reason is a violation.
var excuses = []excuse{
	// The prefill's own end.
	{"prefill finished before its Abort came (orphan)", func(g *grant) bool { return g.prefill != nil && g.prefill.orphan }},
	{"prefill let go unread: deadline, end of the shutdown or cut", func(g *grant) bool {
		p := g.prefill
		return p != nil && p.dropped && (p.dropOn == handoff.EventTimer || p.dropOn == handoff.EventPatience || p.dropOn == handoff.EventCut)
	}},
	{"prefill let go unread: its engine had stopped to answer", func(g *grant) bool {
		return g.prefill != nil && g.prefill.dropped && g.prefill.dropOn == handoff.EventLost
	}},
	{"prefill's answer broke the protocol", func(g *grant) bool { return g.prefill != nil && g.prefill.bad }},

	// The frontend.
	{"frontend gone before it had the hand-off", func(g *grant) bool {
		return !g.received && g.prefill != nil && g.prefill.terminal == handoff.Finished && g.prefill.closed
	}},
	{"frontend gone or given up before it sent the decode", func(g *grant) bool {
		return g.received && len(g.legs) == 0 && (g.prefill.conv.gaveUp || g.prefill.conv.front.dead || g.prefill.conv.attempt > 0)
	}},
	{"decode came to a worker that takes no requests", anyLeg(func(l *leg) bool { return l.turnedAway })},

	// Refused before the engine: it would have answered with wrong text, or not survived.
	{"stale: refused", anyLeg(func(l *leg) bool { return l.fault == "stale" })},
	{"malformed: refused", anyLeg(func(l *leg) bool {
		return l.conv.run.plan.fault == faultBroken && l.conv.plan.struck && l.fault != "" && l.fault != "declined" && l.fault != "reused"
	})},
	{"came too late, and nobody could tell", anyLeg(func(l *leg) bool {
		return l.grant.blind && (translate.Stamp{Lease: l.conv.run.plan.lease}).Stale(l.admittedAt-l.grant.made)
	})},

	// Declined, and not released.
	{"declined, M10 is off", anyLeg(func(l *leg) bool { return l.declined() && !l.conv.run.plan.releases })},
	{"declined, the release had no turn before the deadline", anyLeg(func(l *leg) bool { return l.declined() && l.releaseLate })},

	// The engines.
	{"D is gone", anyStream(func(s *stream) bool { return s.lostEngine })},
	{"READ failed", anyStream(func(s *stream) bool { return s.readFailed })},
	{"READ never ended", anyStream(func(s *stream) bool { return s.readHung })},
	{"D was frozen, and its heartbeats with it", anyStream(func(s *stream) bool { return s.frozen })},
	{"heartbeats lost", anyStream(func(s *stream) bool { return s.lostBeats })},
	{"let go during a READ, which ends the heartbeats", anyStream(func(s *stream) bool { return s.endedInRead })},

	// The worker's own bounds.
	{"never reached the engine: deadline, end of the shutdown or cut", anyLeg(func(l *leg) bool {
		return l.stream != nil && l.stream.unheard &&
			(l.dropOn == handoff.EventTimer || l.dropOn == handoff.EventPatience || l.dropOn == handoff.EventCut)
	})},
	{"never submitted: end of the shutdown or cut", anyLeg(func(l *leg) bool {
		return l.stream == nil && l.refusal == nil && l.worker.last != handoff.EventDispatch
	})},
}

// declined: refused although the hand-off is good, here or by the engine.
func (l *leg) declined() bool { return l.fault == "declined" || l.stream != nil && l.stream.declined }

func anyLeg(is func(*leg) bool) func(*grant) bool {
	return func(g *grant) bool { return slices.ContainsFunc(g.legs, is) }
}

func anyStream(is func(*stream) bool) func(*grant) bool {
	return anyLeg(func(l *leg) bool { return slices.ContainsFunc(l.streams, is) })
}
