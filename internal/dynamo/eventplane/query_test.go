package eventplane_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/eventplane/eventplanetest"
	"remora/internal/dynamo/protocol"
)

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
