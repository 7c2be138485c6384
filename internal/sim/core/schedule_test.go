package core

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// add queues requests.
func (b *bench) add(e *Engine, reqs ...Request) {
	b.t.Helper()
	for _, req := range reqs {
		if err := e.Add(req); err != nil {
			b.t.Fatal(err)
		}
	}
}

// ids lists who is in a queue or runs, in order.
func ids(list []*sequence) string {
	var all []string
	for _, s := range list {
		all = append(all, s.req.ID)
	}
	return fmt.Sprint(all)
}

// TestPreemptionOrder: it is the newest of those that run that loses its blocks; it goes to the front of the queue, and nobody
// is started in a step that took something away.
//
// Rules: preemption.
func TestPreemptionOrder(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Blocks, c.MaxModelLen = 17, 64 })
	b.add(b.p, greedy("old", prompt(23, 1), 20), greedy("mid", prompt(15, 2), 20), greedy("new", prompt(15, 3), 20))
	b.step()
	b.add(b.p, greedy("late", prompt(3, 4), 20)) // one block: it would fit into what a preemption frees
	for b.p.Stats().Preemptions == 0 {
		b.step()
	}
	if run, wait := ids(b.p.running), ids(b.p.queue); run != "[old mid]" || wait != "[new late]" {
		t.Errorf("after a preemption %s run and %s wait", run, wait)
	}
	for ids(b.p.queue) != "[]" {
		b.step()
	}
	if run := ids(b.p.running); run != "[mid new late]" {
		t.Errorf("%s run in the end", run)
	}
}

// TestReceivedGoFirst: a decode whose KV has come holds its blocks and goes before whoever has waited longer, also when a pause
// keeps the others back.
//
// Rules: received-first, pause-drains.
func TestReceivedGoFirst(t *testing.T) {
	for _, pause := range []Pause{PauseNone, PauseNew, PauseAll} {
		b := newBench(t, func(c *Config) { c.MaxSeqs = 1 })
		b.stall = true
		h := b.handOff("p", prompt(10, 1))
		b.add(b.d, decode("d", prompt(10, 1), 3, h))
		b.step()
		b.add(b.d, greedy("first", prompt(5, 2), 3))
		b.step()
		b.add(b.d, greedy("second", prompt(5, 3), 3))
		b.unstall()
		b.d.SetPause(pause)
		for range 3 { // until "first" is through
			b.step()
		}
		want := map[Pause]string{PauseNone: "[d] [second]", PauseNew: "[d] [second]", PauseAll: "[first] [d second]"}[pause]
		if got := ids(b.d.running) + " " + ids(b.d.queue); got != want {
			t.Errorf("pause %d: %s, want %s", pause, got, want)
		}
		b.d.SetPause(PauseNone)
		b.settle()
		b.wantIdle(b.d)
	}
}

// TestAdmission: prompts that are taken in bit by bit start only when there are blocks for all of them, so they do not take each
// other's; a fetch also leaves what they still need.
//
// Rules: admission.
func TestAdmission(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Blocks, c.PrefillTokens = 17, 8 })
	h := b.handOff("p", prompt(20, 9))
	b.add(b.d, greedy("first", prompt(45, 1), 9), greedy("other", prompt(45, 2), 2))
	for range 7 { // the last one has a few tokens to spare for a beginning
		b.step()
	}
	if got := ids(b.d.running) + " " + ids(b.d.queue); got != "[first] [other]" || b.d.pool.free < 3 {
		t.Errorf("%s, %d blocks free", got, b.d.pool.free)
	}
	b.d.Cancel("other", Aborted)
	b.settle()
	b.stall = true
	b.add(b.d, greedy("long", prompt(45, 3), 2))
	b.step()
	b.add(b.d, decode("d", prompt(20, 9), 2, h)) // five blocks; "long" needs twelve of sixteen
	b.step()
	if b.d.Stats().Deferred != 0 {
		t.Error("a fetch has taken blocks that a running prompt still needs")
	}
	b.stall = false
	b.settle()
	if s := b.d.Stats(); s.Preemptions != 0 || s.Finished[Length] != 3 {
		t.Errorf("%+v", s)
	}
	b.wantIdle(b.p)
	b.wantIdle(b.d)
}

// TestDuplicateIDs: an id is refused while it is live or held, and may be used again afterwards.
func TestDuplicateIDs(t *testing.T) {
	b := newBench(t, nil)
	req := prefill("r", prompt(10, 1))
	b.add(b.p, req)
	if err := b.p.Add(req); !errors.Is(err, ErrDuplicate) {
		t.Errorf("live: %v", err)
	}
	b.settle()
	if err := b.p.Add(req); !errors.Is(err, ErrDuplicate) {
		t.Errorf("held: %v", err)
	}
	b.p.NoteDone("r")
	b.step()
	b.add(b.p, req)
	b.settle()
	if s := b.p.Stats(); s.HandOffs != 2 || s.Held != 1 {
		t.Errorf("%+v", s)
	}
}

// TestQueuedMalformedDecodeBeats: heartbeats look at the address alone, whatever else is wrong.
func TestQueuedMalformedDecodeBeats(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(map[string]any)
		beats  bool
	}{
		{"nothing", func(map[string]any) {}, true},
		{"flat list", func(p map[string]any) { p["remote_block_ids"] = []any{1.0} }, true},
		{"no list", func(p map[string]any) { delete(p, "remote_block_ids") }, true},
		{"no size", func(p map[string]any) { delete(p, "tp_size") }, false},
		{"null host", func(p map[string]any) { p["remote_host"] = nil }, false},
		{"no port", func(p map[string]any) { delete(p, "remote_port") }, false},
	} {
		b := newBench(t, func(c *Config) { c.MaxSeqs = 1 })
		params := b.handOff("p", prompt(10, 1)).Params("p", 1)
		tt.change(params)
		b.add(b.d, greedy("long", prompt(3, 2), 40))
		b.step()
		req := greedy("d", prompt(10, 1), 5)
		req.Transfer = ParseTransfer(params)
		b.add(b.d, req)
		plan := b.d.Schedule(b.now)
		if got := slices.ContainsFunc(plan.Beats, func(beat Beat) bool { return slices.Equal(beat.RequestIDs, []string{"p"}) }); got != tt.beats {
			t.Errorf("%s: beats %v", tt.name, got)
		}
	}
}

// TestNobodyOvertakes: a request that would fit waits behind one that does not yet.
func TestNobodyOvertakes(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Blocks = 17 })
	b.handOff("held", prompt(30, 1))
	b.add(b.p, greedy("large", prompt(40, 2), 2), greedy("small", prompt(5, 3), 2))
	for range 10 {
		b.step()
	}
	if got := ids(b.p.running) + " " + ids(b.p.queue); got != "[] [large small]" {
		t.Error(got)
	}
	b.p.NoteDone("held")
	b.settle()
	b.wantIdle(b.p)
}
