package chaos

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/sim"
	"remora/internal/tinymodel"
	"remora/internal/translate"
	serving "remora/internal/worker"
)

// TestStormsSee: each check of a storm fires when what it stands for is wrong. The clients stay, so that nothing else can be.
func TestStormsSee(t *testing.T) {
	model := t.TempDir()
	if err := tinymodel.Write(model); err != nil {
		t.Fatal(err)
	}
	texts := simulatedTexts(t, model)
	stay := func(change func(*stormClient)) *stormPlan {
		p := &stormPlan{deadline: 3 * time.Second, lease: 12 * time.Second, places: 8, seqs: 8, blocks: 200, releases: true}
		for i := range 4 {
			c := stormClient{prompt: 20 + i, tokens: 12, gap: 5 * time.Millisecond}
			change(&c)
			p.clients = append(p.clients, c)
		}
		return p
	}
	for _, row := range []struct {
		name  string
		wants string // "": nothing
		plan  *stormPlan
		spoil func(as role, w *serving.Config, e *sim.Config)
	}{
		{"nothing is wrong", "", stay(func(*stormClient) {}), nil},
		{"declined hand-offs are not released", "C1", stay(func(c *stormClient) { c.unfit = true }), func(_ role, w *serving.Config, _ *sim.Config) {
			w.ReleaseDeclined = false
		}},
		{"drains take longer than they may", "C6", stay(func(c *stormClient) { c.leaves, c.way = roleDecode, wayKill }), func(as role, w *serving.Config, e *sim.Config) {
			w.DrainDeadline = time.Minute
			if as == roleDecode {
				e.Faults = []sim.Fault{sim.ReadStall}
			}
		}},
		{"D keeps what it fetches for nobody", "C2", stay(func(c *stormClient) { c.leaves, c.way = roleDecode, wayKill }), func(as role, _ *serving.Config, e *sim.Config) {
			if as == roleDecode {
				e.Faults = []sim.Fault{sim.ReadStall}
			}
		}},
		{"workers turn requests away", "C3", stay(func(*stormClient) {}), func(as role, w *serving.Config, _ *sim.Config) {
			if as == roleDecode {
				w.Running, w.Waiting = 1, 0
			}
		}},
		{"a hand-off is used twice", "C4", stay(func(c *stormClient) { c.reuses = true }), func(_ role, w *serving.Config, _ *sim.Config) {
			w.HandoffCheck = translate.HandoffOff
		}},
		{"D says something else", "C7", stay(func(*stormClient) {}), nil},
		{"an engine is dead", "C9", stay(func(*stormClient) {}), nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				row.plan.spoil = row.spoil
				if row.wants == "C9" { // of the prefill, which no plan kills
					row.plan.during = func(s *storm) {
						if err := s.engines[rolePrefill].SetFault(context.Background(), sim.Death, true); err != nil {
							t.Error(err)
						}
					}
				}
				said := texts
				if row.wants == "C7" { // engines that do not say the same do not talk to each other
					said = map[int][]uint32{}
				}
				found := runStorm(t, model, said, row.plan, new(stormSum))
				fired := slices.ContainsFunc(found, func(v violation) bool { return v.name == row.wants })
				if row.wants == "" && len(found) > 0 || row.wants != "" && !fired {
					t.Errorf("found %v, want %q", found, row.wants)
				}
			})
		})
	}
}
