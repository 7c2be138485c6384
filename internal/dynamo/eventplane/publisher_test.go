package eventplane_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/eventplane/eventplanetest"
	"remora/internal/dynamo/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// question is a recovery query; nil members are null, absent ones are left out.
type question map[string]any

func (q question) encode(codec protocol.Codec) []byte {
	var members []protocol.Member
	for key, value := range q {
		m := protocol.Member{Key: key}
		switch v := value.(type) {
		case int:
			m.Value = protocol.Int(int64(v))
		case uint64:
			m.Value = protocol.Value{Kind: protocol.KindUint, Uint: v}
		case float64:
			m.Value = protocol.Float(v)
		case string:
			m.Value = protocol.String(v)
		case bool:
			m.Value = protocol.Bool(v)
		}
		members = append(members, m)
	}
	return protocol.AppendValue(nil, codec, protocol.Map(members...))
}

func answer(t *testing.T, p *eventplane.Publisher, q question) eventplanetest.Answer {
	t.Helper()
	a, err := eventplanetest.DecodeAnswer(p.Answer(protocol.MsgPack, q.encode(protocol.MsgPack)))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func stored(hash uint64) eventplane.Event {
	return eventplane.Event{Kind: eventplane.Stored, Blocks: []eventplane.Block{{Hash: hash, TokensHash: hash}}}
}

// TestAnswers holds the kinds of answer against what the Rust sidecar gives, and against silence, which is what it gives to
// questions that lack something.
func TestAnswers(t *testing.T) {
	full := newPublisher(&tape{})
	for i := range uint64(2000) {
		full.Publish(stored(i))
	}
	few, empty := newPublisher(&tape{}), newPublisher(&tape{})
	for i := range uint64(10) {
		few.Publish(stored(i))
	}
	for _, tc := range []struct {
		name  string
		p     *eventplane.Publisher
		q     question
		kind  string
		first uint64 // id of the first event
		n     int
		last  uint64
	}{
		{"null start", few, question{"start_event_id": nil}, "TreeDump", 0, 10, 10},
		{"start 0", few, question{"start_event_id": 0}, "TreeDump", 0, 10, 10},
		{"no start", few, question{}, "TreeDump", 0, 10, 10},
		{"start too old", full, question{"start_event_id": 976}, "TreeDump", 0, 2000, 2000},
		{"oldest kept", full, question{"start_event_id": 977}, "Events", 977, 1024, 2000},
		{"start kept", few, question{"start_event_id": 4}, "Events", 4, 7, 10},
		{"newest", few, question{"start_event_id": 10}, "Events", 10, 1, 10},
		{"an end has no meaning", few, question{"start_event_id": 4, "end_event_id": 5}, "Events", 4, 7, 10},
		{"empty, null", empty, question{"start_event_id": nil}, "TreeDump", 0, 0, 0},
		{"empty, any", empty, question{"start_event_id": 7}, "TreeDump", 0, 0, 0},
		{"negative start", few, question{"start_event_id": -1}, "TreeDump", 0, 10, 10},
		{"start is a text", few, question{"start_event_id": "4"}, "TreeDump", 0, 10, 10},
		{"start is a float", few, question{"start_event_id": 4.5}, "TreeDump", 0, 10, 10},
		{"rank missing", few, question{"worker_id": 1 << 60}, "TreeDump", 0, 10, 10},
		{"worker missing", few, question{"dp_rank": 3}, "TreeDump", 0, 10, 10},
		{"kind null", few, question{"kind": nil}, "TreeDump", 0, 10, 10},
		{"stranger's keys", few, question{"shard": "a", "supports_tree_dump_failed": false}, "TreeDump", 0, 10, 10},
		{"too new", few, question{"start_event_id": 11}, "TooNew", 0, 0, 0},
		{"far too new", few, question{"start_event_id": uint64(math.MaxUint64)}, "TooNew", 0, 0, 0},
		{"end before start", few, question{"start_event_id": 5, "end_event_id": 4}, "InvalidRange", 0, 0, 0},
		{"other worker", few, question{"worker_id": 1}, "Error", 0, 0, 0},
		{"other rank", few, question{"dp_rank": 0}, "Error", 0, 0, 0},
		{"other kind", few, question{"kind": "ownership"}, "Error", 0, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := answer(t, tc.p, tc.q)
			if a.Kind != tc.kind || len(a.Events) != tc.n || a.Last != tc.last {
				t.Fatalf("%s with %d events, last %d; want %s, %d, %d", a.Kind, len(a.Events), a.Last, tc.kind, tc.n, tc.last)
			}
			for i, e := range a.Events {
				if e.ID != tc.first+uint64(i) {
					t.Fatalf("event %d has id %d", i, e.ID)
				}
			}
			if tc.kind == "TreeDump" && a.Scope != "all" {
				t.Errorf("scope %q", a.Scope)
			}
		})
	}
	if a := answer(t, few, question{"start_event_id": 12, "end_event_id": 13}); a.Fields["requested_start"] != 12 ||
		a.Fields["requested_end"] != 13 || a.Fields["newest_available"] != 10 {
		t.Errorf("too new: %v", a.Fields)
	}
	if a := answer(t, few, question{"start_event_id": 12}); a.Fields["requested_end"] != 10 {
		t.Errorf("too new without an end: %v", a.Fields)
	}
	if a := answer(t, few, question{"start_event_id": 5, "end_event_id": 4}); a.Fields["start_id"] != 5 || a.Fields["end_id"] != 4 {
		t.Errorf("invalid range: %v", a.Fields)
	}
	for _, body := range [][]byte{nil, {0xc1}, {0x93, 1}, protocol.AppendValue(nil, protocol.MsgPack, protocol.Int(4))} {
		a, err := eventplanetest.DecodeAnswer(few.Answer(protocol.MsgPack, body))
		if err != nil || a.Kind != "Error" {
			t.Errorf("body %x: %v, %v", body, a, err)
		}
	}
}

// TestRecordedAnswer: what a stock sidecar answered to the question of a frontend that had just started, byte for byte.
func TestRecordedAnswer(t *testing.T) {
	const asked = "86a9776f726b65725f6964cf68aba615d2dbfdfba764705f72616e6b00ae73746172745f6576656e745f6964c0ac656e645f6576656e745f6964c0" +
		"b9737570706f7274735f747265655f64756d705f6661696c6564c3a46b696e64a87265636f76657279"
	const answered = "81a85472656544756d7083a66576656e747390ad6c6173745f6576656e745f696400ab72657365745f73636f7065a3616c6c"
	p := eventplane.NewPublisher(eventplane.Config{WorkerID: 7542304613624184315, PublisherID: 1, Socket: &tape{}})
	body, err := hex.DecodeString(asked)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(p.Answer(protocol.MsgPack, body)); got != answered {
		t.Errorf("got  %s\nwant %s", got, answered)
	}
	if got := eventplane.QueryEndpoint(0x120a2880136e83); got != "worker_kv_query_source_120a2880136e83" {
		t.Error(got)
	}
}

func TestAnswersInJSON(t *testing.T) {
	p := newPublisher(&tape{})
	p.Publish(eventplane.Event{Kind: eventplane.Stored, HasParent: false, Blocks: []eventplane.Block{{Hash: math.MaxUint64, TokensHash: 1, MM: []uint64{5}}}})
	p.Publish(eventplane.Event{Kind: eventplane.Cleared})
	got := string(p.Answer(protocol.JSON, question{"start_event_id": 1}.encode(protocol.JSON)))
	const want = `{"Events":{"events":[{"worker_id":1152921504606846976,"storage_tier":"device","residency_domain":"worker","event":{"event_id":1,` +
		`"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[{"block_hash":18446744073709551615,"tokens_hash":1,` +
		`"mm_extra_info":{"mm_objects":[{"mm_hash":5,"offsets":[]}]}}]}},"dp_rank":3}},{"worker_id":1152921504606846976,` +
		`"storage_tier":"device","residency_domain":"worker","event":{"event_id":2,"data":"cleared","dp_rank":3}}],"last_event_id":2}}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := p.Answer(protocol.JSON, []byte("{")); !json.Valid(got) || !bytes.Contains(got, []byte(`"Error"`)) {
		t.Errorf("%s", got)
	}
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

// TestLargeDump: what does not fit into an answer is left out, no more than that, and what is told hangs together.
func TestLargeDump(t *testing.T) {
	if testing.Short() {
		t.Skip("600,000 blocks")
	}
	for name, oneChain := range map[string]bool{"many prompts": false, "one endless prompt": true} {
		p := newPublisher(&tape{})
		hash := uint64(1) << 60
		for range 600 {
			e := eventplane.Event{Kind: eventplane.Stored, Parent: hash, HasParent: oneChain && hash > 1<<60}
			for range 1000 {
				hash++
				e.Blocks = append(e.Blocks, eventplane.Block{Hash: hash, TokensHash: hash})
			}
			p.Publish(e)
		}
		raw := p.Answer(protocol.MsgPack, question{}.encode(protocol.MsgPack))
		a, err := eventplanetest.DecodeAnswer(raw)
		if err != nil || len(raw) > 29<<20 || a.Last != 600 {
			t.Errorf("%s: %d bytes, last %d, %v", name, len(raw), a.Last, err)
		}
		told, last := 0, uint64(0)
		for _, e := range a.Events {
			if e.HasParent && e.Parent != last {
				t.Fatalf("%s: blocks behind %d, after %d", name, e.Parent, last)
			}
			told += len(e.Blocks)
			last = e.Blocks[len(e.Blocks)-1].Hash
		}
		if told < 400_000 || told >= 600_000 {
			t.Errorf("%s: %d blocks are told", name, told)
		}
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

// BenchmarkPublish: one new prompt of 16 blocks, and its removal.
func BenchmarkPublish(b *testing.B) {
	p := newPublisher(discard{})
	blocks, hashes := make([]eventplane.Block, 16), make([]uint64, 16)
	n := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		for i := range blocks {
			n++
			blocks[i] = eventplane.Block{Hash: n << 20, TokensHash: n << 30}
			hashes[15-i] = n << 20
		}
		p.Publish(eventplane.Event{Kind: eventplane.Stored, Blocks: slices.Clone(blocks)})
		p.Publish(eventplane.Event{Kind: eventplane.Removed, Hashes: slices.Clone(hashes)})
	}
}

// BenchmarkDump answers a router that comes late: 38,400 blocks in chains of 64.
func BenchmarkDump(b *testing.B) {
	p := newPublisher(discard{})
	hash := uint64(1) << 60
	for range 600 {
		e := eventplane.Event{Kind: eventplane.Stored}
		for range 64 {
			hash++
			e.Blocks = append(e.Blocks, eventplane.Block{Hash: hash, TokensHash: hash})
		}
		p.Publish(e)
	}
	body := question{}.encode(protocol.MsgPack)
	size := 0
	b.ReportAllocs()
	for b.Loop() {
		size = len(p.Answer(protocol.MsgPack, body))
	}
	b.ReportMetric(float64(size), "bytes")
}

// FuzzAnswer: any body gets an answer that a router can read.
func FuzzAnswer(f *testing.F) {
	f.Add(question{"start_event_id": 3, "worker_id": 1 << 60, "dp_rank": 3, "kind": "recovery"}.encode(protocol.MsgPack))
	f.Add([]byte(strings.Repeat("\x91", 200)))
	p := newPublisher(discard{})
	for i := range uint64(10) {
		p.Publish(stored(i))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := eventplanetest.DecodeAnswer(p.Answer(protocol.MsgPack, body))
		if err != nil || a.Kind == "" {
			t.Fatalf("%+v, %v", a, err)
		}
		if !json.Valid(p.Answer(protocol.JSON, body)) {
			t.Fatal("no JSON")
		}
	})
}

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
