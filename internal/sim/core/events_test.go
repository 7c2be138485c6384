package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// mirror is what a subscriber knows of a cache.
type mirror map[uint64]int

func (m mirror) replay(events []Event) error {
	for _, ev := range events {
		switch ev.Kind {
		case Stored:
			if ev.Parent != nil && m[*ev.Parent] == 0 {
				return fmt.Errorf("stored after %x, which is not there", *ev.Parent)
			}
			for _, h := range ev.Hashes {
				m[h]++
			}
		case Removed:
			for _, h := range ev.Hashes {
				if m[h] == 0 {
					return fmt.Errorf("removed %x, which is not there", h)
				}
				if m[h]--; m[h] == 0 {
					delete(m, h)
				}
			}
		case Cleared:
			clear(m)
		}
	}
	return nil
}

// follow replays what an engine published and compares it with the engine's cache, as it is without the step under way.
func (b *bench) follow(e *Engine) {
	b.t.Helper()
	m, ok := b.mirrors[e]
	if !ok {
		m = mirror{}
		b.mirrors[e] = m
	}
	events := e.TakeEvents()
	b.events[e] = append(b.events[e], events...)
	if err := m.replay(events); err != nil {
		b.t.Fatalf("%s: %v", e.cfg.EngineID, err)
	}
	if e.Dead() {
		return
	}
	now := maps.Clone(m)
	if err := now.replay(slices.Concat(e.journal.pending, e.journal.later)); err != nil {
		b.t.Fatalf("%s: %v", e.cfg.EngineID, err)
	}
	if !maps.Equal(now, e.Cached()) {
		b.t.Fatalf("%s: by its events %v, in its cache %v", e.cfg.EngineID, now, e.Cached())
	}
}

// told writes down the events of an engine since the last call: +2 is two blocks stored after nothing, +1> one after another
// block, - is one removed, 0 is cleared. A space stands between messages.
func (b *bench) told(e *Engine) string {
	b.t.Helper()
	var out strings.Builder
	for _, ev := range b.events[e] {
		switch ev.Kind {
		case Stored:
			fmt.Fprintf(&out, "+%d", len(ev.Hashes))
			if ev.Parent != nil {
				out.WriteString(">")
			}
			if len(ev.Tokens) != len(ev.Hashes)*e.cfg.BlockSize {
				b.t.Errorf("%d blocks of %d tokens", len(ev.Hashes), len(ev.Tokens))
			}
		case Removed:
			out.WriteString("-")
			if len(ev.Hashes) != 1 {
				b.t.Errorf("%d removed in one event", len(ev.Hashes))
			}
		case Cleared:
			out.WriteString("0")
		}
	}
	b.events[e] = nil
	return out.String()
}

func (b *bench) wantTold(e *Engine, want string) {
	b.t.Helper()
	if got := b.told(e); got != want {
		b.t.Errorf("%s told %q, want %q", e.cfg.EngineID, got, want)
	}
}

// TestEventsOfOneEngine: one event for all blocks of a prompt, one more when an answer fills a block, none for what is hit,
// one for each block that is computed once more, and one for each that has to go, before those that take its place.
//
// Rules: events-stored, events-removed, events-step, events-salt.
func TestEventsOfOneEngine(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Blocks, c.MaxModelLen = 9, 32 })
	ids := prompt(10, 1)
	b.run(b.p, greedy("a", ids, 1))
	first := b.events[b.p]
	b.wantTold(b.p, "+2")
	if !slices.Equal(first[0].Tokens, ids[:8]) || first[0].Parent != nil {
		t.Errorf("%+v", first[0])
	}
	b.run(b.p, greedy("b", ids, 8)) // tokens 11 to 17 are computed
	again := b.events[b.p]
	b.wantTold(b.p, "+1>+1>")
	if *again[0].Parent != first[0].Hashes[1] || *again[1].Parent != again[0].Hashes[0] {
		t.Errorf("%+v", again)
	}
	b.run(b.p, greedy("c", ids[:8], 1)) // its last token is computed again, in a block of its own
	if ev := b.events[b.p]; len(ev) != 1 || ev[0].Hashes[0] != first[0].Hashes[1] {
		t.Errorf("%+v", ev)
	}
	b.wantTold(b.p, "+1>")
	bypass := greedy("d", ids[:8], 1)
	bypass.BypassCache = true
	b.run(b.p, bypass)
	b.wantTold(b.p, "+2")
	salted := greedy("e", ids[:8], 1)
	salted.CacheSalt = "salt"
	b.run(b.p, salted)
	if ev := b.events[b.p]; ev[len(ev)-1].Salt != "salt" || ev[len(ev)-1].Hashes[0] == first[0].Hashes[0] {
		t.Errorf("%+v", ev)
	}
	b.told(b.p)
	b.run(b.p, greedy("f", prompt(30, 2), 1)) // takes all there is
	if got := b.told(b.p); !strings.HasPrefix(got, "----") || !strings.HasSuffix(got, "-+7") {
		t.Error(got)
	}
}

// TestEventsInSteps: a long prompt tells its blocks step by step, each at the end of its step.
//
// Rules: events-step.
func TestEventsInSteps(t *testing.T) {
	b := newBench(t, func(c *Config) { c.PrefillTokens = 9 })
	if err := b.p.Add(greedy("a", prompt(20, 1), 1)); err != nil {
		t.Fatal(err)
	}
	if plan := b.p.Schedule(b.now); !plan.Busy || b.p.TakeEvents() != nil {
		t.Error("told before the end of the step")
	}
	b.p.Apply(b.now)
	b.follow(b.p)
	b.wantTold(b.p, "+2")
	b.step()
	b.wantTold(b.p, "+2>")
	b.step()
	b.wantTold(b.p, "+1>")
}

// TestEventsOfAFetch: D tells of fetched blocks when it has them, all in one event, and of nothing when the request has gone by
// then. What had to go for them is told when it goes.
//
// Rules: events-fetched.
func TestEventsOfAFetch(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Blocks, c.MaxModelLen = 9, 32 })
	ids := prompt(12, 1)
	h := b.handOff("p", ids)
	b.wantTold(b.p, "+3")
	b.run(b.d, greedy("old", prompt(28, 2), 1))
	b.wantTold(b.d, "+7")
	b.stall = true
	for _, id := range []string{"gone", "d"} {
		if err := b.d.Add(decode(id, ids, 2, h)); err != nil {
			t.Fatal(err)
		}
		b.settle()
		b.wantTold(b.d, map[string]string{"gone": "--", "d": ""}[id])
		if id == "gone" {
			b.d.Cancel(id, Aborted)
		}
		b.unstall()
		b.settle()
		b.stall = true
		b.wantTold(b.d, map[string]string{"gone": "", "d": "+3-"}[id])
	}
}

// TestEventsOfAClear: it is told at the head of the next step that has something to tell; while a block is in use nothing is
// cleared.
//
// Rules: events-cleared, events-clear-in-use.
func TestEventsOfAClear(t *testing.T) {
	b := newBench(t, nil)
	h := b.handOff("p", prompt(12, 1))
	b.wantTold(b.p, "+3")
	if b.p.ClearCache(false) {
		t.Error("cleared while blocks are held")
	}
	b.run(b.d, decode("d", prompt(12, 1), 1, h))
	b.settle()
	b.wantTold(b.p, "")
	if !b.p.ClearCache(false) || len(b.p.Cached()) != 0 {
		t.Error("not cleared")
	}
	b.settle()
	b.wantTold(b.p, "")
	b.run(b.p, greedy("next", prompt(12, 1), 1))
	b.wantTold(b.p, "0+3")
}

// TestHashSeed: engines with different ones name equal blocks differently.
//
// Rules: events-hash.
func TestHashSeed(t *testing.T) {
	b := newBench(t, nil)
	b.d.cfg.HashSeed = 1
	b.run(b.p, greedy("p", prompt(8, 1), 1))
	b.run(b.d, greedy("d", prompt(8, 1), 1))
	if p, d := b.events[b.p], b.events[b.d]; p[0].Hashes[0] == d[0].Hashes[0] || !slices.Equal(p[0].Tokens, d[0].Tokens) {
		t.Errorf("%+v, %+v", p, d)
	}
}

// TestNoEvents unless they are asked for.
func TestNoEvents(t *testing.T) {
	b := newBench(t, func(c *Config) { c.KVEvents = false })
	if err := b.p.Add(greedy("a", prompt(8, 1), 1)); err != nil {
		t.Fatal(err)
	}
	b.p.Schedule(b.now)
	b.p.Apply(b.now)
	b.p.ClearCache(false)
	if got := b.p.TakeEvents(); got != nil {
		t.Errorf("%+v", got)
	}
}
