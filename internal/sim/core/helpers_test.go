package core

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// bench is one or two engines with a clock that moves only by steps, and a network without delay between them.
type bench struct {
	t    testing.TB
	now  time.Duration
	p, d *Engine
	outs map[string][]Output // by request id
	// stall keeps reads back until deliver is called.
	stall   bool
	stalled []Read
	mirrors map[*Engine]mirror
	events  map[*Engine][]Event // taken, and not looked at yet
}

func testVocab() Vocab {
	v := Vocab{Size: 512, EOS: 505}
	for id := uint32(256); id < 504; id++ {
		v.Words = append(v.Words, id)
	}
	return v
}

func testConfig(id string) Config {
	return Config{
		BlockSize: 4, Blocks: 33, MaxModelLen: 64, MaxSeqs: 4, MaxBatchedTokens: 64, PrefillTokens: 64,
		Lease: 12 * time.Second, EngineID: id, Seed: 7, Vocab: testVocab(), KVEvents: true,
	}
}

func newBench(tb testing.TB, change func(*Config)) *bench {
	tb.Helper()
	b := &bench{t: tb, outs: make(map[string][]Output), mirrors: make(map[*Engine]mirror), events: make(map[*Engine][]Event)}
	for _, e := range []struct {
		id string
		at **Engine
	}{{"P", &b.p}, {"D", &b.d}} {
		cfg := testConfig(e.id)
		if change != nil {
			change(&cfg)
		}
		engine, err := New(cfg)
		if err != nil {
			tb.Fatal(err)
		}
		*e.at = engine
	}
	return b
}

// step runs one step of 10 ms on both engines and checks their invariants.
func (b *bench) step() (busy bool) {
	b.t.Helper()
	var plans []Plan
	for _, e := range []*Engine{b.p, b.d} {
		plans = append(plans, e.Schedule(b.now))
	}
	b.now += 10 * time.Millisecond
	for i, e := range []*Engine{b.p, b.d} {
		b.carry(e, plans[i])
		if plans[i].Busy {
			busy = true
			e.Apply(b.now)
		}
		b.collect(e)
	}
	return busy
}

func (b *bench) collect(e *Engine) {
	b.t.Helper()
	for _, out := range e.Take() {
		b.outs[out.ID] = append(b.outs[out.ID], out)
	}
	if err := e.Check(); err != nil {
		b.t.Fatal(err)
	}
	if e.cfg.KVEvents {
		b.follow(e)
	}
}

// carry is the network: everything goes to P, if the hand-off means P.
func (b *bench) carry(from *Engine, plan Plan) {
	for _, r := range plan.Reads {
		if b.stall {
			b.stalled = append(b.stalled, r)
		} else {
			b.deliver(from, r)
		}
	}
	for _, done := range plan.Dones {
		b.p.NoteDone(done.Source.RequestID)
	}
	for _, beat := range plan.Beats {
		b.p.NoteBeat(beat.RequestIDs)
	}
}

func (b *bench) deliver(to *Engine, r Read) {
	if r.Source.EngineID != b.p.cfg.EngineID {
		to.ReadFailed(r.ID)
		return
	}
	blocks, err := b.p.Serve(r.Source.RequestID, r.Blocks)
	if err != nil {
		to.ReadFailed(r.ID)
		return
	}
	b.p.NoteDone(r.Source.RequestID)
	to.ReadDone(r.ID, blocks)
}

// unstall delivers what was kept back.
func (b *bench) unstall() {
	b.stall = false
	for _, r := range b.stalled {
		b.deliver(b.d, r)
	}
	b.stalled = nil
}

// settle steps until nothing is computed any more.
func (b *bench) settle() {
	b.t.Helper()
	idle := 0
	for range 10000 {
		if b.step() {
			idle = 0
		} else if idle++; idle > 2 {
			return
		}
	}
	b.t.Fatal("engines do not come to rest")
}

// run takes one request to its end and returns its tokens and last output.
func (b *bench) run(e *Engine, req Request) ([]uint32, Output) {
	b.t.Helper()
	if err := e.Add(req); err != nil {
		b.t.Fatal(err)
	}
	b.settle()
	return b.result(req.ID)
}

func (b *bench) result(id string) ([]uint32, Output) {
	b.t.Helper()
	outs := b.outs[id]
	if len(outs) == 0 || outs[len(outs)-1].Reason == Running {
		b.t.Fatalf("%s has not ended: %d outputs", id, len(outs))
	}
	var tokens []uint32
	for _, out := range outs {
		if out.Token != nil {
			tokens = append(tokens, out.Token.ID)
		}
	}
	return tokens, outs[len(outs)-1]
}

// wait moves the clock, stepping as an idle engine does.
func (b *bench) wait(d time.Duration) {
	b.t.Helper()
	for end := b.now + d; b.now < end; {
		b.step()
	}
}

// wantIdle fails unless an engine is at its base.
func (b *bench) wantIdle(e *Engine) {
	b.t.Helper()
	s := e.Stats()
	if s.UsedBlocks != 0 || s.Running+s.Waiting+s.Held+s.RecvPending != 0 {
		b.t.Fatalf("engine %s is not at its base: %+v", e.cfg.EngineID, s)
	}
}

func prompt(n int, salt uint32) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = 256 + (uint32(i)*37+salt*101)%248
	}
	return ids
}

func prefill(id string, ids []uint32) Request {
	return Request{ID: id, Prompt: ids, MaxTokens: 1, Transfer: Transfer{Produce: true}}
}

// decode asks for n tokens after the KV that a hand-off names. The parameters pass through their wire form.
func decode(id string, ids []uint32, n int, h *HandOff) Request {
	return Request{ID: id, Prompt: ids, MaxTokens: n, Transfer: ParseTransfer(h.Params("host", 1))}
}

func key(tokens []uint32) string { return strings.Trim(fmt.Sprint(tokens), "[]") }
