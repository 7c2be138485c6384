package core

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// handOff runs a prefill on P and returns what it hands off.
func (b *bench) handOff(id string, ids []uint32) *HandOff {
	b.t.Helper()
	_, out := b.run(b.p, prefill(id, ids))
	if out.HandOff == nil {
		b.t.Fatalf("%s ended with %v and no hand-off", id, out.Reason)
	}
	return out.HandOff
}

// TestHandOffText: for every prompt length up to several blocks, with and without a local prefix on D, a decode after a
// hand-off says what one engine says.
//
// Rules: hand-off-text, block-hash.
func TestHandOffText(t *testing.T) {
	for n := 1; n <= 21; n++ {
		for _, local := range []int{0, 4, 9} {
			b := newBench(t, nil)
			ids := prompt(n, 1)
			want, _ := newBench(t, nil).run2(greedy("agg", ids, 10))
			if local > 0 {
				b.run(b.d, greedy("prefix", ids[:min(n, local)], 1))
			}
			before := b.d.Stats().ExternalQueries
			h := b.handOff("p", ids)
			if len(h.Blocks) != (n+3)/4 || h.NumTokens != n {
				t.Fatalf("%d tokens: hand-off of blocks %v, %d tokens", n, h.Blocks, h.NumTokens)
			}
			got, out := b.run(b.d, decode("d", ids, 10, h))
			if key(got) != key(want) || out.Cached != n {
				t.Errorf("%d tokens, %d local: cached %d, text %v, want %v", n, local, out.Cached, got, want)
			}
			hit := min((n-1)/4, min(n, local)/4) * 4
			if asked := b.d.Stats().ExternalQueries - before; asked != n-hit {
				t.Errorf("%d tokens, %d local: fetched %d, want %d", n, local, asked, n-hit)
			}
			b.wantIdle(b.p)
			b.wantIdle(b.d)
			if again, out := b.run(b.d, greedy("later", ids, 10)); key(again) != key(want) || out.Cached != (n-1)/4*4 {
				t.Errorf("%d tokens: D's own cache: cached %d, text %v", n, out.Cached, again)
			}
		}
	}
}

// run2 is run on P, for a bench made on the way.
func (b *bench) run2(req Request) ([]uint32, Output) { return b.run(b.p, req) }

func TestPrefillOfSeveralTokens(t *testing.T) {
	b := newBench(t, nil)
	req := prefill("p", prompt(10, 1))
	req.MaxTokens = 3
	_, out := b.run(b.p, req)
	if h := out.HandOff; h == nil || h.NumTokens != 12 || len(h.Blocks) != 3 || h.Cached != nil {
		t.Errorf("hand-off %+v", h)
	}
	if _, out := b.run(b.p, prefill("q", prompt(10, 1))); out.HandOff.Cached == nil || *out.HandOff.Cached != 8 {
		t.Errorf("hand-off %+v", out.HandOff)
	}
}

// Rules: never-called, held-counted, lease-scan.
func TestLease(t *testing.T) {
	b := newBench(t, nil)
	b.handOff("p", prompt(10, 1))
	if at, ok := b.p.NextDeadline(); !ok || at < 12*time.Second || at > b.now+12*time.Second {
		t.Errorf("next deadline %v, %v", at, ok)
	}
	b.wait(11900 * time.Millisecond)
	if s := b.p.Stats(); s.Held != 1 || s.UsedBlocks != 3 {
		t.Fatalf("%+v", s)
	}
	b.wait(200 * time.Millisecond)
	b.wantIdle(b.p)
	if s := b.p.Stats(); s.Expired != 1 {
		t.Errorf("%+v", s.Counters)
	}
	if _, ok := b.p.NextDeadline(); ok {
		t.Error("an idle engine has a deadline")
	}
}

// TestHeartbeat: each one moves the end of the lease to two thirds of a lease from now, never back.
//
// Rules: heartbeats.
func TestHeartbeat(t *testing.T) {
	b := newBench(t, nil)
	b.handOff("a", prompt(10, 1))
	b.p.NoteBeat([]string{"a", "unknown"})
	b.wait(11900 * time.Millisecond)
	if b.p.Stats().Held != 1 {
		t.Fatal("an early heartbeat has shortened the lease")
	}
	b.p.NoteBeat([]string{"a"})
	b.wait(7900 * time.Millisecond)
	if b.p.Stats().Held != 1 {
		t.Fatal("a heartbeat did not renew the lease")
	}
	b.wait(200 * time.Millisecond)
	b.wantIdle(b.p)
}

// TestHeadFirstExpiry: with the defect on, an ended lease behind a renewed one is not seen.
//
// Rules: lease-scan.
func TestHeadFirstExpiry(t *testing.T) {
	for _, defect := range []bool{false, true} {
		b := newBench(t, func(c *Config) { c.HeadFirstExpiry = defect })
		b.handOff("a", prompt(10, 1))
		b.handOff("b", prompt(10, 2))
		b.wait(11 * time.Second)
		b.p.NoteBeat([]string{"a"})
		b.wait(2 * time.Second)
		if want := map[bool]int{false: 1, true: 2}[defect]; b.p.Stats().Held != want {
			t.Errorf("defect %v: %d held, want %d", defect, b.p.Stats().Held, want)
		}
		b.wait(6200 * time.Millisecond)
		b.wantIdle(b.p)
	}
}

// TestQueuedDecodeBeats: a decode that waits for a slot keeps P's lease, six times a lease.
//
// Rules: heartbeats.
func TestQueuedDecodeBeats(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxSeqs, c.Blocks, c.MaxModelLen = 1, 501, 2000 })
	ids := prompt(10, 1)
	h := b.handOff("p", ids)
	if err := b.d.Add(greedy("long", prompt(3, 2), 1500)); err != nil {
		t.Fatal(err)
	}
	if err := b.d.Add(decode("d", ids, 5, h)); err != nil {
		t.Fatal(err)
	}
	b.settle()
	if s := b.p.Stats(); s.Completed != 1 || s.Expired != 0 || s.Beats < 7 || s.Beats > 9 {
		t.Errorf("%+v", s.Counters)
	}
}

// TestReadTwice: a second decode of one hand-off is right as long as nobody reuses the blocks; P does not know it any more.
//
// Rules: d-twice.
func TestReadTwice(t *testing.T) {
	b := newBench(t, nil)
	ids := prompt(18, 1)
	want, _ := newBench(t, nil).run2(greedy("agg", ids, 8))
	h := b.handOff("p", ids)
	for _, id := range []string{"d1", "d2"} {
		req := decode(id, ids, 8, h)
		req.CacheSalt = id // no local hit
		if got, _ := b.run(b.d, req); key(got) != key(want) {
			t.Errorf("%s: %v, want %v", id, got, want)
		}
	}
	if s := b.p.Stats(); s.StaleReads != 1 || s.UnknownNotices != 1 || s.Completed != 1 {
		t.Errorf("%+v", s.Counters)
	}
}

// TestStaleRead: after the lease the blocks are somebody else's. The answer ends well and is wrong, and D's prefix cache has it.
//
// Rules: d-late-reused, late-read.
func TestStaleRead(t *testing.T) {
	b := newBench(t, nil)
	ids := prompt(18, 1)
	want, _ := newBench(t, nil).run2(greedy("agg", ids, 8))
	h := b.handOff("p", ids)
	b.wait(13 * time.Second)
	for n := range uint32(8) {
		b.run(b.p, greedy(fmt.Sprint("other", n), prompt(60, 50+n), 2))
	}
	got, out := b.run(b.d, decode("d", ids, 8, h))
	if key(got) == key(want) || out.Reason != Length {
		t.Fatalf("ended with %v, text %v", out.Reason, got)
	}
	if again, _ := b.run(b.d, greedy("again", ids, 8)); key(again) == key(want) {
		t.Error("D's cache is not poisoned")
	}
	bypass := greedy("bypass", ids, 8)
	bypass.BypassCache = true
	if again, _ := b.run(b.d, bypass); key(again) != key(want) {
		t.Error("wrong although the cache was bypassed")
	}
	if b.p.Stats().StaleReads != 1 {
		t.Errorf("%+v", b.p.Stats().Counters)
	}
}

// TestMismatchedPrompt: blocks are matched from the end of the list, so a shorter prompt, or another one, ends well and wrong.
//
// Rules: blocks-from-the-end, other-tokens.
func TestMismatchedPrompt(t *testing.T) {
	for name, other := range map[string][]uint32{"shorter": prompt(18, 1)[:13], "other": append(prompt(17, 2), prompt(18, 1)[17])} {
		b := newBench(t, nil)
		want, _ := newBench(t, nil).run2(greedy("agg", other, 8))
		h := b.handOff("p", prompt(18, 1))
		if got, out := b.run(b.d, decode("d", other, 8, h)); key(got) == key(want) || out.Reason != Length {
			t.Errorf("%s: ended with %v, text %v", name, out.Reason, got)
		}
		b.wantIdle(b.p)
		b.wantIdle(b.d)
	}
}

// TestReleaseWithOneToken is the way in which a sidecar frees P without using the KV: D's cache stays clean.
//
// Rules: release-one-token.
func TestReleaseWithOneToken(t *testing.T) {
	b := newBench(t, nil)
	h := b.handOff("p", prompt(18, 1))
	b.run(b.d, decode("release", prompt(1, 1), 1, h))
	b.wantIdle(b.p)
	if s := b.p.Stats(); s.Completed != 1 {
		t.Errorf("%+v", s.Counters)
	}
	want, _ := newBench(t, nil).run2(greedy("agg", prompt(1, 1), 8))
	if got, out := b.run(b.d, greedy("after", prompt(1, 1), 8)); key(got) != key(want) || out.Cached != 0 {
		t.Errorf("D's cache has the read block: cached %d, %v", out.Cached, got)
	}
}

// Rules: p-leaves-early, p-aborted-late, step-order.
func TestCancelOfPrefill(t *testing.T) {
	b := newBench(t, func(c *Config) { c.PrefillTokens = 5 })
	for _, when := range []string{"queued", "running", "last step"} {
		if err := b.p.Add(prefill(when, prompt(18, 1))); err != nil {
			t.Fatal(err)
		}
		switch when {
		case "running":
			b.step()
		case "last step": // computed, not yet applied: no hand-off comes of it
			for range 2 {
				b.step()
			}
			b.p.Schedule(b.now)
		}
		b.p.Cancel(when, Aborted)
		if when == "last step" {
			b.p.Apply(b.now)
		}
		b.collect(b.p)
		if _, out := b.result(when); out.Reason != Aborted || out.HandOff != nil {
			t.Errorf("%s: %+v", when, out)
		}
		b.wantIdle(b.p)
	}
	b.handOff("p", prompt(18, 1))
	b.p.Cancel("p", Aborted) // finished: ignored
	b.collect(b.p)
	if s := b.p.Stats(); s.Held != 1 || s.Finished[Aborted] != 3 {
		t.Errorf("%+v", s)
	}
}

// Rules: d-leaves-queue.
func TestCancelOfQueuedDecode(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxSeqs = 1 })
	h := b.handOff("p", prompt(18, 1))
	if err := b.d.Add(greedy("long", prompt(3, 2), 40)); err != nil {
		t.Fatal(err)
	}
	b.step()
	if err := b.d.Add(decode("d", prompt(18, 1), 5, h)); err != nil {
		t.Fatal(err)
	}
	b.step()
	b.d.Cancel("d", Aborted)
	b.step()
	b.step()
	b.wantIdle(b.p)
	if p, d := b.p.Stats(), b.d.Stats(); p.Completed != 1 || p.ServedReads != 0 || d.Reads != 0 || d.NotifyOnly != 1 {
		t.Errorf("P %+v, D %+v", p.Counters, d.Counters)
	}
}

// TestCancelOfMalformedQueuedDecode: P is told without a look at the blocks, so an empty list frees it as well; a key that is not
// there at all costs the engine.
//
// Rules: key-missing-queued, blocks-empty-queued.
func TestCancelOfMalformedQueuedDecode(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(params map[string]any)
		dies   bool
	}{
		{"empty list", func(p map[string]any) { p["remote_block_ids"] = []any{} }, false},
		{"null list", func(p map[string]any) { p["remote_block_ids"] = nil }, false},
		{"flat list", func(p map[string]any) { p["remote_block_ids"] = []any{1.0} }, false},
		{"no list", func(p map[string]any) { delete(p, "remote_block_ids") }, true},
		{"no port", func(p map[string]any) { delete(p, "remote_port") }, true},
		{"no request id", func(p map[string]any) { delete(p, "remote_request_id") }, true},
	} {
		b := newBench(t, func(c *Config) { c.MaxSeqs = 1 })
		ids := prompt(18, 1)
		params := b.handOff("p", ids).Params("p", 1)
		tt.change(params)
		req := greedy("d", ids, 5)
		req.Transfer = ParseTransfer(params)
		if err := errors.Join(b.d.Add(greedy("long", prompt(3, 2), 40)), b.d.Add(req)); err != nil {
			t.Fatal(err)
		}
		b.step()
		b.d.Cancel("d", Aborted)
		b.collect(b.d)
		if _, out := b.result("d"); out.Reason != Aborted {
			t.Errorf("%s: ended with %v", tt.name, out.Reason)
		}
		b.step()
		b.step()
		if b.d.Dead() != tt.dies || (b.p.Stats().Completed == 1) == tt.dies {
			t.Errorf("%s: dead %v, P %+v", tt.name, b.d.Dead(), b.p.Stats().Counters)
		}
	}
}

// TestCancelDuringRead: the stream ends at once, D's blocks stay until the transfer ends, others run, and P is freed by the
// completion.
//
// Rules: d-leaves-during-read, drop-remote-wait, abort-remote-wait, remote-wait-counted.
func TestCancelDuringRead(t *testing.T) {
	for _, ends := range []string{"well", "badly"} {
		b := newBench(t, nil)
		b.stall = true
		ids := prompt(18, 1)
		h := b.handOff("p", ids)
		if err := b.d.Add(decode("d", ids, 5, h)); err != nil {
			t.Fatal(err)
		}
		b.step()
		if s := b.d.Stats(); s.Deferred != 1 || s.Waiting != 1 || s.Running != 0 || s.UsedBlocks != 5 {
			t.Fatalf("%+v", s)
		}
		b.d.Cancel("d", Aborted)
		b.collect(b.d)
		if _, out := b.result("d"); out.Reason != Aborted || out.Generated != 0 {
			t.Errorf("%+v", out)
		}
		b.run(b.d, greedy("other", prompt(9, 3), 5))
		if s := b.d.Stats(); s.RecvPending != 1 || s.UsedBlocks != 5 || s.Waiting != 0 {
			t.Fatalf("%+v", s)
		}
		if ends == "badly" {
			b.d.ReadFailed("d")
			b.wantIdle(b.d)
			b.wait(13 * time.Second)
			if b.p.Stats().Expired != 1 {
				t.Errorf("%+v", b.p.Stats().Counters)
			}
			continue
		}
		b.unstall()
		b.step()
		b.wantIdle(b.d)
		b.wantIdle(b.p)
		b.d.ReadDone("d", nil) // a late second report
		b.step()
	}
}

// TestStalledRead: longer than the lease and still right, as long as nobody reuses the blocks.
//
// Rules: read-stalled.
func TestStalledRead(t *testing.T) {
	b := newBench(t, nil)
	b.stall = true
	ids := prompt(18, 1)
	want, _ := newBench(t, nil).run2(greedy("agg", ids, 5))
	if err := b.d.Add(decode("d", ids, 5, b.handOff("p", ids))); err != nil {
		t.Fatal(err)
	}
	b.wait(16 * time.Second)
	b.unstall()
	b.settle()
	if got, _ := b.result("d"); key(got) != key(want) {
		t.Errorf("%v, want %v", got, want)
	}
	if s := b.p.Stats(); s.Completed != 1 || s.Expired != 0 {
		t.Errorf("heartbeats did not keep the lease: %+v", s.Counters)
	}
}

// TestDecodeThatDoesNotFetch walks the requests which compute the prompt themselves, and what becomes of P.
//
// Rules: bypass-on-d, no-remote-prefill.
func TestDecodeThatDoesNotFetch(t *testing.T) {
	ids := prompt(18, 1)
	want, _ := newBench(t, nil).run2(greedy("agg", ids, 5))
	for _, tt := range []struct {
		name   string
		change func(params map[string]any, req *Request)
		freed  bool // P is told
	}{
		{"cache bypassed", func(_ map[string]any, r *Request) { r.BypassCache = true }, true},
		{"prompt scores", func(_ map[string]any, r *Request) { r.PromptLogprobs = new(int) }, true},
		{"flag absent", func(p map[string]any, _ *Request) { delete(p, "do_remote_prefill") }, false},
		{"no blocks and cache bypassed", func(p map[string]any, r *Request) { p["remote_block_ids"], r.BypassCache = []any{}, true }, false},
	} {
		b := newBench(t, nil)
		params := b.handOff("p", ids).Params("p", 1)
		req := greedy("d", ids, 5)
		tt.change(params, &req)
		req.Transfer = ParseTransfer(params)
		got, out := b.run(b.d, req)
		if key(got) != key(want) || out.Cached != 0 {
			t.Errorf("%s: cached %d, text %v, want %v", tt.name, out.Cached, got, want)
		}
		if freed := b.p.Stats().Held == 0; freed != tt.freed {
			t.Errorf("%s: P is free: %v", tt.name, freed)
		}
	}
}

// TestBothFlags: a decode that shall also hand off fetches like any other, which frees P, and holds its own blocks at its end.
//
// Rules: both-flags.
func TestBothFlags(t *testing.T) {
	ids := prompt(18, 1)
	want, _ := newBench(t, nil).run2(greedy("agg", ids, 5))
	b := newBench(t, nil)
	params := b.handOff("p", ids).Params("p", 1)
	params["do_remote_decode"] = true
	req := greedy("d", ids, 5)
	req.Transfer = ParseTransfer(params)
	got, out := b.run(b.d, req)
	if key(got) != key(want) || out.Cached != 18 || out.HandOff == nil || out.HandOff.EngineID != "D" {
		t.Errorf("cached %d, text %v, want %v, hand-off %+v", out.Cached, got, want, out.HandOff)
	}
	b.wantIdle(b.p)
	if s := b.d.Stats(); s.Held != 1 || s.UsedBlocks != 6 {
		t.Errorf("D: %+v", s)
	}
	b.wait(13 * time.Second)
	b.wantIdle(b.d)
}

// TestBlocksRunOut: a decode whose blocks do not fit waits, keeps P's lease, and comes to its right text later.
func TestBlocksRunOut(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Blocks = 18 })
	ids := prompt(30, 1)
	want, _ := newBench(t, nil).run2(greedy("agg", ids, 5))
	b.stall = true
	if err := b.d.Add(greedy("big", prompt(40, 2), 20)); err != nil {
		t.Fatal(err)
	}
	b.step()
	if err := b.d.Add(decode("d", ids, 5, b.handOff("p", ids))); err != nil {
		t.Fatal(err)
	}
	b.unstall()
	b.settle()
	if got, _ := b.result("d"); key(got) != key(want) {
		t.Errorf("%v, want %v", got, want)
	}
	b.wantIdle(b.d)
	b.wantIdle(b.p)
}

func TestParseTransfer(t *testing.T) {
	good := func() map[string]any {
		return (&HandOff{EngineID: "e", RequestID: "r", Blocks: []int{3, 4}}).Params("h", 5600)
	}
	for _, tt := range []struct {
		name    string
		change  func(map[string]any)
		produce bool
		defect  Defect
		consume bool
		noBeats bool
	}{
		{"good", func(map[string]any) {}, false, Sound, true, false},
		{"decode as text", func(p map[string]any) { clear(p); p["do_remote_decode"] = "true" }, true, 0, false, false},
		{"decode as number", func(p map[string]any) { clear(p); p["do_remote_decode"] = 1.0 }, true, 0, false, false},
		{"nothing", func(p map[string]any) { clear(p) }, false, 0, false, false},
		{"no blocks", func(p map[string]any) { p["remote_block_ids"] = []any{} }, false, NoBlocks, true, false},
		{"null blocks", func(p map[string]any) { p["remote_block_ids"] = nil }, false, NoBlocks, true, false},
		{"flat", func(p map[string]any) { p["remote_block_ids"] = []any{1.0, 2.0} }, false, BadBlocks, true, false},
		{"one flat", func(p map[string]any) { p["remote_block_ids"] = []any{1.0} }, false, BadBlocks, true, false},
		{"two groups", func(p map[string]any) { p["remote_block_ids"] = []any{[]any{1.0}, []any{2.0}} }, false, BadBlocks, true, false},
		{"text", func(p map[string]any) { p["remote_block_ids"] = "x" }, false, BadBlocks, true, false},
		{"text in list", func(p map[string]any) { p["remote_block_ids"] = []any{[]any{"1"}} }, false, BadBlocks, true, false},
		{"fraction", func(p map[string]any) { p["remote_block_ids"] = []any{[]any{1.5}} }, false, BadBlocks, true, false},
		{"huge", func(p map[string]any) { p["remote_block_ids"] = []any{[]any{1e300}} }, false, BadBlocks, true, false},
		{"no port", func(p map[string]any) { delete(p, "remote_port") }, false, MissingKey, true, true},
		{"no engine", func(p map[string]any) { delete(p, "remote_engine_id") }, false, MissingKey, true, true},
		{"no blocks, no port", func(p map[string]any) { delete(p, "remote_block_ids"); delete(p, "remote_port") }, false, NoBlocks, true, true},
		{"null host", func(p map[string]any) { p["remote_host"] = nil }, false, Sound, true, true},
		{"null request id", func(p map[string]any) { p["remote_request_id"] = nil }, false, Sound, true, true},
		{"null size", func(p map[string]any) { p["tp_size"] = nil }, false, Sound, true, true},
		{"no size", func(p map[string]any) { delete(p, "tp_size") }, false, Sound, true, true},
	} {
		params := good()
		tt.change(params)
		got := ParseTransfer(params)
		if got.Produce != tt.produce || (got.Consume != nil) != tt.consume {
			t.Errorf("%s: %+v", tt.name, got)
			continue
		}
		if got.Consume != nil && (got.Consume.Defect != tt.defect || got.Consume.NoBeats != tt.noBeats) {
			t.Errorf("%s: %+v", tt.name, *got.Consume)
		}
	}
	if src := ParseTransfer(good()).Consume; src.Port != "5600" || src.Host != "h" || !slices.Equal(src.Blocks, []int{3, 4}) {
		t.Errorf("%+v", *src)
	}
}
