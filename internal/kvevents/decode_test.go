package kvevents

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tinylib/msgp/msgp"
)

// pack encodes texts, numbers, nil, []byte, list and table as MessagePack.
func pack(values ...any) []byte {
	var b []byte
	for _, v := range values {
		b = packOne(b, v)
	}
	return b
}

// list is an array; table is a map in a given order, keys and values in turn.
type (
	list  []any
	table []any
	raw   []byte
)

func packOne(b []byte, v any) []byte {
	switch v := v.(type) {
	case list:
		b = msgp.AppendArrayHeader(b, uint32(len(v)))
		return append(b, pack(v...)...)
	case table:
		b = msgp.AppendMapHeader(b, uint32(len(v)/2))
		return append(b, pack(v...)...)
	case raw:
		return append(b, v...)
	case []byte:
		return msgp.AppendBytes(b, v)
	case []int:
		b = msgp.AppendArrayHeader(b, uint32(len(v)))
		for _, n := range v {
			b = msgp.AppendInt(b, n)
		}
		return b
	default:
		out, err := msgp.AppendIntf(b, v)
		if err != nil {
			panic(err)
		}
		return out
	}
}

// batch wraps events as an engine does.
func batch(events ...any) []byte { return pack(list{2.5, list(events), 0}) }

// stored is a BlockStored in map form with one block of two tokens, and what a test adds.
func stored(more ...any) table {
	return append(table{"type", "BlockStored", "block_hashes", []int{7}, "token_ids", []int{1, 2}, "block_size", 2}, more...)
}

func storedEvent(change func(e *Event)) Event {
	e := Event{Kind: Stored, Hashes: []uint64{7}, Tokens: []uint32{1, 2}, BlockSize: 2}
	if change != nil {
		change(&e)
	}
	return e
}

const digest32 = "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x9f\x3c\x0a\x11\xd4\xe2\x7b\x05"

func TestDecodeEvents(t *testing.T) {
	const hash = 0x9f3c0a11d4e27b05
	full := Event{
		Kind: Stored, Hashes: []uint64{7, 8}, Parent: 6, HasParent: true, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2,
		LoRAID: 3, HasLoRAID: true, Medium: "GPU", LoRAName: "a", ExtraKeys: [][]ExtraKey{nil, {{Text: "s"}}},
		Group: 1, HasGroup: true, SpecKind: "sliding_window", SlidingWindow: 128, HasSlidingWindow: true,
		Locality: "LOCAL", Owned: true, SessionID: "x",
	}
	for name, test := range map[string]struct {
		event any
		want  Event
	}{
		"map, least":   {stored(), storedEvent(nil)},
		"array, least": {list{"BlockStored", []int{7}, nil, []int{1, 2}, 2}, storedEvent(nil)},
		"map, all": {table{
			"type", "BlockStored", "block_hashes", []int{7, 8}, "parent_block_hash", 6, "token_ids", []int{1, 2, 3, 4}, "block_size", 2,
			"lora_id", 3, "medium", "GPU", "lora_name", "a", "extra_keys", list{nil, list{"s"}}, "group_idx", 1,
			"kv_cache_spec_kind", "sliding_window", "kv_cache_spec_sliding_window", 128, "locality", "LOCAL", "ownership", "disk", "session_id", "x",
		}, full},
		"array, all": {list{
			"BlockStored", []int{7, 8}, 6, []int{1, 2, 3, 4}, 2, 3, "GPU", "a", list{nil, list{"s"}}, 1, "sliding_window", 128, "LOCAL", "disk", "x",
		}, full},
		"array, more than all": {list{
			"BlockStored", []int{7, 8}, 6, []int{1, 2, 3, 4}, 2, 3, "GPU", "a", list{nil, list{"s"}}, 1, "sliding_window", 128, "LOCAL", "disk", "x", table{"a", 1}, nil,
		}, full},
		"all nil": {
			stored("parent_block_hash", nil, "lora_id", nil, "medium", nil, "lora_name", nil, "extra_keys", nil, "group_idx", nil,
				"kv_cache_spec_kind", nil, "kv_cache_spec_sliding_window", nil, "locality", nil, "ownership", nil, "session_id", nil), storedEvent(nil),
		},
		"unknown keys":        {stored("later", table{"deep", list{1, table{}}}, 5, "number as key"), storedEvent(nil)},
		"the kind comes last": {table{"block_hashes", []int{7}, "token_ids", []int{1, 2}, "block_size", 2, "type", "BlockStored"}, storedEvent(nil)},
		"big hash":            {stored("block_hashes", list{uint64(hash)}), storedEvent(func(e *Event) { e.Hashes = []uint64{hash} })},
		"signed hash":         {stored("block_hashes", list{int64(-1)}, "parent_block_hash", int64(-2)), storedEvent(func(e *Event) { e.Hashes, e.Parent, e.HasParent = []uint64{1<<64 - 1}, 1<<64-2, true })},
		"digest": {
			stored("block_hashes", list{[]byte(digest32)}, "parent_block_hash", []byte(digest32)[24:]),
			storedEvent(func(e *Event) { e.Hashes, e.Parent, e.HasParent = []uint64{hash}, hash, true }),
		},
		"pairs":          {stored("token_ids", list{list{1, 2}, list{2, 300000}}), storedEvent(func(e *Event) { e.NextTokens = []uint32{2, 300000} })},
		"wide tokens":    {stored("token_ids", list{uint32(1 << 31), uint8(200), uint16(60000), int64(5), uint64(6)}), storedEvent(func(e *Event) { e.Tokens = []uint32{1 << 31, 200, 60000, 5, 6} })},
		"no tokens":      {stored("token_ids", list{}), storedEvent(func(e *Event) { e.Tokens = nil })},
		"blocks without": {stored("extra_keys", list{nil, nil}), storedEvent(nil)},
		"keys of kinds": {stored("extra_keys", list{list{"a", list{"b", 5}, 7, []byte("x"), list{"c", "d"}, list{}, table{}, nil}}), storedEvent(func(e *Event) {
			e.ExtraKeys = [][]ExtraKey{{{Text: "a"}, {Text: "b", Offset: 5, HasOffset: true}, {Opaque: true}, {Opaque: true}, {Opaque: true}, {Opaque: true}, {Opaque: true}, {Opaque: true}}}
		})},
		"keys for blocks":  {stored("extra_keys", list{"s", 5, nil, list{"b"}, nil}), storedEvent(func(e *Event) { e.ExtraKeys = [][]ExtraKey{{{Text: "s"}}, {{Opaque: true}}, nil, {{Text: "b"}}} })},
		"keys as text":     {stored("extra_keys", "what"), storedEvent(nil)},
		"group as text":    {stored("group_idx", "0"), storedEvent(nil)},
		"owner as table":   {stored("ownership", table{"tier", 1}), storedEvent(func(e *Event) { e.Owned = true })},
		"removed, map":     {table{"type", "BlockRemoved", "block_hashes", []int{1, 2}, "medium", "CPU", "group_idx", 0}, Event{Kind: Removed, Hashes: []uint64{1, 2}, Medium: "CPU", HasGroup: true}},
		"removed, array":   {list{"BlockRemoved", []int{1, 2}, "CPU", 0, "REMOTE", "disk"}, Event{Kind: Removed, Hashes: []uint64{1, 2}, Medium: "CPU", HasGroup: true, Locality: "REMOTE", Owned: true}},
		"removed, least":   {list{"BlockRemoved", []int{1}}, Event{Kind: Removed, Hashes: []uint64{1}}},
		"removed, nothing": {list{"BlockRemoved", list{}}, Event{Kind: Removed}},
		"cleared, map":     {table{"type", "AllBlocksCleared"}, Event{Kind: Cleared}},
		"cleared, array":   {list{"AllBlocksCleared"}, Event{Kind: Cleared}},
		"cleared, more":    {list{"AllBlocksCleared", 1, "x"}, Event{Kind: Cleared}},
		"cleared, bare":    {"AllBlocksCleared", Event{Kind: Cleared}},
	} {
		var d Decoder
		got, err := d.Decode(5, batch(test.event))
		if err != nil || got.Skipped != 0 || len(got.Events) != 1 {
			t.Errorf("%s: %+v, %v", name, got, err)
			continue
		}
		if diff := cmp.Diff(test.want, got.Events[0]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if got.Seq != 5 || got.Timestamp != 2.5 || !got.HasRank {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestSkippedEvents has each odd event between two good ones.
func TestSkippedEvents(t *testing.T) {
	for name, test := range map[string]struct {
		event any
		want  string
	}{
		"unknown kind, map":   {table{"type", "BlockInactive", "block_hashes", []int{1}}, `unknown kind "BlockInactive"`},
		"unknown kind, array": {list{"BlockInactive", []int{1}}, `unknown kind "BlockInactive"`},
		"bare kind":           {"BlockStored", "without block_hashes"},
		"bare word":           {"hello", `unknown kind "hello"`},
		"number":              {7, "neither a map nor an array"},
		"nil":                 {nil, "neither a map nor an array"},
		"empty map":           {table{}, "no kind"},
		"empty array":         {list{}, "neither a map nor an array"},
		"kind is a number":    {list{5}, "neither a map nor an array"},
		"no hashes":           {table{"type", "BlockStored", "token_ids", []int{1}, "block_size", 1}, "without block_hashes"},
		"no tokens":           {table{"type", "BlockStored", "block_hashes", []int{1}, "block_size", 1}, "without token_ids"},
		"no block size":       {table{"type", "BlockStored", "block_hashes", []int{1}, "token_ids", []int{1}}, "without block_size"},
		"short array":         {list{"BlockStored", []int{1}, nil, []int{1}}, "without block_size"},
		"removed nothing":     {list{"BlockRemoved"}, "without block_hashes"},
		"hash as text":        {stored("block_hashes", list{"7"}), "a hash is neither"},
		"hash as float":       {stored("block_hashes", list{7.5}), "a hash is neither"},
		"short digest":        {stored("block_hashes", list{[]byte("1234567")}), "a hash of 7 bytes"},
		"hashes as number":    {stored("block_hashes", 7), "it is no list"},
		"parent as text":      {stored("parent_block_hash", "7"), "parent_block_hash"},
		"token as text":       {stored("token_ids", list{"1"}), "a token id is not"},
		"negative token":      {stored("token_ids", list{-1}), "token_ids"},
		"huge token":          {stored("token_ids", list{uint64(1 << 32)}), "a token id is not"},
		"tokens, then pairs":  {stored("token_ids", list{1, list{1, 2}}), "mixed"},
		"pairs, then tokens":  {stored("token_ids", list{list{1, 2}, 1}), "mixed"},
		"triple":              {stored("token_ids", list{list{1, 2, 3}}), "3 token ids where a pair"},
		"block size 0":        {stored("block_size", 0), "not a positive integer"},
		"block size as text":  {stored("block_size", "2"), "not a positive integer"},
		"medium as number":    {stored("medium", 5), "medium: it is no text"},
		"locality as list":    {stored("locality", list{}), "locality: it is no text"},
	} {
		var d Decoder
		got, err := d.Decode(0, batch(stored("medium", "A"), test.event, stored("medium", "B")))
		if err != nil || got.Skipped != 1 || len(got.Events) != 2 || got.Events[0].Medium != "A" || got.Events[1].Medium != "B" {
			t.Errorf("%s: %+v, %v", name, got, err)
			continue
		}
		if !strings.Contains(got.SkippedWhy, test.want) || !strings.Contains(got.SkippedWhy, "event 1:") {
			t.Errorf("%s: %s, want %q", name, got.SkippedWhy, test.want)
		}
		if diff := cmp.Diff(storedEvent(func(e *Event) { e.Medium = "B" }), got.Events[1]); diff != "" {
			t.Errorf("%s: the event after it: %s", name, diff)
		}
	}
	var d Decoder
	got, err := d.Decode(0, batch(1, 2, 3))
	if err != nil || got.Skipped != 3 || len(got.Events) != 0 || !strings.Contains(got.SkippedWhy, "event 0:") {
		t.Errorf("nothing but odd events: %+v, %v", got, err)
	}
}

func TestDecodeBatches(t *testing.T) {
	events := list{stored()}
	for name, test := range map[string]struct {
		payload []byte
		want    Batch
	}{
		"rank":           {pack(list{1.5, events, 3}), Batch{Timestamp: 1.5, Rank: 3, HasRank: true}},
		"negative rank":  {pack(list{1.5, events, -1}), Batch{Timestamp: 1.5, Rank: -1, HasRank: true}},
		"no rank":        {pack(list{1.5, events, nil}), Batch{Timestamp: 1.5}},
		"rank left out":  {pack(list{1.5, events}), Batch{Timestamp: 1.5}},
		"rank as text":   {pack(list{1.5, events, "3"}), Batch{Timestamp: 1.5}},
		"more":           {pack(list{1.5, events, 3, table{"a", 1}}, "after"), Batch{Timestamp: 1.5, Rank: 3, HasRank: true}},
		"whole seconds":  {pack(list{7, events, 0}), Batch{Timestamp: 7, HasRank: true}},
		"short float":    {pack(list{float32(0.5), events, 0}), Batch{Timestamp: 0.5, HasRank: true}},
		"no time":        {pack(list{nil, events, 0}), Batch{HasRank: true}},
		"map, composed":  {unhex("93cb4004000000000000918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf9f3c0a11d4e27b05b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473940708090aaa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e00"), Batch{Timestamp: 2.5, HasRank: true}},
		"array composed": {unhex("93cb40040000000000009198ab426c6f636b53746f72656491cf9f3c0a11d4e27b05c0940708090a04c0a3475055c000"), Batch{Timestamp: 2.5, HasRank: true}},
	} {
		var d Decoder
		got, err := d.Decode(0, test.payload)
		if err != nil || len(got.Events) != 1 || got.Events[0].Kind != Stored || got.Skipped != 0 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		got.Events = nil
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for name, test := range map[string]struct {
		payload []byte
		want    string
	}{
		"empty":              {nil, "empty"},
		"map":                {pack(table{"ts", 1.5}), "not an array"},
		"one item":           {pack(list{1.5}), "not an array"},
		"text":               {[]byte("hello"), "not an array"},
		"time as text":       {pack(list{"now", list{}}), "timestamp"},
		"events as number":   {pack(list{1.5, 7, 0}), "no array"},
		"events as map":      {pack(list{1.5, table{}, 0}), "no array"},
		"cut in the time":    {[]byte("\x93\xcb\x40"), "timestamp"},
		"fewer than claimed": {pack(list{1.5, raw("\xdd\xff\xff\xff\xff")}), "ends after 0 of 4294967295"},
		"cut in an event":    {batch(stored())[:30], "event 0"},
		"claims many tokens": {batch(raw("\x95\xabBlockStored\x91\x07\xc0\xdd\xff\xff\xff\xff\x01")), "event 0"},
		"claims many keys":   {batch(raw("\xdf\xff\xff\xff\xff")), "event 0"},
		"invalid byte":       {batch(raw("\xc1")), "event 0"},
	} {
		var d Decoder
		if got, err := d.Decode(0, test.payload); !errors.Is(err, ErrBatch) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestReuse has a decoder read different batches in turn.
func TestReuse(t *testing.T) {
	var d Decoder
	big := make([]int, 140_000)
	payloads := [][]byte{
		batch(stored(), stored("extra_keys", list{list{"a"}})), batch(), batch(stored("token_ids", big)),
		batch(list{"BlockRemoved", []int{1, 2}}), batch(stored("token_ids", list{list{1, 2}, list{2, 3}})),
	}
	for range 3 {
		for _, p := range payloads {
			got, err := d.Decode(0, p)
			if err != nil {
				t.Fatal(err)
			}
			want, err := new(Decoder).Decode(0, p)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Events) != len(want.Events) || len(got.Events) > 0 && !reflect.DeepEqual(got.Events, want.Events) {
				t.Errorf("%d events, want %d", len(got.Events), len(want.Events))
			}
		}
	}
}

func TestMessages(t *testing.T) {
	seq, end := "\x00\x00\x00\x00\x00\x00\x04\xd2", strings.Repeat("\xff", 8)
	for name, test := range map[string]struct {
		frames   []string
		live     bool
		replayed bool
		end      bool
	}{
		"live, or an old answer": {[]string{"", seq, "p"}, true, true, false},
		"with a topic":           {[]string{"kv", seq, "p"}, true, false, false},
		"new answer":             {[]string{"", "kv", seq, "p"}, false, true, false},
		"old end":                {[]string{"", end, ""}, false, true, true},
		"new end":                {[]string{"", "", end, ""}, false, true, true},
		"two frames":             {[]string{seq, "p"}, false, false, false},
		"five frames":            {[]string{"", "kv", seq, "p", ""}, false, false, false},
		"short number":           {[]string{"", seq[1:], "p"}, false, false, false},
		"long number":            {[]string{"", "", seq + "x", "p"}, false, false, false},
		"end with a batch":       {[]string{"", end, "p"}, false, false, false},
		"nothing":                {nil, false, false, false},
	} {
		frames := make([][]byte, len(test.frames))
		for i, f := range test.frames {
			frames[i] = []byte(f)
		}
		m, err := parseLive(frames)
		if (err == nil) != test.live || err != nil && !errors.Is(err, ErrMessage) || err == nil && (m.seq != 1234 || string(m.payload) != "p") {
			t.Errorf("%s, live: %+v, %v", name, m, err)
		}
		m, last, err := parseReplayed(frames)
		if (err == nil) != test.replayed || err != nil && !errors.Is(err, ErrMessage) || last != test.end || err == nil && !last && m.seq != 1234 {
			t.Errorf("%s, replayed: %+v, %v, %v", name, m, last, err)
		}
	}
	if got := replayRequest(1234); len(got) != 2 || len(got[0]) != 0 || string(got[1]) != seq {
		t.Errorf("request %q", got)
	}
}

func unhex(text string) []byte {
	b, err := hex.DecodeString(text)
	if err != nil {
		panic(err)
	}
	return b
}

func FuzzDecode(f *testing.F) {
	for _, r := range recordings(f) {
		f.Add(r.frames(f)[2])
	}
	f.Add(batch(stored("extra_keys", list{nil, list{"a", list{"b", 1}}}), list{"BlockRemoved", list{[]byte(digest32)}, "CPU"}, "AllBlocksCleared", 5))
	f.Add(batch(list{"BlockStored", []int{1}, nil, list{list{1, 2}}, 1}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		var d Decoder
		before := bytes.Clone(payload)
		got, err := d.Decode(1, payload)
		if !bytes.Equal(before, payload) {
			t.Fatal("the payload was written to")
		}
		if err != nil {
			if !errors.Is(err, ErrBatch) {
				t.Fatal(err)
			}
			return
		}
		values := 0
		for _, e := range got.Events {
			if e.Kind < Stored || e.Kind > Cleared || e.Kind == Stored && e.BlockSize == 0 {
				t.Fatalf("event %+v", e)
			}
			if e.NextTokens != nil && len(e.NextTokens) != len(e.Tokens) {
				t.Fatalf("%d tokens, %d next ones", len(e.Tokens), len(e.NextTokens))
			}
			values += len(e.Hashes) + len(e.Tokens) + len(e.ExtraKeys)
		}
		if values > len(payload) {
			t.Fatalf("%d values from %d bytes", values, len(payload))
		}
		again, err := d.Decode(1, payload)
		if err != nil || len(again.Events) != len(got.Events) || again.SkippedWhy != got.SkippedWhy {
			t.Fatalf("the second time: %+v, %v", again, err)
		}
	})
}
