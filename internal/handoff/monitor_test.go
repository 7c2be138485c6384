package handoff_test

import (
	"fmt"
	"slices"

	"remora/internal/handoff"
)

// monitor watches one machine from outside and checks M1 to M10 after each event: what must not be done (check), what must be
// (owed), and what has to hold in between (settled). It knows only what was fed and what came out, never the machine's fields.
type monitor struct {
	cfg     handoff.Config
	m       handoff.Machine
	history []string

	dispatched, refused, cancelled, headers, released, finishRead, ended, shutdown, cut, timerFired, deaf bool
	submitted, short, aborted, dropped, timerArmed, patienceArmed, letGo, failed                          bool
	terminals, timers, afterDone, releases, drains                                                        int
}

func newMonitor(cfg handoff.Config) *monitor { return &monitor{cfg: cfg, m: handoff.New(cfg)} }

// possible tells whether the world can produce the event now: a stream has no messages before it is open or after its end.
func (w *monitor) possible(word string) bool {
	ev := events[word]
	open := w.submitted && !w.ended
	switch ev.Kind {
	case handoff.EventDispatch, handoff.EventRefuse:
		return !w.dispatched && !w.refused
	case handoff.EventHeaders:
		return open && !w.headers
	case handoff.EventMessage:
		return open && w.headers && !w.finishRead
	case handoff.EventEnd: // an engine in good health can decline a request after its headers as well; it has the hand-off then
		return open
	case handoff.EventTimer:
		return w.timerArmed
	case handoff.EventPatience:
		return w.patienceArmed
	case handoff.EventAbortRefused:
		return w.aborted && !w.deaf
	case handoff.EventCancel, handoff.EventLost, handoff.EventShutdown, handoff.EventCut:
		return true
	}
	return false
}

// step feeds one event and returns what is violated.
func (w *monitor) step(word string) error {
	ev, old := events[word], *w
	before := w.m.State()
	w.history = append(w.history, word)
	w.see(ev)
	if before == handoff.Done {
		w.afterDone++
	}
	acts := w.m.Step(ev, nil)
	if before == handoff.Done && len(acts) > 0 {
		return fmt.Errorf("acts %v after done", acts)
	}
	for i, a := range acts {
		if err := w.check(ev, a, acts[:i]); err != nil {
			return err
		}
	}
	if before != handoff.Done {
		if err := w.owed(&old, ev, acts); err != nil {
			return fmt.Errorf("%w; it did %v", err, acts)
		}
	}
	return w.settled()
}

// see notes what an event says.
func (w *monitor) see(ev handoff.Event) {
	switch ev.Kind {
	case handoff.EventDispatch:
		w.dispatched = true
	case handoff.EventRefuse:
		w.refused = true
	case handoff.EventCancel:
		w.cancelled = true
	case handoff.EventHeaders:
		w.headers = true
	case handoff.EventMessage:
		w.released = w.released || ev.Tokens || ev.Finish != handoff.NotFinished
		w.finishRead = w.finishRead || ev.Finish != handoff.NotFinished
		w.failed = w.failed || ev.Bad
	case handoff.EventEnd:
		w.ended = true
	case handoff.EventTimer:
		w.timerFired, w.timerArmed = true, false
	case handoff.EventPatience:
		// The shutdown's moment of reading is over, or an Abort went unanswered; it counts where Abort is known.
		w.letGo, w.patienceArmed = w.letGo || w.shutdown || !w.deaf, false
	case handoff.EventAbortRefused:
		w.deaf = true
	case handoff.EventLost:
		w.failed = w.failed || w.submitted
	case handoff.EventShutdown:
		w.shutdown = true
	case handoff.EventCut:
		w.cut = true
	}
}

func (w *monitor) keeper() bool { return w.cfg.Role == handoff.Decode && w.cfg.HasParams }

func (w *monitor) prefill() bool { return w.cfg.Role == handoff.Prefill }

// decided: the end of the request is, though its stream may be read on.
func (w *monitor) decided() bool { return w.cancelled || w.shutdown || w.cut || w.terminals > 0 }

// mayLetGo: the stream may be aborted or dropped; a keeper's only after its release (M2, M3, M5), a cancelled prefill's only
// after its finish (M6).
func (w *monitor) mayLetGo() bool {
	switch bound := w.ended || w.timerFired || w.letGo || w.cut; {
	case w.keeper():
		return bound || w.released
	case w.prefill() && w.decided():
		return bound || w.finishRead || w.failed
	}
	return true
}

// check is about what must not be done.
func (w *monitor) check(ev handoff.Event, a handoff.Action, earlier []handoff.Action) error {
	switch a.Kind {
	case handoff.ActSubmit:
		if w.submitted || !w.dispatched {
			return fmt.Errorf("submitted twice or before dispatch")
		}
		if a.Short != (w.cancelled || w.shutdown) {
			return fmt.Errorf("short submit %v with cancelled %v, shutdown %v", a.Short, w.cancelled, w.shutdown)
		}
		w.submitted, w.short = true, a.Short
	case handoff.ActPrologue:
		if !w.headers || w.cancelled || w.terminals > 0 {
			return fmt.Errorf("prologue without headers, after a cancel or after the terminal")
		}
	case handoff.ActEmit:
		if w.cancelled || w.terminals > 0 || ev.Kind != handoff.EventMessage || ev.Bad {
			return fmt.Errorf("emit after a cancel, after the terminal or without a good message")
		}
	case handoff.ActTerminal:
		w.terminals++
		return w.checkTerminal(a, earlier)
	case handoff.ActAbort:
		if w.aborted || !w.headers || w.finishRead || w.dropped {
			return fmt.Errorf("abort: again %v, headers %v, finish read %v, dropped %v", w.aborted, w.headers, w.finishRead, w.dropped)
		}
		if w.keeper() && !w.mayLetGo() && !w.shutdown && (w.cfg.Policy != handoff.Release || !w.cancelled && w.terminals == 0) {
			return fmt.Errorf("keeper aborted before its release")
		}
		w.aborted = true
	case handoff.ActDrop:
		if w.dropped || !w.submitted || w.ended {
			return fmt.Errorf("drop: again %v, submitted %v, ended %v", w.dropped, w.submitted, w.ended)
		}
		if !w.mayLetGo() {
			return fmt.Errorf("dropped before its release")
		}
		w.dropped = true
	case handoff.ActTimer:
		w.timers++
		w.timerArmed = true
		if a.After != w.cfg.DrainDeadline || w.timers > 1 {
			return fmt.Errorf("the drain deadline was restarted, or is another one")
		}
	case handoff.ActPatience:
		w.patienceArmed = true
		switch {
		case w.shutdown && a.After == w.cfg.ShutdownRead:
		case !w.shutdown && w.keeper() && w.cfg.Policy == handoff.Release && w.aborted && a.After == w.cfg.AbortPatience:
		default:
			return fmt.Errorf("patience without a shutdown or an abort to be answered, or of another length")
		}
	case handoff.ActRelease:
		w.releases++
		if w.releases > 1 || !w.keeper() || w.headers || !ev.Unclaimed {
			return fmt.Errorf("release of a hand-off that the engine may have taken")
		}
	case handoff.ActOrphan:
		if !w.prefill() || !ev.Params || !w.cancelled && !w.shutdown {
			return fmt.Errorf("orphan without a finished prefill that nobody wants")
		}
	case handoff.ActDrained:
		w.drains++
		if want := w.outcome(ev); !w.decided() || w.drains > 1 || a.Outcome != want {
			return fmt.Errorf("drain %d ended as %v, want %v, decided %v", w.drains, a.Outcome, want, w.decided())
		}
	}
	return nil
}

func (w *monitor) checkTerminal(a handoff.Action, earlier []handoff.Action) error {
	switch {
	case w.terminals > 1:
		return fmt.Errorf("%d terminals", w.terminals)
	case w.cancelled && a.Terminal != handoff.Cancelled:
		return fmt.Errorf("terminal %v after a cancel", a.Terminal)
	case !w.cancelled && a.Terminal == handoff.Cancelled:
		return fmt.Errorf("cancelled terminal without a cancel")
	case w.short && a.Terminal == handoff.Finished:
		return fmt.Errorf("the token of a short request is told as the whole answer")
	case a.Terminal == handoff.Finished && !has(earlier, handoff.ActEmit):
		return fmt.Errorf("finished without emitting the finish")
	}
	return nil
}

// outcome is how a drain that this event ends has ended.
func (w *monitor) outcome(ev handoff.Event) handoff.DrainOutcome {
	switch {
	case ev.Kind == handoff.EventCut:
		return handoff.DrainCut
	case ev.Kind == handoff.EventEnd:
		return handoff.DrainEnded
	case ev.Kind == handoff.EventMessage && ev.Finish == handoff.FinishedAborted:
		return handoff.DrainAborted
	case ev.Kind == handoff.EventMessage && ev.Finish != handoff.NotFinished:
		return handoff.DrainFinished
	case ev.Kind == handoff.EventMessage:
		return handoff.DrainReleased
	case !w.submitted:
		return handoff.DrainNeverSubmitted
	case !w.headers:
		return handoff.DrainHeadersNever
	}
	return handoff.DrainDeadline
}

func has(acts []handoff.Action, kind handoff.ActionKind) bool {
	return slices.ContainsFunc(acts, func(a handoff.Action) bool { return a.Kind == kind })
}

// does tells whether acts holds these kinds in this order, whatever is between them.
func does(acts []handoff.Action, kinds ...handoff.ActionKind) bool {
	for _, a := range acts {
		if len(kinds) > 0 && a.Kind == kinds[0] {
			kinds = kinds[1:]
		}
	}
	return len(kinds) == 0
}

// owed is about what must be done: for an event that came when the request was as old says. w is as it is after it.
func (w *monitor) owed(old *monitor, ev handoff.Event, acts []handoff.Action) error {
	rules := []struct {
		name  string
		due   bool
		holds bool
	}{
		{"M1: a request is submitted when its turn has come", ev.Kind == handoff.EventDispatch && (w.keeper() || !old.decided()), w.submitted},
		{"M7: a refusal ends the request", ev.Kind == handoff.EventRefuse, w.over()},
		{"M10: a good hand-off that the engine has not taken is released", ev.Unclaimed && w.keeper() && !old.headers, has(acts, handoff.ActRelease)},
		{"the client hears of the headers", ev.Kind == handoff.EventHeaders && !old.decided(), has(acts, handoff.ActPrologue)},
		{"the client gets the message", ev.Kind == handoff.EventMessage && !ev.Bad && !old.decided(), has(acts, handoff.ActEmit)},
		{"a finish ends the request", w.finishRead, w.over()},
		{"an end ends the request", w.ended, w.over()},
		{"an order to end ends the request", w.cut, w.over()},
		{"M3: the deadline ends the drain", ev.Kind == handoff.EventTimer, w.over()},
		{"M5, release: the end of a patience ends the drain", ev.Kind == handoff.EventPatience && (w.shutdown || !w.deaf), w.over()},
		{"M2: a release message ends a keeper's drain", ev.Kind == handoff.EventMessage && w.keeper() && old.decided() && w.released, w.over()},
		{
			"M2, M3: what is let go with its headers is aborted first, unless it has finished or nobody waits for its end",
			w.dropped && !old.dropped && w.headers && !w.finishRead && old.terminals == 0 && !w.failed, w.aborted && (old.aborted || does(acts, handoff.ActAbort, handoff.ActDrop)),
		},
		{"M6: an aggregated request ends with its client", w.cancelled && !w.keeper() && !w.prefill(), w.over()},
		{
			"M6: so does what has released its hand-off", ev.Kind == handoff.EventCancel && w.keeper() && old.released, w.over(),
		},
		{
			"M6: a cancelled prefill is aborted as soon as its headers are there",
			w.prefill() && w.cancelled && w.headers && !w.over(), w.aborted,
		},
		{"M6: an orphan is counted", w.prefill() && ev.Params && old.decided() && !has(acts, handoff.ActEmit), has(acts, handoff.ActOrphan)},
		{
			"policy release: an undecided keeper whose end is decided is aborted as soon as its headers are there, and that is waited for",
			w.keeper() && w.cfg.Policy == handoff.Release && w.decided() && w.headers && !w.over(), w.aborted && (w.patienceArmed || w.deaf),
		},
		{
			"M3: the deadline runs from the moment that decides the end", !old.decided() && w.decided() && !w.shutdown && !w.over(), w.timerArmed,
		},
		{"M5: the end of a shutdown leaves a moment", w.shutdown && !w.over(), w.patienceArmed && (!w.headers || w.aborted)},
		{
			"M5: an answer that comes whole in that moment is delivered",
			ev.Kind == handoff.EventMessage && ev.Finish == handoff.FinishedWhole && !ev.Bad && !old.failed && !w.cancelled && !w.short && old.terminals == 0,
			hasTerminal(acts, handoff.Finished),
		},
		{"M5: the end of a shutdown ends what needs no drain", ev.Kind == handoff.EventShutdown && !w.keeper() && !w.prefill(), w.over()},
		{"M7: an end without a finish is incomplete", ev.Kind == handoff.EventEnd && ev.OK && !old.decided(), hasTerminal(acts, handoff.Incomplete)},
		{"M7: an error is a failure", ev.Kind == handoff.EventEnd && !ev.OK && !old.decided(), hasTerminal(acts, handoff.Failed)},
		{"M7: so is a bad message", ev.Kind == handoff.EventMessage && ev.Bad && !old.decided(), hasTerminal(acts, handoff.Failed)},
		{"M7: so is the loss of the engine", ev.Kind == handoff.EventLost && old.submitted && !old.decided(), hasTerminal(acts, handoff.Failed)},
		{"M7: a refusal is told", ev.Kind == handoff.EventRefuse && !w.cancelled && old.terminals == 0, hasTerminal(acts, handoff.Refused)},
		{
			"M5: whoever did not leave hears of the shutdown",
			w.over() && !old.over() && !w.cancelled && old.terminals == 0 && (ev.Kind == handoff.EventCut || ev.Kind == handoff.EventPatience || ev.Kind == handoff.EventShutdown),
			hasTerminal(acts, handoff.Shutdown),
		},
		{"a drain is counted", old.m.State() == handoff.Draining && w.over() && ev.Kind != handoff.EventRefuse, w.drains == 1},
		{"the terminal comes after everything else", has(acts, handoff.ActTerminal) && w.over() && old.terminals == 0 && !has(acts, handoff.ActTimer), len(acts) == 0 || acts[len(acts)-1].Kind == handoff.ActTerminal},
	}
	for _, r := range rules {
		if r.due && !r.holds {
			return fmt.Errorf("not so: %s", r.name)
		}
	}
	return nil
}

func hasTerminal(acts []handoff.Action, t handoff.Terminal) bool {
	return slices.Contains(acts, handoff.Action{Kind: handoff.ActTerminal, Terminal: t})
}

func (w *monitor) over() bool { return w.m.State() == handoff.Done }

// settled checks what must hold between events.
func (w *monitor) settled() error {
	switch state := w.m.State(); {
	case state == handoff.Done && w.terminals != 1:
		return fmt.Errorf("done with %d terminals", w.terminals)
	case state == handoff.Done && w.submitted && !w.ended && !w.dropped:
		return fmt.Errorf("done with the stream left open")
	case state == handoff.Done && w.keeper() && !w.submitted && !w.refused && !w.timerFired && !w.letGo && !w.cut:
		return fmt.Errorf("keeper ended and was never submitted")
	case state != handoff.Done && w.decided() && !w.timerArmed && !w.patienceArmed:
		return fmt.Errorf("the end is decided but nothing bounds the wait")
	case state != handoff.Done && w.dropped:
		return fmt.Errorf("dropped but not done")
	}
	return nil
}
