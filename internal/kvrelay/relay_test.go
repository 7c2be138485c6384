package kvrelay

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"remora/internal/dynamo/eventplane"
	"remora/internal/kvevents"
)

// sink keeps what a relay publishes.
type sink struct {
	events []eventplane.Event
	lost   int
}

func (s *sink) Publish(events ...eventplane.Event) { s.events = append(s.events, events...) }
func (s *sink) Lost()                              { s.lost++ }

// store is a block of tokens [1,2,3,4] under a hash; change makes it what a test needs.
func store(hash uint64, change func(e *kvevents.Event)) kvevents.Event {
	e := kvevents.Event{Kind: kvevents.Stored, Hashes: []uint64{hash}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 4, Medium: "GPU"}
	if change != nil {
		change(&e)
	}
	return e
}

func remove(hashes ...uint64) kvevents.Event {
	return kvevents.Event{Kind: kvevents.Removed, Hashes: hashes, Medium: "GPU"}
}

// The hashes that routers have for blocks of four tokens.
const (
	plain1234   = 14643705804678351452
	plain5678   = 16777012769546811212
	adapter1234 = 11381080598872079209 // with the adapter "adapter-a"
	salted1234  = 12236259103925738072 // with the salt "tenant-1"
)

func block(hash, tokens uint64, mm ...uint64) eventplane.Block {
	return eventplane.Block{Hash: hash, TokensHash: tokens, MM: mm}
}

func stored(blocks ...eventplane.Block) eventplane.Event {
	return eventplane.Event{Kind: eventplane.Stored, Blocks: blocks}
}

func behind(parent uint64, e eventplane.Event) eventplane.Event {
	e.Parent, e.HasParent = parent, true
	return e
}

func removed(hashes ...uint64) eventplane.Event {
	return eventplane.Event{Kind: eventplane.Removed, Hashes: hashes}
}

func in(tier eventplane.Tier, e eventplane.Event) eventplane.Event {
	e.Tier = tier
	return e
}

var cleared = eventplane.Event{Kind: eventplane.Cleared}

// texts are extra keys of one block.
func texts(keys ...string) []kvevents.ExtraKey {
	out := make([]kvevents.ExtraKey, len(keys))
	for i, key := range keys {
		out[i].Text = key
	}
	return out
}

const (
	image1 = "00000000000000ff" + "112233445566778899aabbccddeeff00112233445566AABB"
	image2 = "0000000000000001" + "112233445566778899aabbccddeeff001122334455667788"
)

func TestTranslation(t *testing.T) {
	var h eventplane.Hasher
	seed := eventplane.Seed("", "")
	two := func(e *kvevents.Event) { e.Hashes, e.Tokens = []uint64{7, 8}, []uint32{1, 2, 3, 4, 5, 6, 7, 8} }
	parent := func(hash uint64) func(e *kvevents.Event) {
		return func(e *kvevents.Event) { e.Parent, e.HasParent = hash, true }
	}
	both := func(changes ...func(e *kvevents.Event)) func(e *kvevents.Event) {
		return func(e *kvevents.Event) {
			for _, change := range changes {
				change(e)
			}
		}
	}
	salt := func(e *kvevents.Event) { e.ExtraKeys = [][]kvevents.ExtraKey{texts("dynamo-cache-salt:tenant-1")} }
	salted5678 := h.Tokens(eventplane.Seed("", "tenant-1"), []uint32{5, 6, 7, 8}, nil)
	for name, test := range map[string]struct {
		events []kvevents.Event
		want   []eventplane.Event
		counts Counts
	}{
		"one block":            {[]kvevents.Event{store(7, nil)}, []eventplane.Event{stored(block(7, plain1234))}, Counts{Stored: 1}},
		"two blocks":           {[]kvevents.Event{store(7, two)}, []eventplane.Event{stored(block(7, plain1234), block(8, plain5678))}, Counts{Stored: 1}},
		"behind another":       {[]kvevents.Event{store(7, parent(6))}, []eventplane.Event{behind(6, stored(block(7, plain1234)))}, Counts{Stored: 1}},
		"parent 0":             {[]kvevents.Event{store(7, parent(0))}, []eventplane.Event{behind(0, stored(block(7, plain1234)))}, Counts{Stored: 1}},
		"adapter":              {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.LoRAName = "adapter-a" })}, []eventplane.Event{stored(block(7, adapter1234))}, Counts{Stored: 1}},
		"number of an adapter": {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.LoRAID, e.HasLoRAID = 1, true })}, []eventplane.Event{stored(block(7, plain1234))}, Counts{Stored: 1}},
		"session":              {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.SessionID = "s" })}, []eventplane.Event{{Kind: eventplane.Stored, SessionID: "s", Blocks: []eventplane.Block{block(7, plain1234)}}}, Counts{Stored: 1}},

		"surplus tokens":  {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.Tokens = []uint32{1, 2, 3, 4, 5, 6, 7} })}, []eventplane.Event{stored(block(7, plain1234))}, Counts{Stored: 1}},
		"surplus hashes":  {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.Hashes = []uint64{7, 8} })}, []eventplane.Event{stored(block(7, plain1234))}, Counts{Stored: 1}},
		"no whole block":  {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.Tokens = e.Tokens[:3] })}, nil, Counts{Partial: 1}},
		"no hash":         {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.Hashes = nil })}, nil, Counts{Partial: 1}},
		"other size":      {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.BlockSize = 2 })}, nil, Counts{OtherBlockSize: 1}},
		"huge size":       {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.BlockSize = 1 << 63 })}, nil, Counts{OtherBlockSize: 1}},
		"pairs":           {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.NextTokens = []uint32{2, 3, 4, 5} })}, []eventplane.Event{stored(block(7, h.Tokens(seed, []uint32{1, 2, 3, 4, 5}, nil)))}, Counts{Stored: 1}},
		"pairs, a part":   {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.Tokens, e.NextTokens = []uint32{1, 2, 3}, []uint32{2, 3, 4} })}, nil, Counts{Partial: 1}},
		"two of pairs":    {[]kvevents.Event{store(7, both(two, func(e *kvevents.Event) { e.NextTokens = []uint32{2, 3, 4, 5, 6, 7, 8, 9} }))}, []eventplane.Event{stored(block(7, h.Tokens(seed, []uint32{1, 2, 3, 4, 5}, nil)), block(8, h.Tokens(seed, []uint32{5, 6, 7, 8, 9}, nil)))}, Counts{Stored: 1}},
		"removed":         {[]kvevents.Event{remove(7, 8)}, []eventplane.Event{removed(7, 8)}, Counts{Removed: 1}},
		"removed nothing": {[]kvevents.Event{remove()}, nil, Counts{Removed: 1}},
		"cleared":         {[]kvevents.Event{{Kind: kvevents.Cleared}, store(7, nil)}, []eventplane.Event{cleared, stored(block(7, plain1234))}, Counts{Cleared: 1, Stored: 1}},

		"stores that go on":     {[]kvevents.Event{store(7, nil), store(8, parent(7)), store(9, parent(8))}, []eventplane.Event{stored(block(7, plain1234), block(8, plain1234), block(9, plain1234))}, Counts{Stored: 3}},
		"stores side by side":   {[]kvevents.Event{store(7, nil), store(8, parent(7)), store(9, parent(7))}, []eventplane.Event{stored(block(7, plain1234), block(8, plain1234)), behind(7, stored(block(9, plain1234)))}, Counts{Stored: 3}},
		"a removal in between":  {[]kvevents.Event{store(7, nil), remove(5), store(8, parent(7))}, []eventplane.Event{stored(block(7, plain1234)), removed(5), behind(7, stored(block(8, plain1234)))}, Counts{Stored: 2, Removed: 1}},
		"another session":       {[]kvevents.Event{store(7, nil), store(8, both(parent(7), func(e *kvevents.Event) { e.SessionID = "s" }))}, []eventplane.Event{stored(block(7, plain1234)), behind(7, eventplane.Event{Kind: eventplane.Stored, SessionID: "s", Blocks: []eventplane.Block{block(8, plain1234)}})}, Counts{Stored: 2}},
		"another tier":          {[]kvevents.Event{store(7, nil), store(8, both(parent(7), func(e *kvevents.Event) { e.Medium = "CPU" }))}, []eventplane.Event{stored(block(7, plain1234)), in(eventplane.HostPinned, behind(7, stored(block(8, plain1234))))}, Counts{Stored: 2}},
		"removals":              {[]kvevents.Event{remove(1), remove(), remove(2, 3)}, []eventplane.Event{removed(1, 2, 3)}, Counts{Removed: 3}},
		"removals of two tiers": {[]kvevents.Event{remove(1), {Kind: kvevents.Removed, Hashes: []uint64{2}, Medium: "CPU"}}, []eventplane.Event{removed(1), in(eventplane.HostPinned, removed(2))}, Counts{Removed: 2}},

		"own":                {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.Locality = "LOCAL" })}, []eventplane.Event{stored(block(7, plain1234))}, Counts{Stored: 1}},
		"remote":             {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.Locality = "REMOTE" }), {Kind: kvevents.Removed, Hashes: []uint64{7}, Locality: "REMOTE"}}, nil, Counts{Elsewhere: 2}},
		"who knows where":    {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.Locality = "local" })}, nil, Counts{Elsewhere: 1}},
		"owned":              {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.Owned = true })}, nil, Counts{Elsewhere: 1}},
		"unknown medium":     {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.Medium = "gpu" }), {Kind: kvevents.Removed, Hashes: []uint64{7}, Medium: "TAPE"}}, nil, Counts{OtherMedium: 2}},
		"main groups":        {[]kvevents.Event{store(7, group(3, "full_attention")), store(8, group(4, "mla_attention")), store(9, group(5, "sink_full_attention")), removeOf(3, 7)}, []eventplane.Event{stored(block(7, plain1234)), stored(block(8, plain1234)), stored(block(9, plain1234)), removed(7)}, Counts{Stored: 3, Removed: 1}},
		"other groups":       {[]kvevents.Event{store(7, group(0, "sliding_window")), store(8, group(1, "mamba")), removeOf(0, 7), removeOf(1, 8)}, nil, Counts{OtherGroup: 4}},
		"groups of no kind":  {[]kvevents.Event{store(7, group(0, "")), store(8, group(1, "")), removeOf(0, 7), removeOf(1, 8)}, []eventplane.Event{stored(block(7, plain1234)), removed(7)}, Counts{Stored: 1, Removed: 1, OtherGroup: 2}},
		"a group's new kind": {[]kvevents.Event{store(7, group(1, "sliding_window")), store(7, group(1, "full_attention")), removeOf(1, 7)}, []eventplane.Event{stored(block(7, plain1234)), removed(7)}, Counts{Stored: 1, Removed: 1, OtherGroup: 1}},

		"salt":                  {[]kvevents.Event{store(7, salt)}, []eventplane.Event{stored(block(7, salted1234))}, Counts{Stored: 1}},
		"salt of all blocks":    {[]kvevents.Event{store(7, both(two, salt))}, []eventplane.Event{stored(block(7, salted1234), block(8, salted5678))}, Counts{Stored: 1}},
		"salt of what comes":    {[]kvevents.Event{store(7, salt), store(8, parent(7)), remove(7), store(9, parent(8)), store(10, parent(7))}, []eventplane.Event{stored(block(7, salted1234), block(8, salted1234)), removed(7), behind(8, stored(block(9, salted1234))), behind(7, stored(block(10, plain1234)))}, Counts{Stored: 4, Removed: 1}},
		"salt of a block twice": {[]kvevents.Event{store(7, salt), store(7, salt), remove(7), store(8, parent(7))}, []eventplane.Event{stored(block(7, salted1234)), stored(block(7, salted1234)), removed(7), behind(7, stored(block(8, salted1234)))}, Counts{Stored: 3, Removed: 1}},
		"salt is forgotten":     {[]kvevents.Event{store(7, salt), {Kind: kvevents.Cleared}, store(8, parent(7))}, []eventplane.Event{stored(block(7, salted1234)), cleared, behind(7, stored(block(8, plain1234)))}, Counts{Stored: 2, Cleared: 1}},
		"salt of somebody else": {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.ExtraKeys = [][]kvevents.ExtraKey{texts("tenant-1", "dynamo-cache-salt:")} })}, []eventplane.Event{stored(block(7, plain1234))}, Counts{Stored: 1}},
		"salt in a later block": {[]kvevents.Event{store(7, both(two, func(e *kvevents.Event) { e.ExtraKeys = [][]kvevents.ExtraKey{nil, texts("dynamo-cache-salt:tenant-1")} }))}, []eventplane.Event{stored(block(7, plain1234), block(8, plain5678))}, Counts{Stored: 1}},
		"adapter named as salt": {[]kvevents.Event{store(7, both(salt, func(e *kvevents.Event) { e.LoRAName = "dynamo-cache-salt:tenant-1" }))}, []eventplane.Event{stored(block(7, h.Tokens(eventplane.Seed("dynamo-cache-salt:tenant-1", ""), []uint32{1, 2, 3, 4}, nil)))}, Counts{Stored: 1}},
		"adapter, named as salt": {[]kvevents.Event{store(7, func(e *kvevents.Event) {
			e.LoRAName, e.ExtraKeys = "a", [][]kvevents.ExtraKey{texts("a", "dynamo-cache-salt:b")}
		})}, []eventplane.Event{stored(block(7, h.Tokens(eventplane.Seed("a", "b"), []uint32{1, 2, 3, 4}, nil)))}, Counts{Stored: 1}},

		"media": {[]kvevents.Event{store(7, both(two, func(e *kvevents.Event) {
			e.ExtraKeys = [][]kvevents.ExtraKey{texts(image1), {{Text: image2, Offset: -3, HasOffset: true}, {Opaque: true}, {Text: image1, Offset: 1, HasOffset: true}}}
		}))}, []eventplane.Event{stored(
			block(7, h.Tokens(seed, []uint32{1, 2, 3, 4}, []uint64{0xff}), 0xff),
			block(8, h.Tokens(seed, []uint32{5, 6, 7, 8}, []uint64{1, 0xff}), 1, 0xff),
		)}, Counts{Stored: 1}},
		"no media": {[]kvevents.Event{store(7, func(e *kvevents.Event) {
			e.ExtraKeys = [][]kvevents.ExtraKey{texts(image1[1:], image1+"0", "g"+image1[1:], "")}
		})}, []eventplane.Event{stored(block(7, plain1234))}, Counts{Stored: 1}},
		"adapter as image": {[]kvevents.Event{store(7, func(e *kvevents.Event) {
			e.LoRAName, e.ExtraKeys = image1, [][]kvevents.ExtraKey{texts(image1, image2)}
		})}, []eventplane.Event{stored(block(7, h.Tokens(eventplane.Seed(image1, ""), []uint32{1, 2, 3, 4}, []uint64{1}), 1))}, Counts{Stored: 1}},
		"more keys than is": {[]kvevents.Event{store(7, func(e *kvevents.Event) { e.ExtraKeys = [][]kvevents.ExtraKey{nil, texts(image1)} })}, []eventplane.Event{stored(block(7, plain1234))}, Counts{Stored: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			var out sink
			r := New(Config{BlockSize: 4}, &out)
			r.Batch(&kvevents.Batch{Events: test.events})
			if diff := cmp.Diff(test.want, out.events); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.counts, r.Counts()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func group(index int64, kind string) func(e *kvevents.Event) {
	return func(e *kvevents.Event) { e.Group, e.HasGroup, e.SpecKind = index, true, kind }
}

func removeOf(index int64, hash uint64) kvevents.Event {
	e := remove(hash)
	e.Group, e.HasGroup = index, true
	return e
}

func TestTiers(t *testing.T) {
	for medium, want := range map[string]eventplane.Tier{
		"": eventplane.Device, "GPU": eventplane.Device, "DEVICE": eventplane.Device,
		"CPU": eventplane.HostPinned, "CPU_PINNED": eventplane.HostPinned, "CPU_TIER1": eventplane.HostPinned,
		"CPU_TIER2": eventplane.Disk, "DISK": eventplane.Disk, "NVME": eventplane.Disk, "STORAGE": eventplane.Disk,
		"EXTERNAL": eventplane.External, "NETWORK": eventplane.External, "REMOTE": eventplane.External, "SHARED": eventplane.External,
	} {
		var out sink
		New(Config{}, &out).Batch(&kvevents.Batch{Events: []kvevents.Event{
			store(7, func(e *kvevents.Event) { e.Medium = medium }), {Kind: kvevents.Removed, Hashes: []uint64{7}, Medium: medium},
		}})
		if len(out.events) != 2 || out.events[0].Tier != want || out.events[1].Tier != want {
			t.Errorf("%q: %+v", medium, out.events)
		}
	}
}

func TestGapAndReset(t *testing.T) {
	var out sink
	var log bytes.Buffer
	r := New(Config{Rank: 2, Log: slog.New(slog.NewTextHandler(&log, nil))}, &out)
	salted := store(7, func(e *kvevents.Event) { e.ExtraKeys = [][]kvevents.ExtraKey{texts("dynamo-cache-salt:x")} })
	r.Gap(3, "late")
	r.Batch(&kvevents.Batch{Rank: 2, HasRank: true, Events: []kvevents.Event{salted, store(8, group(1, "full_attention"))}})
	r.Batch(&kvevents.Batch{Rank: 0, HasRank: true})
	r.Batch(&kvevents.Batch{Rank: -1, HasRank: true})
	r.Batch(&kvevents.Batch{})
	if out.lost != 1 || len(out.events) != 2 || len(r.salts) != 1 || len(r.groups) != 1 {
		t.Errorf("%+v, %d salted blocks, groups %v", out, len(r.salts), r.groups)
	}
	r.Reset("new engine")
	if diff := cmp.Diff(cleared, out.events[2]); diff != "" || len(out.events) != 3 || len(r.salts)+len(r.groups) != 0 {
		t.Errorf("%s, %d salted blocks, groups %v", diff, len(r.salts), r.groups)
	}
	if diff := cmp.Diff(Counts{Stored: 2, OtherRank: 2}, r.Counts()); diff != "" {
		t.Error(diff)
	}
	if strings.Count(log.String(), "another one") != 1 {
		t.Error(log.String())
	}
}

// TestMergeBound keeps merged events to what fits into a message; an event that is larger by itself stays whole.
func TestMergeBound(t *testing.T) {
	var events []kvevents.Event
	for i := range uint64(3) {
		e := kvevents.Event{Kind: kvevents.Stored, Parent: i * 5000, HasParent: true, Tokens: make([]uint32, 5000), BlockSize: 1}
		for j := range uint64(5000) {
			e.Hashes = append(e.Hashes, i*5000+j+1)
		}
		events = append(events, e)
	}
	events = append(events, kvevents.Event{Kind: kvevents.Removed, Hashes: make([]uint64, 10_000)}, kvevents.Event{Kind: kvevents.Removed, Hashes: make([]uint64, 1)})
	var out sink
	New(Config{}, &out).Batch(&kvevents.Batch{Events: events})
	if len(out.events) != 5 || len(out.events[0].Blocks) != 5000 || out.events[1].Parent != 5000 || len(out.events[3].Hashes) != 10_000 {
		t.Errorf("%d events", len(out.events))
	}
}
