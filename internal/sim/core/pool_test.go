package core

import (
	"slices"
	"testing"
)

// TestHitOnRunningPrefill: a request that comes while another one computes the same prompt shares the blocks that are full.
//
// Rules: hit-in-flight.
func TestHitOnRunningPrefill(t *testing.T) {
	b := newBench(t, func(c *Config) { c.PrefillTokens = 8 })
	ids := prompt(24, 1)
	if err := b.p.Add(greedy("first", ids, 4)); err != nil {
		t.Fatal(err)
	}
	b.p.Schedule(b.now) // the first 8 tokens are under way
	if err := b.p.Add(greedy("second", append(slices.Clone(ids[:8]), 300), 4)); err != nil {
		t.Fatal(err)
	}
	b.p.Apply(b.now)
	b.settle()
	if _, out := b.result("second"); out.Cached != 8 {
		t.Errorf("cached %d, want 8", out.Cached)
	}
}

// TestFreeOrder: blocks that are not cached are taken first; the others in the order in which they were freed, those of one
// request from its tail.
//
// Rules: free-order.
func TestFreeOrder(t *testing.T) {
	p := newPool(8, 4)
	var first, second []int
	for range 3 {
		first = append(first, p.take())
	}
	for range 2 {
		second = append(second, p.take())
	}
	p.label(first[0], 1)
	p.label(first[1], 2)
	p.label(second[0], 3)
	p.release(second)
	p.release(first)
	var got []int
	for p.free > 0 {
		got = append(got, p.take())
	}
	want := []int{first[2], second[1], 6, 7, second[0], first[1], first[0]}
	if !slices.Equal(got, want) {
		t.Errorf("taken %v, want %v", got, want)
	}
}

// TestHeldBlocksStay: a full engine queues rather than take a held block, and counts it as used.
//
// Rules: held-counted, usage.
func TestHeldBlocksStay(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Blocks, c.MaxModelLen = 17, 64 })
	ids := prompt(40, 1)
	h := b.handOff("p", ids)
	if got := b.p.Stats().Usage(); got != 10.0/16 || slices.Contains(h.Blocks, 0) {
		t.Errorf("usage %v, blocks %v", got, h.Blocks)
	}
	if err := b.p.Add(greedy("big", prompt(30, 2), 4)); err != nil {
		t.Fatal(err)
	}
	b.settle()
	if s := b.p.Stats(); s.Waiting != 1 || s.Held != 1 || s.UsedBlocks != 10 {
		t.Errorf("%+v", s)
	}
	want, _ := newBench(t, nil).run2(greedy("agg", ids, 5))
	if got, _ := b.run(b.d, decode("d", ids, 5, h)); key(got) != key(want) {
		t.Errorf("%v, want %v", got, want)
	}
	b.settle()
	if _, out := b.result("big"); out.Reason != Length {
		t.Errorf("%+v", out)
	}
}
