package chaos

import (
	"fmt"
	"slices"
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/handoff"
)

// judge checks an action of the machine at the moment at which it is carried out.
func (l *leg) judge(ev handoff.Event, act handoff.Action) {
	letGo := l.freed || l.ended || ev.Kind == handoff.EventTimer || ev.Kind == handoff.EventPatience || ev.Kind == handoff.EventCut
	switch act.Kind {
	case handoff.ActSubmit:
		if l.keeper && l.cancels > 0 && !act.Short {
			l.violatef("M1", "%s is submitted whole for a client that has left", l.id)
		}
	case handoff.ActAbort:
		l.aborts++
		switch {
		case l.aborts > 1:
			l.violatef("C5", "%s sends a second Abort", l.id)
		case l.finishRead:
			l.violatef("C5", "%s sends an Abort after the finish", l.id)
		case !l.headers:
			l.violatef("M8", "%s sends an Abort before the headers", l.id)
		case l.dropped:
			l.violatef("M8", "%s sends an Abort for a stream that it has dropped", l.id)
		case l.keeper && !letGo && l.plan.policy != handoff.Release && l.worker.last == handoff.EventDispatch:
			l.violatef("M2", "%s aborts a hand-off that is not fetched", l.id)
		}
	case handoff.ActDrop:
		if l.keeper && !letGo {
			l.violatef("M2", "%s drops a hand-off that is not fetched", l.id)
		}
		if l.dropped {
			l.violatef("M8", "%s drops twice", l.id)
		}
		if ev.Kind == handoff.EventTimer && l.headers && l.aborts == 0 {
			l.violatef("M3", "%s drops at the deadline without an Abort", l.id)
		}
	case handoff.ActTerminal:
		l.terminals++
		switch {
		case l.terminals > 1:
			l.violatef("C3", "%s has a second terminal", l.id)
		case l.cancels > 0 && act.Terminal != handoff.Cancelled:
			l.violatef("M7", "%s ends as %v after its client has left", l.id, act.Terminal)
		case l.cancels == 0 && act.Terminal == handoff.Cancelled:
			l.violatef("M7", "%s ends as cancelled, but nobody has left", l.id)
		}
	default: // what the others do shows in the engines and at the client
	}
}

// check is everything that must hold when nothing happens any more.
func (r *run) check(quiet bool) {
	if !quiet {
		r.violatef("C6", "not at rest after %v and %d events", r.now, r.done)
		return // everything else would only say so again
	}
	for _, l := range r.legs {
		r.checkLeg(l)
	}
	for _, e := range r.engines {
		e.checkBase()
	}
	for _, g := range r.granted {
		r.checkGrant(g)
	}
	for _, as := range []role{roleAggregated, rolePrefill, roleDecode} {
		if w := r.workers[as]; w != nil && (w.inside > 0 || len(w.live) > 0 || len(w.line) > 0) {
			r.violatef("C6", "%s keeps %d requests, %d ids and %d in line", w.name, w.inside, len(w.live), len(w.line))
		}
	}
}

// checkLeg: one terminal, everything closed, in time, and the right text.
func (r *run) checkLeg(l *leg) {
	r.tally.legs++
	if l.turnedAway {
		return
	}
	if l.machine == nil || l.machine.State() != handoff.Done || l.terminals != 1 || !l.removed {
		r.violatef("C3", "%s has %d terminals, removed %v", l.id, l.terminals, l.removed)
		return
	}
	r.tally.terminals[l.terminal.String()]++
	if !l.gone && l.ends != 1 || l.ends > 1 {
		r.violatef("C3", "the client of %s saw %d ends", l.id, l.ends)
	}
	if l.ends == 1 && !l.complete() {
		r.violatef("C3", "the client of %s saw %v, %v after the terminal %v", l.id, l.reason, l.failed, l.terminal)
	}
	stopped := l.worker.last != handoff.EventDispatch
	if l.keeper && l.refusal == nil && l.stream == nil && !stopped {
		r.violatef("M1", "%s was never submitted", l.id)
	}
	if l.reason == protocol.FinishCancelled && l.terminal == handoff.Finished && l.aborts == 0 {
		r.violatef("M9", "%s was ended by an Abort that was not its own", l.id)
	}
	if took := l.doneAt - l.decidedAt; l.cancels > 0 && took > r.plan.deadline {
		r.violatef("M3", "%s took %v from the cancel to its end", l.id, took)
	}
	if l.cancels > 0 && l.headers && !l.finishRead && l.aborts == 0 && l.dropped && !l.bad {
		r.violatef("M6", "%s was dropped without an Abort", l.id)
	}
	if l.role == rolePrefill && l.cancels > 0 && l.headers && l.aborts == 0 {
		r.violatef("M6", "%s was left by its client and not aborted", l.id)
	}
	r.checkText(l)
}

// complete: what the client saw goes with the terminal.
func (l *leg) complete() bool {
	errs := l.failed != protocol.ErrorKind{}
	switch l.terminal {
	case handoff.Finished:
		return !errs && l.reason != ""
	case handoff.Cancelled:
		return !errs && l.reason == protocol.FinishCancelled
	case handoff.Shutdown:
		return l.failed == protocol.ErrorBackendEngineShutdown
	default: // Failed, Incomplete, Refused
		return errs
	}
}

// checkText compares what the client got with the text of one engine alone (C7).
func (r *run) checkText(l *leg) {
	if l.role == rolePrefill {
		return
	}
	want := r.oracle.text(l.conv.plan.prompt)
	whole := l.terminal == handoff.Finished && l.reason == protocol.FinishLength && l.ends == 1
	if whole {
		r.tally.answers++
	}
	if l.worker.engine.poisoned {
		r.tally.exempt++
		return
	}
	switch {
	case len(l.tokens) > len(want) || !slices.Equal(l.tokens, want[:len(l.tokens)]):
		r.violatef("C7", "%s got %v, one engine alone says %v", l.id, l.tokens, want)
	case whole && len(l.tokens) != l.conv.plan.tokens:
		r.violatef("C7", "%s got %d tokens of %d", l.id, len(l.tokens), l.conv.plan.tokens)
	}
}

// checkBase: nothing is left in an engine (C1, C2), its books are in order, and it lives unless the schedule killed it (C9).
func (e *engine) checkBase() {
	if !e.running() {
		if !e.plan.has(faultDDead) {
			e.violatef("C9", "%s does not run", e.name)
		}
		return
	}
	if err := e.core.Check(); err != nil {
		e.violatef("C2", "%s: %v", e.name, err)
	}
	e.checkMirror()
	name := "C2"
	if e.name == "P" {
		name = "C1"
	}
	s := e.core.Stats()
	// A READ that never ends keeps the blocks that it may still write to: nothing but a restart frees them.
	if s.Running+s.Waiting+s.Held > 0 || s.RecvPending != e.hung || e.hung == 0 && s.UsedBlocks > 0 {
		e.violatef(name, "%s is not at its base: %d running, %d waiting, %d receiving (%d hung), %d held, %d blocks",
			e.name, s.Running, s.Waiting, s.RecvPending, e.hung, s.Held, s.UsedBlocks)
	}
	if open := e.openStreams(); len(open) > 0 {
		e.violatef("C6", "%s has open streams: %v", e.name, open)
	}
}

// openStreams lists what the front end still has. One that hangs keeps the streams whose handler never ran.
func (e *engine) openStreams() []string {
	var open []string
	for _, s := range e.live {
		if s.handled || !e.plan.has(faultHung) {
			open = append(open, s.internal)
		}
	}
	return open
}

// checkGrant: blocks were released by their reader, or there is a reason why their lease had to end (C1).
func (r *run) checkGrant(g *grant) {
	switch g.fate {
	case fateHeld:
		r.violatef("C1", "%s is held for ever", g.id)
	case fateExpired:
		for _, x := range excuses {
			if x.holds(g) {
				r.tally.releases["expiry: "+x.why]++
				return
			}
		}
		r.violatef("C1", "the lease of %s (%s) ended at %v and nothing excuses it", g.id, legName(g.prefill), g.ended.Round(time.Millisecond))
	case fateCompleted, fateLost:
		r.tally.releases[string(g.fate)]++
	}
}

func legName(l *leg) string {
	if l == nil {
		return "nobody's"
	}
	return fmt.Sprintf("%s, terminal %v", l.id, l.terminal)
}
