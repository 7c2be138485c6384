package chaos

import (
	"errors"
	"fmt"
	"slices"

	"remora/internal/sim"
	serving "remora/internal/worker"
)

// stormSum sums storms up.
type stormSum struct {
	storms, legs, whole, left, refused, completed, expired int

	ways, faults map[string]int
}

func (s *stormSum) String() string {
	return fmt.Sprintf("%d storms of real workers and simulated engines, %d requests, %d turned away, %d left by their client, "+
		"%d whole answers compared; hand-offs completed %d, expired %d; ways: %s; faults: %s",
		s.storms, s.legs, s.refused, s.left, s.whole, s.completed, s.expired, list(s.ways), list(s.faults))
}

// missing lists what no storm was about.
func (s *stormSum) missing() (none []string) {
	for _, way := range []word{wayStop, wayKill, wayReset, wayDial, wayDies} {
		if s.ways[string(way)] == 0 {
			none = append(none, string(way))
		}
	}
	for _, fault := range stormFaults {
		if s.faults[string(fault)] == 0 {
			none = append(none, "fault "+string(fault))
		}
	}
	return none
}

func (s *storm) violatef(name, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.violations = append(s.violations, violation{name, fmt.Sprintf(format, args...)})
}

// stopped: the plan tells that worker to stop, so it refuses, and ends what does not end by itself.
func (s *storm) stopped(as role) bool { return s.plan.stops == as }

// checkGone: whoever has left is drained within the deadline (M3), and nothing of it is left in the worker (C6).
func (s *storm) checkGone() {
	for as, w := range s.workers {
		for _, gauge := range []string{"dynamo_component_inflight_requests", "dynamo_engine_request", "dynamo_request_queue"} {
			if n := w.count(gauge); n != 0 {
				s.violatef("C6", "%s of the %s worker is %v after %v", gauge, as, n, s.plan.deadline)
			}
		}
	}
}

// check is what the clients, the workers and the engines say when nothing can happen any more.
func (s *storm) check() {
	s.checkEngines()
	s.checkTerminals()
	s.checkGrants()
	for _, l := range s.all {
		s.checkLeg(l)
	}
}

// checkEngines: nothing is left in them (C1, C2), and they live unless the plan killed one (C9).
func (s *storm) checkEngines() {
	for as, e := range s.engines {
		name := map[role]string{rolePrefill: "C1", roleDecode: "C2"}[as]
		st := e.Stats()
		if st.Dead {
			if s.plan.fault != sim.Death || as != roleDecode {
				s.violatef("C9", "the engine of the %s worker is dead", as)
			}
			continue
		}
		if st.Running+st.Waiting+st.Held+st.RecvPending+st.UsedBlocks != 0 {
			s.violatef(name, "the engine of the %s worker is not at its base: %+v", as, st)
		}
	}
}

// checkTerminals: one for each request that a worker took (C3), and Aborts only where something had been decided (C5).
func (s *storm) checkTerminals() {
	for as, w := range s.workers {
		taken := 0
		for _, l := range s.all {
			if l.role == as && !l.refused {
				taken++
			}
		}
		cancels, aborts := w.count("dynamo_component_cancellation_total"), w.count("remora_aborts_sent_total")
		if n := w.count("remora_requests_terminal_total"); n != float64(taken) {
			s.violatef("C3", "the %s worker told %v terminals for %d requests", as, n, taken)
		}
		if aborts > cancels && !s.stopped(as) {
			s.violatef("C5", "the %s worker sent %v Aborts for %v cancels", as, aborts, cancels)
		}
	}
}

// checkGrants: whatever a decode brought to D's worker was let go of by its reader and not by its lease (C1), and nothing was
// read after it had been let go of, nor twice (C4).
func (s *storm) checkGrants() {
	p, d := s.engines[rolePrefill].Stats(), s.workers[roleDecode]
	if p.HandOffs != p.Completed+p.Expired {
		s.violatef("C1", "%d hand-offs, %d completed and %d expired", p.HandOffs, p.Completed, p.Expired)
	}
	if p.StaleReads+p.UnknownNotices != 0 {
		s.violatef("C4", "%d reads and %d completions of what was not held", p.StaleReads, p.UnknownNotices)
	}
	if s.plan.lossless && p.Expired > 0 {
		s.violatef("C1", "%d leases ended, though there was room for everybody", p.Expired)
	}
	owed := 0 // hand-offs that a worker took
	for _, l := range s.all {
		if l.role == roleDecode && !l.refused && !l.again && (!l.client.unfit || s.plan.releases) {
			owed++
		}
	}
	lost := 0.0 // the permitted losses, and what the engine itself failed to fetch
	for _, outcome := range []string{"deadline", "headers_never", "never_submitted", "cut"} {
		lost += d.count("remora_drains_total", `"`+outcome+`"`)
	}
	switch {
	case s.plan.fault == sim.ReadFail || s.plan.fault == sim.Death || s.stopped(roleDecode):
		return
	case p.Completed+int(lost) < owed:
		s.violatef("C1", "%d hand-offs came to the decode worker, %d were completed and %v let go at a bound", owed, p.Completed, lost)
	}
}

// checkLeg: a client that stayed has one end (C3), and what it read is the text of one engine alone (C7).
func (s *storm) checkLeg(l *stormLeg) {
	if l.refused {
		if !s.stopped(l.role) && s.plan.fault != sim.NotServing && s.plan.fault != sim.Death {
			s.violatef("C3", "%s was turned away by the %s worker", l.id, l.role)
		}
		return
	}
	if l.left == "" && !l.ended && !s.plan.second {
		s.violatef("C3", "the client of %s (%s) stayed and saw no end", l.id, l.role)
	}
	if l.again && l.failed == "" && l.ended && l.left == "" && s.first(l).failed == "" {
		s.violatef("C4", "%s was served with a hand-off that was used", l.id)
	}
	if l.role == rolePrefill {
		return
	}
	want := s.texts[l.client.prompt]
	switch {
	case len(l.tokens) > len(want) || !slices.Equal(l.tokens, want[:len(l.tokens)]):
		s.violatef("C7", "%s got %v, one engine alone says %v", l.id, l.tokens, want)
	case l.reason == "length" && len(l.tokens) != l.client.tokens:
		s.violatef("C7", "%s got %d tokens of %d", l.id, len(l.tokens), l.client.tokens)
	}
}

// first is the other use of a second use's hand-off.
func (s *storm) first(l *stormLeg) *stormLeg {
	i := slices.IndexFunc(s.all, func(o *stormLeg) bool { return o.role == roleDecode && !o.again && o.id+"+" == l.id })
	return s.all[i]
}

// checkEnd: the workers ended as they were asked, the engines by order or by death.
func (s *storm) checkEnd() {
	for as, w := range s.workers {
		if w.err != nil && (!errors.Is(w.err, serving.ErrCut) || !s.plan.second || !s.stopped(as)) {
			s.violatef("M5", "the %s worker ended with %v", as, w.err)
		}
	}
	for as, e := range s.engines {
		if e.err != nil && s.plan.fault != sim.Death {
			s.violatef("C9", "the engine of the %s worker ended with %v", as, e.err)
		}
	}
}

func (s *storm) sum(sum *stormSum) {
	if sum.ways == nil {
		sum.ways, sum.faults = map[string]int{}, map[string]int{}
	}
	sum.storms++
	sum.faults[string(s.plan.fault)]++
	p := s.engines[rolePrefill].Stats()
	sum.completed, sum.expired = sum.completed+p.Completed, sum.expired+p.Expired
	for _, l := range s.all {
		sum.legs++
		switch {
		case l.refused:
			sum.refused++
		case l.left != "":
			sum.left++
			sum.ways[string(l.left)]++
		case l.role == roleDecode && l.reason == "length":
			sum.whole++
		}
	}
}
