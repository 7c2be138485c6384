package handoff_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"remora/internal/handoff"
)

// monitor watches one machine from outside and checks the invariants of the package comment after each event. It knows only
// what was fed and what came out, never the machine's own fields.
type monitor struct {
	cfg     handoff.Config
	m       handoff.Machine
	history []string

	dispatched, refused, cancelled, headers, released, finishRead, ended, shutdown, cut, timerFired, deaf bool
	submitted, short, aborted, dropped, timerArmed, patienceArmed, letGo                                  bool
	terminals, timers, afterDone, releases                                                                int
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
	case handoff.EventEnd:
		return open && (!ev.Unclaimed || !w.headers)
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
	ev := events[word]
	before := w.m.State()
	w.history = append(w.history, word)
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
	case handoff.EventEnd:
		w.ended = true
	case handoff.EventTimer:
		w.timerFired, w.timerArmed = true, false
	case handoff.EventPatience:
		// The shutdown's moment of reading is over, or an Abort went unanswered; it counts where Abort is known.
		w.letGo, w.patienceArmed = w.letGo || w.shutdown || !w.deaf, false
	case handoff.EventAbortRefused:
		w.deaf = true
	case handoff.EventShutdown:
		w.shutdown = true
	case handoff.EventCut:
		w.cut = true
	case handoff.EventLost:
	}
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
	return w.settled()
}

func (w *monitor) keeper() bool { return w.cfg.Role == handoff.Decode && w.cfg.HasParams }

// mayLetGo: a keeper's stream may be aborted or dropped (M2, M3, M5).
func (w *monitor) mayLetGo() bool {
	return !w.keeper() || w.released || w.ended || w.timerFired || w.letGo || w.cut
}

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
		switch {
		case w.cancelled && a.Terminal != handoff.Cancelled:
			return fmt.Errorf("terminal %v after a cancel", a.Terminal)
		case !w.cancelled && a.Terminal == handoff.Cancelled:
			return fmt.Errorf("cancelled terminal without a cancel")
		case w.short && a.Terminal == handoff.Finished:
			return fmt.Errorf("the token of a short request is told as the whole answer")
		case a.Terminal == handoff.Finished && (len(earlier) == 0 || !slices.ContainsFunc(earlier, func(e handoff.Action) bool { return e.Kind == handoff.ActEmit })):
			return fmt.Errorf("finished without emitting the finish")
		}
	case handoff.ActAbort:
		if w.aborted || !w.headers || w.finishRead {
			return fmt.Errorf("abort: again %v, headers %v, finish read %v", w.aborted, w.headers, w.finishRead)
		}
		if !w.mayLetGo() && !w.shutdown && (w.cfg.Policy != handoff.Release || !w.cancelled && w.terminals == 0) {
			return fmt.Errorf("keeper aborted before its release")
		}
		w.aborted = true
	case handoff.ActDrop:
		if w.dropped || !w.submitted || w.ended {
			return fmt.Errorf("drop: again %v, submitted %v, ended %v", w.dropped, w.submitted, w.ended)
		}
		if !w.mayLetGo() {
			return fmt.Errorf("keeper dropped before its release")
		}
		w.dropped = true
	case handoff.ActTimer:
		w.timers++
		w.timerArmed = true
		if a.After != w.cfg.DrainDeadline || w.timers > 1 {
			return fmt.Errorf("the drain deadline was restarted")
		}
	case handoff.ActPatience:
		w.patienceArmed = true
		if !w.shutdown && (w.cfg.Policy != handoff.Release || !w.aborted) {
			return fmt.Errorf("patience without a shutdown or an abort to be answered")
		}
	case handoff.ActRelease:
		w.releases++
		if w.releases > 1 || !w.keeper() || w.headers || !ev.Unclaimed {
			return fmt.Errorf("release of a hand-off that the engine may have taken")
		}
	case handoff.ActOrphan:
		if w.cfg.Role != handoff.Prefill || !ev.Params || !w.cancelled && !w.shutdown {
			return fmt.Errorf("orphan without a finished prefill that nobody wants")
		}
	case handoff.ActDrained:
		if !w.cancelled && !w.shutdown && w.terminals == 0 {
			return fmt.Errorf("drained although nothing decided the end")
		}
	}
	return nil
}

// settled checks what must hold between events.
func (w *monitor) settled() error {
	if w.terminals > 1 {
		return fmt.Errorf("%d terminals", w.terminals)
	}
	decided := w.cancelled || w.shutdown || w.cut || w.terminals > 0
	switch state := w.m.State(); {
	case state == handoff.Done && w.terminals != 1:
		return fmt.Errorf("done without a terminal")
	case state == handoff.Done && w.submitted && !w.ended && !w.dropped:
		return fmt.Errorf("done with the stream left open")
	case state != handoff.Done && decided && !w.timerArmed && !w.patienceArmed:
		return fmt.Errorf("the end is decided but nothing bounds the wait")
	case state != handoff.Done && w.dropped:
		return fmt.Errorf("dropped but not done")
	case w.keeper() && w.dispatched && !w.submitted && !w.timerFired && !w.letGo && !w.cut && !w.refused && state != handoff.Done:
		return fmt.Errorf("keeper dispatched but not submitted")
	}
	return nil
}

var walked = []string{
	"dispatch", "refuse", "refuse+good", "cancel", "headers", "prompt", "tokens", "finish", "finish+params", "aborted", "bad", "bad+tokens",
	"bad+finish", "end", "error", "declined", "timer", "patience", "abort-refused", "lost", "shutdown", "cut",
}

// TestWalk feeds every possible sequence of events up to the bound to every kind of request.
func TestWalk(t *testing.T) {
	const depth = 8
	for name, cfg := range configs {
		t.Run(name, func(t *testing.T) {
			sequences := 0
			reached := map[handoff.State]bool{}
			var walk func(w monitor, left int)
			walk = func(w monitor, left int) {
				sequences++
				reached[w.m.State()] = true
				if left == 0 || w.afterDone > 2 {
					return
				}
				for _, word := range walked {
					if !w.possible(word) {
						continue
					}
					next := w
					next.history = slices.Clone(w.history)
					if err := next.step(word); err != nil {
						t.Fatalf("%s: %v", strings.Join(next.history, ", "), err)
					}
					walk(next, left-1)
				}
			}
			walk(*newMonitor(cfg), depth)
			t.Logf("SUMMARY: %d sequences of up to %d of %d events, %d of 6 states", sequences, depth, len(walked), len(reached))
		})
	}
}

// TestLongRuns goes beyond the walk's bound with random sequences.
func TestLongRuns(t *testing.T) {
	for name, cfg := range configs {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newMonitor(cfg)
				for range rapid.IntRange(1, 60).Draw(t, "length") {
					able := slices.DeleteFunc(slices.Clone(walked), func(word string) bool { return !w.possible(word) })
					word := rapid.SampledFrom(able).Draw(t, "event")
					if err := w.step(word); err != nil {
						t.Fatalf("%s: %v", strings.Join(w.history, ", "), err)
					}
				}
			})
		})
	}
}

// TestEveryRequestEnds closes any history the world's way (the timer fires, the stream ends, a cut) and wants done.
func TestEveryRequestEnds(t *testing.T) {
	for name, cfg := range configs {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newMonitor(cfg)
				for range rapid.IntRange(0, 12).Draw(t, "length") {
					able := slices.DeleteFunc(slices.Clone(walked), func(word string) bool { return !w.possible(word) })
					if err := w.step(rapid.SampledFrom(able).Draw(t, "event")); err != nil {
						t.Fatal(err)
					}
				}
				for _, word := range []string{"dispatch", "cancel", "timer", "patience"} {
					if w.m.State() != handoff.Done && w.possible(word) {
						if err := w.step(word); err != nil {
							t.Fatal(err)
						}
					}
				}
				if w.m.State() != handoff.Done {
					t.Fatalf("%s: still %v after the deadline", strings.Join(w.history, ", "), w.m.State())
				}
			})
		})
	}
}
