package core

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// storm is a random life of a pair. Invariants are checked after every step; at the end both engines must be at their base,
// and every answer that ran to its end must be the one that a fresh engine gives.
type storm struct {
	*bench

	t        *rapid.T
	seq      int
	live     []string            // ids that may be cancelled, ended ones included
	handOffs map[string]*HandOff // not yet used, by id
	asked    map[string]Request  // what was asked, for the comparison
	trusted  map[string]bool     // no stale hand-off took part
	stale    bool                // hand-offs may be used late and more than once
	prompts  map[string][]uint32
	jump     int // longest jump of the clock, ms: short enough for heartbeats to keep leases, or not
}

func newStorm(tb testing.TB, t *rapid.T, stale bool) *storm {
	tb.Helper()
	b := newBench(tb, func(c *Config) {
		c.Blocks, c.MaxModelLen, c.MaxSeqs, c.MaxBatchedTokens, c.PrefillTokens = 21, 40, 3, 24, 9
	})
	b.stall = true
	jump := 2000
	if stale {
		jump = 9000
	}
	return &storm{
		bench: b, jump: jump, t: t, stale: stale, handOffs: map[string]*HandOff{}, asked: map[string]Request{}, trusted: map[string]bool{},
		prompts: map[string][]uint32{},
	}
}

// ids draws a prompt; there are few, and they share beginnings, so that caches hit.
func (s *storm) ids() []uint32 {
	ids := prompt(rapid.IntRange(1, 30).Draw(s.t, "length"), 1)
	if at := rapid.IntRange(0, 40).Draw(s.t, "fork"); at < len(ids) {
		ids[at]++
	}
	return ids
}

func (s *storm) add(e *Engine, req Request) {
	s.seq++
	req.ID = fmt.Sprintf("%s%d", req.ID, s.seq)
	if err := e.Add(req); err != nil {
		s.t.Fatal(err)
	}
	s.live = append(s.live, req.ID)
	s.asked[req.ID], s.prompts[req.ID] = req, req.Prompt
	s.trusted[req.ID] = !s.stale
}

func (s *storm) Step() {
	for range rapid.IntRange(1, 6).Draw(s.t, "steps") {
		s.step()
	}
	for id := range s.prompts {
		if outs := s.outs[id]; len(outs) > 0 && outs[len(outs)-1].HandOff != nil {
			s.handOffs[id] = outs[len(outs)-1].HandOff
		}
	}
}

func (s *storm) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"":     func(*rapid.T) { s.Step() },
		"step": func(*rapid.T) { s.Step() },
		"aggregated": func(t *rapid.T) {
			req := greedy("a", s.ids(), rapid.IntRange(1, 12).Draw(t, "tokens"))
			req.BypassCache = rapid.Bool().Draw(t, "bypass")
			s.add(rapid.SampledFrom([]*Engine{s.p, s.d}).Draw(t, "engine"), req)
		},
		"prefill": func(*rapid.T) { s.add(s.p, prefill("p", s.ids())) },
		"decode":  s.decode,
		"cancel": func(t *rapid.T) {
			if len(s.live) == 0 {
				t.Skip("nothing to cancel")
			}
			id := rapid.SampledFrom(s.live).Draw(t, "id")
			s.p.Cancel(id, Aborted)
			s.d.Cancel(id, Aborted)
		},
		"between": func(t *rapid.T) { // a cancel between the halves of a step
			if len(s.live) == 0 {
				t.Skip("nothing to cancel")
			}
			id := rapid.SampledFrom(s.live).Draw(t, "id")
			for _, e := range []*Engine{s.p, s.d} {
				plan := e.Schedule(s.now)
				s.carry(e, plan)
				e.Cancel(id, Aborted)
				if plan.Busy {
					e.Apply(s.now)
				}
				s.collect(e)
			}
		},
		"read": func(t *rapid.T) {
			if len(s.stalled) == 0 {
				t.Skip("nothing to read")
			}
			i := rapid.IntRange(0, len(s.stalled)-1).Draw(t, "which")
			r := s.stalled[i]
			s.stalled = append(s.stalled[:i:i], s.stalled[i+1:]...)
			if rapid.IntRange(0, 9).Draw(t, "fails") == 0 {
				s.d.ReadFailed(r.ID)
			} else {
				s.deliver(s.d, r)
			}
		},
		"clear": func(t *rapid.T) {
			e := rapid.SampledFrom([]*Engine{s.p, s.d}).Draw(t, "engine")
			var plan Plan
			within := rapid.Bool().Draw(t, "within")
			if within {
				plan = e.Schedule(s.now)
				s.carry(e, plan)
			}
			e.ClearCache(rapid.Bool().Draw(t, "everybody"))
			if plan.Busy {
				e.Apply(s.now)
			}
			s.collect(e)
		},
		"pause": func(t *rapid.T) {
			e := rapid.SampledFrom([]*Engine{s.p, s.d}).Draw(t, "engine")
			e.SetPause(rapid.SampledFrom([]Pause{PauseNone, PauseNone, PauseNew, PauseAll}).Draw(t, "level"))
		},
		"time": func(t *rapid.T) {
			s.now += time.Duration(rapid.IntRange(0, s.jump).Draw(t, "ms")) * time.Millisecond
			s.Step()
		},
	}
}

func (s *storm) decode(t *rapid.T) {
	var ids []string
	for _, id := range s.live {
		if s.handOffs[id] == nil {
			continue
		}
		i := s.p.holdIndex(id)
		if s.stale || i >= 0 && s.p.holds[i].deadline > s.now+4*time.Second {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		t.Skip("nothing to decode")
	}
	id := rapid.SampledFrom(ids).Draw(t, "hand-off")
	req := decode("d", s.prompts[id], rapid.IntRange(1, 8).Draw(t, "tokens"), s.handOffs[id])
	req.BypassCache = rapid.IntRange(0, 9).Draw(t, "bypass") == 0
	req.Transfer.Produce = rapid.IntRange(0, 9).Draw(t, "produce") == 0
	if !s.stale {
		delete(s.prompts, id) // used: Step does not bring it back
		delete(s.handOffs, id)
	}
	s.add(s.d, req)
}

// calm lets everything end: all reads arrive, all leases run out.
func (s *storm) calm() {
	s.unstall()
	s.p.SetPause(PauseNone)
	s.d.SetPause(PauseNone)
	for range len(s.live) + 1 { // a lease that ends may let the next prefill run, which is held in its turn
		s.settle()
		for range 13 { // in jumps that heartbeats survive: a decode may wait for blocks that D holds for somebody else
			s.now += time.Second
			s.step()
		}
	}
	s.settle()
	for _, e := range []*Engine{s.p, s.d} {
		if st := e.Stats(); st.UsedBlocks != 0 || st.Running+st.Waiting+st.Held+st.RecvPending != 0 || st.Dead {
			s.t.Fatalf("engine %s is not at its base: %+v", e.cfg.EngineID, st)
		}
	}
	for _, id := range s.live {
		ends := 0
		for i, out := range s.outs[id] {
			if out.Reason != Running {
				ends++
				if i != len(s.outs[id])-1 {
					s.t.Fatalf("%s: output after the end", id)
				}
			}
		}
		if ends != 1 {
			s.t.Fatalf("%s: ended %d times", id, ends)
		}
		s.compare(id)
	}
}

func (s *storm) compare(id string) {
	got, out := s.result(id)
	if out.Reason != Length || !s.trusted[id] {
		return
	}
	req := s.asked[id]
	fresh := newBench(s.bench.t, nil)
	want, _ := fresh.run(fresh.p, greedy("fresh", req.Prompt, len(got)))
	if key(got) != key(want) {
		s.t.Fatalf("%s: text %v, want %v", id, got, want)
	}
}

func TestStorm(t *testing.T) {
	for _, stale := range []bool{false, true} {
		t.Run(fmt.Sprintf("stale=%v", stale), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				s := newStorm(t, rt, stale)
				rt.Repeat(s.actions())
				s.calm()
			})
		})
	}
}
