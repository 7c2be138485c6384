package core

import (
	"testing"
	"time"
	"unicode/utf8"
)

func greedy(id string, ids []uint32, n int) Request {
	return Request{ID: id, Prompt: ids, MaxTokens: n}
}

// TestEverySlotMatters overwrites one slot of a request's KV in the middle of its answer: the rest of the text changes, for
// every slot of every block.
func TestEverySlotMatters(t *testing.T) {
	const promptLen, before, after = 19, 3, 12
	ids := prompt(promptLen, 1)
	b := newBench(t, nil)
	good, _ := b.run(b.p, greedy("good", ids, before+after))
	for slot := range promptLen + before - 1 {
		b := newBench(t, nil)
		if err := b.p.Add(greedy("r", ids, before+after)); err != nil {
			t.Fatal(err)
		}
		for range before {
			b.step()
		}
		*b.p.pool.slot(b.p.running[0].table, slot) ^= 1
		b.settle()
		got, _ := b.result("r")
		if key(got[:before]) != key(good[:before]) {
			t.Fatalf("slot %d: text before the change differs", slot)
		}
		if key(got[before:]) == key(good[before:]) {
			t.Errorf("slot %d: corrupted, same text", slot)
		}
	}
}

// TestEverySlotEntersTheNext overwrites one slot of a prompt that is taken in bit by bit: each slot that is written afterwards is
// another one, as the KV of a real model would be, and none before.
func TestEverySlotEntersTheNext(t *testing.T) {
	const length, chunk = 20, 5
	slots := func(corrupt int) []uint64 {
		b := newBench(t, func(c *Config) { c.PrefillTokens = chunk })
		b.add(b.p, greedy("r", prompt(length, 1), 2))
		b.step()
		b.step()
		s := b.p.running[0]
		if corrupt >= 0 {
			*b.p.pool.slot(s.table, corrupt) ^= 1
		}
		b.step()
		b.step()
		var all []uint64
		for pos := range length {
			all = append(all, *b.p.pool.slot(s.table, pos))
		}
		return all
	}
	good := slots(-1)
	for corrupt := range 2 * chunk {
		for pos, slot := range slots(corrupt) {
			if want := pos == corrupt || pos >= 2*chunk; (slot != good[pos]) != want {
				t.Errorf("slot %d corrupted: slot %d differs: %v", corrupt, pos, slot != good[pos])
			}
		}
	}
}

// TestPoisonedPrefix overwrites a cached block: the prefix map still finds it by its tokens, so the same prompt gives wrong
// text until the cache is bypassed or the block is evicted.
func TestPoisonedPrefix(t *testing.T) {
	ids := prompt(18, 2)
	b := newBench(t, nil)
	good, _ := b.run(b.p, greedy("good", ids, 8))
	id, ok := b.p.pool.hit(b.p.hash(&sequence{tokens: ids}, 1))
	if !ok {
		t.Fatal("second block is not cached")
	}
	b.p.pool.slots[id*4+2]++
	wrong, out := b.run(b.p, greedy("poisoned", ids, 8))
	if key(wrong) == key(good) || out.Cached != 16 {
		t.Fatalf("cached %d, text %v", out.Cached, wrong)
	}
	again, _ := b.run(b.p, greedy("again", ids, 8))
	if key(again) != key(wrong) {
		t.Error("poisoned text is not stable")
	}
	bypass := greedy("bypass", ids, 8)
	bypass.BypassCache = true
	if got, out := b.run(b.p, bypass); key(got) != key(good) || out.Cached != 0 {
		t.Errorf("bypassing the cache: cached %d, text %v, want %v", out.Cached, got, good)
	}
	if got, _ := b.run(b.p, greedy("still", ids, 8)); key(got) != key(wrong) {
		t.Error("the bypass has healed the cache")
	}
	salted := greedy("salted", ids, 8)
	salted.CacheSalt = "other"
	if got, out := b.run(b.p, salted); key(got) != key(good) || out.Cached != 0 {
		t.Errorf("another salt: cached %d", out.Cached)
	}
	for n := range uint32(12) { // evict everything
		b.run(b.p, greedy(string(rune('a'+n)), prompt(60, 100+n), 2))
	}
	if got, _ := b.run(b.p, greedy("evicted", ids, 8)); key(got) != key(good) {
		t.Error("still wrong after eviction")
	}
}

// TestLastTokenIsComputed: a full repeat of whole blocks hits all but the last one.
//
// Rules: block-hash.
func TestLastTokenIsComputed(t *testing.T) {
	b := newBench(t, nil)
	ids := prompt(32, 3)
	first, out := b.run(b.p, greedy("a", ids, 4))
	if out.Cached != 0 {
		t.Errorf("first run cached %d", out.Cached)
	}
	second, out := b.run(b.p, greedy("b", ids, 4))
	if out.Cached != 28 || key(first) != key(second) {
		t.Errorf("cached %d, want 28; texts %v %v", out.Cached, first, second)
	}
	if s := b.p.Stats(); s.CacheQueries != 64 || s.CacheHits != 28 {
		t.Errorf("queries %d hits %d", s.CacheQueries, s.CacheHits)
	}
}

// TestTextShape: a long answer is readable words, has characters of several bytes, all of them whole, and never ends by itself.
func TestTextShape(t *testing.T) {
	for _, temperature := range []float64{0, 1, 2} {
		b := newBench(t, func(c *Config) { c.Blocks, c.MaxModelLen = 600, 2048 })
		req := greedy("r", prompt(5, 4), 1500)
		req.Sampling = Sampling{Temperature: temperature, Seed: 3}
		tokens, out := b.run(b.p, req)
		if out.Reason != Length {
			t.Fatalf("temperature %v: ended with %v after %d", temperature, out.Reason, len(tokens))
		}
		var raw []byte
		words := 0
		for _, id := range tokens {
			if id < 256 {
				raw = append(raw, byte(id))
			} else {
				words++
				raw = append(raw, ' ')
			}
		}
		for len(raw) > 0 && !utf8.FullRune(raw[len(raw)-1:]) { // the length may cut the last one
			raw = raw[:len(raw)-1]
		}
		runes := 0
		for i, r := range string(raw) {
			if r == utf8.RuneError && i < len(raw)-3 {
				t.Fatalf("temperature %v: broken character at %d: %x", temperature, i, raw[i:i+4])
			}
			if r >= utf8.RuneSelf {
				runes++
			}
		}
		if words < 1000 || runes < 30 {
			t.Errorf("temperature %v: %d words, %d long characters", temperature, words, runes)
		}
	}
}

func TestChunkedPrefillAndBatchingDoNotChangeText(t *testing.T) {
	alone := make(map[string]string)
	for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
		b := newBench(t, nil)
		tokens, _ := b.run(b.p, greedy(id, prompt(20+int(id[0]-'a'), uint32(id[0])), 10))
		alone[id] = key(tokens)
	}
	b := newBench(t, func(c *Config) { c.MaxBatchedTokens, c.PrefillTokens, c.MaxSeqs = 16, 7, 3 })
	for id := range alone {
		if err := b.p.Add(greedy(id, prompt(20+int(id[0]-'a'), uint32(id[0])), 10)); err != nil {
			t.Fatal(err)
		}
	}
	b.settle()
	for id, want := range alone {
		if tokens, _ := b.result(id); key(tokens) != want {
			t.Errorf("%s: in a batch %v, alone %v", id, tokens, want)
		}
	}
	b.wantIdle(b.p)
}

// TestPreemption: too few blocks for all; requests lose theirs, come back, and say the same.
//
// Rules: preemption.
func TestPreemption(t *testing.T) {
	want := make(map[string]string)
	for n := range uint32(4) {
		b := newBench(t, nil)
		tokens, _ := b.run(b.p, greedy("x", prompt(20, n), 40))
		want[string(rune('a'+n))] = key(tokens)
	}
	b := newBench(t, func(c *Config) { c.Blocks = 26 })
	for n := range uint32(4) {
		if err := b.p.Add(greedy(string(rune('a'+n)), prompt(20, n), 40)); err != nil {
			t.Fatal(err)
		}
	}
	b.settle()
	for id, text := range want {
		if tokens, _ := b.result(id); key(tokens) != text {
			t.Errorf("%s: text differs after preemption", id)
		}
	}
	if b.p.Stats().Preemptions == 0 {
		t.Error("nothing was preempted: the test shows nothing")
	}
	b.wantIdle(b.p)
}

func TestQueueIsFirstInFirstOut(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxSeqs = 1 })
	var order []string
	for n := range uint32(5) {
		if err := b.p.Add(greedy(string(rune('a'+n)), prompt(8, n), 3)); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		b.p.Schedule(b.now)
		b.p.Apply(b.now)
		for _, out := range b.p.Take() {
			if out.Reason != Running {
				order = append(order, out.ID)
			}
		}
		b.now += time.Millisecond
	}
	if got := len(order); got != 5 || order[0] != "a" || order[4] != "e" {
		t.Errorf("ended in the order %v", order)
	}
}
