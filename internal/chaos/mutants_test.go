package chaos

import (
	"slices"
	"strings"
	"testing"

	"remora/internal/handoff"
)

// rules says which rules a worker breaks. The zero value breaks none.
type rules struct {
	skipStamp   bool // the age of a hand-off is not looked at
	skipReuse   bool // nor whether it was used before
	skipShape   bool // nor whether it is well-formed
	skipRelease bool // M10
	// skipReleaseCheck: hand-offs of declined requests are released without a look at their age and use.
	skipReleaseCheck bool
	dialFirst        bool // hand-offs wait for the dial-back
	sharedIDs        bool // M9
	earlyIDs         bool // M9: an id is free again before its Abort has been answered
	deaf             bool // not a worker: who listens to KV events misses some
	wrap             func(l *leg, m machine) machine
}

// rewrite is a machine whose actions are changed before anybody sees them.
type rewrite struct {
	machine

	change func(ev handoff.Event, before handoff.State, acts []handoff.Action) []handoff.Action
	ended  bool // the change says that this is the end
}

func (r *rewrite) Step(ev handoff.Event, out []handoff.Action) []handoff.Action {
	if r.ended {
		return out
	}
	before := r.machine.State()
	return append(out, r.change(ev, before, r.machine.Step(ev, nil))...)
}

func (r *rewrite) State() handoff.State {
	if r.ended {
		return handoff.Done
	}
	return r.machine.State()
}

func without(acts []handoff.Action, kind handoff.ActionKind) []handoff.Action {
	return slices.DeleteFunc(acts, func(a handoff.Action) bool { return a.Kind == kind })
}

func has(acts []handoff.Action, kind handoff.ActionKind) bool {
	return slices.ContainsFunc(acts, func(a handoff.Action) bool { return a.Kind == kind })
}

// changing makes rules with a machine whose actions are changed for legs of one role; give up says that a leg ends here.
func changing(as role, change func(r *rewrite, ev handoff.Event, before handoff.State, acts []handoff.Action) []handoff.Action) rules {
	return rules{wrap: func(l *leg, m machine) machine {
		if l.role != as {
			return m
		}
		r := &rewrite{machine: m}
		r.change = func(ev handoff.Event, before handoff.State, acts []handoff.Action) []handoff.Action {
			return change(r, ev, before, acts)
		}
		return r
	}}
}

var (
	cancelled = handoff.Action{Kind: handoff.ActTerminal, Terminal: handoff.Cancelled}
	abort     = handoff.Action{Kind: handoff.ActAbort}
	dropIt    = handoff.Action{Kind: handoff.ActDrop}
)

// endAt ends a leg at a cancel that finds its machine in one of the states, with these actions and the terminal.
func endAt(as role, states []handoff.State, with ...handoff.Action) rules {
	return changing(as, func(r *rewrite, ev handoff.Event, before handoff.State, acts []handoff.Action) []handoff.Action {
		if ev.Kind != handoff.EventCancel || !slices.Contains(states, before) {
			return acts
		}
		r.ended = true
		return append(slices.Clone(with), cancelled)
	})
}

func neverAborts(_ *rewrite, _ handoff.Event, _ handoff.State, acts []handoff.Action) []handoff.Action {
	return without(acts, handoff.ActAbort)
}

// wrongText is what the comparison of texts says.
const wrongText = "one engine alone says"

// mutants are broken workers, each with the invariant that must notice.
var mutants = []struct {
	name  string
	wants string // the violation's name, or what it says
	rules rules
	among func(p *plan) bool // where the rule matters at all; nil: anywhere
}{
	{"drops a decode when its client leaves before the first token", "C1", endAt(roleDecode, []handoff.State{handoff.Opening, handoff.Open}, dropIt), nil},
	{"the same, seen where it happens", "M2", endAt(roleDecode, []handoff.State{handoff.Opening, handoff.Open}, dropIt), nil},
	{"does not submit a decode whose client left first", "M1", endAt(roleDecode, []handoff.State{handoff.Pending}), nil},
	{"the same, by what it leaves behind", "C1", endAt(roleDecode, []handoff.State{handoff.Pending}), nil},
	{"drops a prefill when its client leaves", "C1", endAt(rolePrefill, []handoff.State{handoff.Opening, handoff.Open}, dropIt), nil},
	{"the same, seen where it happens", "M6", endAt(rolePrefill, []handoff.State{handoff.Opening, handoff.Open}, dropIt), nil},
	{"aborts before the headers", "M8", endAt(roleAggregated, []handoff.State{handoff.Opening}, abort, dropIt), nil},
	{"leaves an aggregated request running", "C6", endAt(roleAggregated, []handoff.State{handoff.Open, handoff.Streaming}), nil},
	{"never aborts at the deadline", "M3", changing(roleDecode,
		func(_ *rewrite, ev handoff.Event, _ handoff.State, acts []handoff.Action) []handoff.Action {
			if ev.Kind == handoff.EventTimer {
				return without(acts, handoff.ActAbort)
			}
			return acts
		}), nil},
	{"has no deadline", "C3", changing(roleDecode,
		func(_ *rewrite, _ handoff.Event, _ handoff.State, acts []handoff.Action) []handoff.Action {
			return without(acts, handoff.ActTimer)
		}), nil},
	{"takes twice its deadline", "M3", changing(roleDecode,
		func(_ *rewrite, _ handoff.Event, _ handoff.State, acts []handoff.Action) []handoff.Action {
			for i := range acts {
				if acts[i].Kind == handoff.ActTimer {
					acts[i].After *= 2
				}
			}
			return acts
		}), nil},
	{"aborts what has finished", "C5", changing(roleDecode,
		func(_ *rewrite, ev handoff.Event, _ handoff.State, acts []handoff.Action) []handoff.Action {
			if ev.Finish != handoff.NotFinished && has(acts, handoff.ActTerminal) {
				acts = append([]handoff.Action{abort}, acts...)
			}
			return acts
		}), nil},
	{"aborts twice", "C5", changing(roleAggregated,
		func(_ *rewrite, _ handoff.Event, _ handoff.State, acts []handoff.Action) []handoff.Action {
			if has(acts, handoff.ActAbort) {
				acts = append(acts, abort)
			}
			return acts
		}), nil},
	{"tells the end twice", "C3", changing(roleDecode,
		func(_ *rewrite, _ handoff.Event, _ handoff.State, acts []handoff.Action) []handoff.Action {
			if has(acts, handoff.ActTerminal) {
				acts = append(acts, cancelled)
			}
			return acts
		}), nil},
	{"aborts what it has dropped", "M8", changing(roleAggregated,
		func(_ *rewrite, _ handoff.Event, _ handoff.State, acts []handoff.Action) []handoff.Action {
			if has(acts, handoff.ActAbort) && has(acts, handoff.ActDrop) {
				acts = append(without(acts, handoff.ActAbort), abort)
			}
			return acts
		}), nil},
	{"drops an aggregated request without an Abort", "M6", changing(roleAggregated, neverAborts), nil},
	{"does not abort a prefill whose client has left", "M6", changing(rolePrefill, neverAborts), nil},
	{"calls it a failure that its client has left", "M7", changing(roleDecode,
		func(_ *rewrite, _ handoff.Event, _ handoff.State, acts []handoff.Action) []handoff.Action {
			for i := range acts {
				if acts[i] == cancelled {
					acts[i].Terminal = handoff.Failed
				}
			}
			return acts
		}), nil},
	{"does not hear of the end of a shutdown", "M5", changing(roleDecode,
		func(_ *rewrite, ev handoff.Event, _ handoff.State, acts []handoff.Action) []handoff.Action {
			if ev.Kind == handoff.EventShutdown {
				return nil
			}
			return acts
		}), func(p *plan) bool { return p.stop != nil }},
	{"takes stale hand-offs", "C7", rules{skipStamp: true}, nil},
	{"takes stale hand-offs, by the text", wrongText, rules{skipStamp: true}, nil},
	{"takes hand-offs twice", "C4", rules{skipReuse: true}, nil},
	{"takes malformed hand-offs", "C9", rules{skipShape: true}, nil},
	{"takes malformed hand-offs, by what they leave behind", "C2", rules{skipShape: true}, nil},
	{"does not release declined hand-offs", "C1", rules{skipRelease: true}, nil},
	{
		"releases a hand-off that is used", "C4", rules{skipReleaseCheck: true},
		func(p *plan) bool { return p.has(faultRefuse) && p.has(faultReuse) },
	},
	{
		"releases a hand-off that is stale", "C7", rules{skipReleaseCheck: true},
		func(p *plan) bool { return p.has(faultRefuse) || p.has(faultDecline) },
	},
	{"lets hand-offs wait for the dial-back", "C1", rules{dialFirst: true}, func(p *plan) bool { return p.has(faultRefuse) }},
	{"misses KV events", "C8", rules{deaf: true}, nil},
	{"has two live requests under one id", "M9", rules{sharedIDs: true}, nil},
	{"lets a late Abort meet another request", "M9", rules{earlyIDs: true}, func(p *plan) bool { return p.aborts == abortLate }},
}

// TestBrokenRulesAreFound: each broken rule is found within so many schedules, by the invariant that it breaks.
func TestBrokenRulesAreFound(t *testing.T) {
	const most = 20_000
	o := oracle{}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			tried := 0
			for seed := range uint64(most) {
				if m.among != nil && !m.among(draw(seed)) {
					continue
				}
				tried++
				for _, v := range execute(seed, &m.rules, o, newTally(), nil) {
					if v.name == m.wants || m.wants == wrongText && strings.Contains(v.text, wrongText) {
						t.Logf("found after %d schedules: %s: %s", tried, v.name, v.text)
						return
					}
				}
			}
			t.Errorf("%s is not broken in %d schedules", m.wants, most)
		})
	}
}
