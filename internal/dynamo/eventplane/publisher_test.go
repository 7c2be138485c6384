package eventplane_test

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"go.uber.org/goleak"

	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/eventplane/eventplanetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func stored(hash uint64) eventplane.Event {
	return eventplane.Event{Kind: eventplane.Stored, Blocks: []eventplane.Block{{Hash: hash, TokensHash: hash}}}
}

func TestMessagesAreBounded(t *testing.T) {
	socket := &tape{}
	p := newPublisher(socket)
	var events []eventplane.Event
	for i := range uint64(300) {
		events = append(events, stored(i))
	}
	hash := uint64(1000)
	for range 20 { // 20 prompts of 1000 blocks
		e := eventplane.Event{Kind: eventplane.Stored}
		for range 1000 {
			hash++
			e.Blocks = append(e.Blocks, eventplane.Block{Hash: hash, TokensHash: hash})
		}
		events = append(events, e)
	}
	huge := eventplane.Event{Kind: eventplane.Stored}
	for range 10_000 {
		hash++
		huge.Blocks = append(huge.Blocks, eventplane.Block{Hash: hash, TokensHash: hash})
	}
	events = append(events, huge, stored(1))
	p.Publish(append(events, stored(2_000_000))...)

	var sizes []string
	id := uint64(0)
	for i, frames := range socket.messages {
		m, err := eventplanetest.DecodeMessage(frames)
		if err != nil {
			t.Fatal(err)
		}
		if m.Sequence != uint64(i) || m.PublisherID != 9 || m.Topic != "kv-events" {
			t.Fatalf("message %d: %+v", i, m)
		}
		sent, err := eventplanetest.DecodeEvents(m.Payload)
		if err != nil {
			t.Fatal(err)
		}
		blocks := 0
		for _, e := range sent {
			if id++; e.ID != id || e.WorkerID != 1<<60 || e.Rank != 3 || e.Residency != "worker" {
				t.Fatalf("event %+v, want id %d", e, id)
			}
			blocks += len(e.Blocks)
		}
		if len(sent) > 128 || blocks > 8192 && len(sent) > 1 {
			t.Errorf("message %d: %d events, %d blocks", i, len(sent), blocks)
		}
		sizes = append(sizes, string(rune('a'+len(sent)%26)))
	}
	if len(socket.messages) != 7 { // 128, 128, 44+8, 8, 4, 1, 1
		t.Errorf("%d messages: %v", len(socket.messages), sizes)
	}
	if c := p.Counts(); c.Stored != 322 || c.Messages != 7 || c.LastEvent != 322 || c.RingEvents != 322 || c.Blocks[eventplane.Device] != 30301 {
		t.Errorf("counts %+v", c)
	}
	p.Close()
	p.Publish(stored(77))
	if len(socket.messages) != 7 {
		t.Error("a closed publisher publishes")
	}
}

// TestTiers: a block may lie in several tiers, and goes from each by itself; a chain may leave a tier for a slower one.
func TestTiers(t *testing.T) {
	var p *eventplane.Publisher
	r := newRouter(&p)
	w := &wire{router: r}
	p = newPublisher(w)
	if err := r.Join(); err != nil {
		t.Fatal(err)
	}
	tier := func(e eventplane.Event, tier eventplane.Tier) eventplane.Event { e.Tier = tier; return e }
	chain := eventplane.Event{Kind: eventplane.Stored, Blocks: blocksOf("ab", 0)}
	host := eventplane.Event{Kind: eventplane.Stored, Tier: eventplane.HostPinned, HasParent: true, Parent: hashOf("ab"), Blocks: blocksOf("abcd", 2)}
	p.Publish(chain, tier(eventplane.Event{Kind: eventplane.Stored, Blocks: blocksOf("ab", 0)}, eventplane.Disk), host)
	w.deliver(t)
	late := newRouter(&p)
	if err := late.Join(); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]*eventplanetest.Router{"heard": r, "late": late} {
		if !r.Knows(eventplane.Device, hashOf("ab")) || !r.Knows(eventplane.Disk, hashOf("ab")) || !r.Knows(eventplane.HostPinned, hashOf("abcd")) ||
			r.Knows(eventplane.Device, hashOf("abc")) || r.Orphans > 0 {
			t.Errorf("router %s knows something else", name)
		}
	}
	p.Publish(eventplane.Event{Kind: eventplane.Removed, Tier: eventplane.Device, Hashes: []uint64{hashOf("ab"), hashOf("a")}})
	w.deliver(t)
	if r.Knows(eventplane.Device, hashOf("ab")) || !r.Knows(eventplane.Disk, hashOf("ab")) {
		t.Error("the removal from one tier acts on another")
	}
	// A slower tier's chain waits for the device's, too.
	q := newPublisher(&tape{})
	q.Publish(host)
	if n := q.Counts(); n.Stored != 0 || n.Held != 2 {
		t.Errorf("%+v", n)
	}
	q.Publish(eventplane.Event{Kind: eventplane.Stored, Blocks: blocksOf("ab", 0)})
	if n := q.Counts(); n.Stored != 2 || n.Blocks != [4]int{2, 2, 0, 0} {
		t.Errorf("%+v", n)
	}
	q.Publish(tier(stored(1), 9))
	if n := q.Counts(); n.Stored != 2 {
		t.Errorf("a tier that does not exist: %+v", n)
	}
}

// TestOtherTokens: a block that is stored again under other tokens or another parent replaces the first, everywhere.
func TestOtherTokens(t *testing.T) {
	var p *eventplane.Publisher
	r := newRouter(&p)
	w := &wire{router: r}
	p = newPublisher(w)
	if err := r.Join(); err != nil {
		t.Fatal(err)
	}
	p.Publish(
		eventplane.Event{Kind: eventplane.Stored, Blocks: []eventplane.Block{{Hash: 1, TokensHash: 10}, {Hash: 2, TokensHash: 20}}},
		eventplane.Event{Kind: eventplane.Stored, Blocks: []eventplane.Block{{Hash: 1, TokensHash: 11}}},
	)
	w.deliver(t)
	for range 2 {
		late := newRouter(&p)
		if err := late.Join(); err != nil {
			t.Fatal(err)
		}
		for name, r := range map[string]*eventplanetest.Router{"heard": r, "late": late} {
			if old, fresh := r.Match(10), r.Match(11, 20); old != 0 || fresh != 2 {
				t.Errorf("%s: the old block matches %d, the new one %d", name, old, fresh)
			}
		}
	}
	p.Publish(eventplane.Event{Kind: eventplane.Cleared})
	if a := answer(t, p, question{}); len(a.Events) != 0 || a.Last != 5 { // stored, removed, stored, what was behind, cleared
		t.Errorf("after cleared: %+v", a)
	}
}

func TestOverflowBeginsAnew(t *testing.T) {
	socket := &tape{}
	p := eventplane.NewPublisher(eventplane.Config{Socket: socket, MaxBlocks: 100})
	for i := range uint64(101) {
		p.Publish(stored(i))
	}
	if c := p.Counts(); c.Overflows != 1 || c.Cleared != 1 || c.Blocks[0] != 1 || c.LastEvent != 102 {
		t.Errorf("%+v", c)
	}
	e := eventplane.Event{Kind: eventplane.Stored}
	for i := range uint64(1000) {
		e.Blocks = append(e.Blocks, eventplane.Block{Hash: 5000 + i, TokensHash: i})
	}
	p.Publish(e)
	if c := p.Counts(); c.Blocks[0] != 100 {
		t.Errorf("%+v", c)
	}
}

// TestRingIsBounded: few large events push out the older ones; what was pushed out is answered by a dump.
func TestRingIsBounded(t *testing.T) {
	p := newPublisher(&tape{})
	hash := uint64(0)
	for range 100 {
		e := eventplane.Event{Kind: eventplane.Stored}
		for range 5000 {
			hash++
			e.Blocks = append(e.Blocks, eventplane.Block{Hash: hash, TokensHash: hash})
		}
		p.Publish(e)
	}
	c := p.Counts()
	if c.RingEvents != 26 || c.RingBlocks != 130_000 {
		t.Errorf("ring of %d events, %d blocks", c.RingEvents, c.RingBlocks)
	}
	if a := answer(t, p, question{"start_event_id": 75}); a.Kind != "Events" || len(a.Events) != 26 {
		t.Errorf("%s with %d events", a.Kind, len(a.Events))
	}
	if a := answer(t, p, question{"start_event_id": 74}); a.Kind != "TreeDump" {
		t.Errorf("%s with %d events", a.Kind, len(a.Events))
	}
	e := eventplane.Event{Kind: eventplane.Removed}
	for i := range uint64(200_000) {
		e.Hashes = append(e.Hashes, i+1)
	}
	p.Publish(e) // larger than the ring
	if a := answer(t, p, question{"start_event_id": 100}); a.Kind != "TreeDump" || a.Last != 101 {
		t.Errorf("%s, last %d", a.Kind, a.Last)
	}
	p.Publish(stored(1 << 50))
	if a := answer(t, p, question{"start_event_id": 101}); a.Kind != "TreeDump" {
		t.Errorf("%s: it lacks an event", a.Kind)
	}
	if a := answer(t, p, question{"start_event_id": 102}); a.Kind != "Events" || len(a.Events) != 1 {
		t.Errorf("%s with %d events", a.Kind, len(a.Events))
	}
}

// TestMemoryIsBounded sends a million events of an engine with 50,000 blocks that lives for long: chains come, their tails go.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("a million events")
	}
	const held, events = 50_000, 1_000_000
	p := newPublisher(discard{})
	random := rand.New(rand.NewPCG(1, 2))
	var live []uint64
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range events / 2 {
		hash := random.Uint64()
		e := eventplane.Event{Kind: eventplane.Stored, Blocks: []eventplane.Block{{Hash: hash, TokensHash: hash}}}
		if len(live) > 0 && random.IntN(20) > 0 {
			e.HasParent, e.Parent = true, live[random.IntN(len(live))]
		}
		p.Publish(e)
		if len(live) < held {
			live = append(live, hash)
			p.Publish(eventplane.Event{Kind: eventplane.Removed, Hashes: []uint64{1}})
			continue
		}
		i := random.IntN(len(live))
		p.Publish(eventplane.Event{Kind: eventplane.Removed, Hashes: []uint64{live[i]}})
		live[i] = hash
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	took := after.HeapAlloc - before.HeapAlloc
	c := p.Counts()
	t.Logf("%d blocks and %d events take %d bytes (%d a block)", c.Blocks[0], c.RingEvents, took, took/held)
	if c.Blocks[0] != held {
		t.Errorf("%d blocks are stored, true are %d", c.Blocks[0], held)
	}
	if took > 25<<20 {
		t.Errorf("%d bytes", took)
	}
	runtime.KeepAlive(live)
}

type discard struct{}

func (discard) Publish(...[]byte) int { return 0 }

// FuzzDecode: the reader that the tests trust takes anything without falling over.
func FuzzDecode(f *testing.F) {
	t := &tape{}
	newPublisher(t).Publish(stored(1))
	f.Add(t.messages[0][3])
	f.Fuzz(func(_ *testing.T, frame []byte) {
		_, _ = eventplanetest.DecodeMessage([][]byte{nil, make([]byte, 8), make([]byte, 8), frame})
		_, _ = eventplanetest.DecodeEvents(frame)
		_, _ = eventplanetest.DecodeAnswer(frame)
		_, _ = eventplanetest.DecodeLoad(frame)
	})
}
