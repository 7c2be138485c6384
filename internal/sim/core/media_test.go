package core

import (
	"reflect"
	"slices"
	"testing"
)

// TestMediaInEvents: which blocks tell of an item, and where in the block it begins. Blocks have four tokens.
//
// Rules: events-media, media-hash.
func TestMediaInEvents(t *testing.T) {
	b := newBench(t, nil)
	req := greedy("a", prompt(21, 1), 1)
	req.Media = []Media{{ID: "x", Offset: 2, Length: 4}, {ID: "y", Offset: 6, Length: 1}, {ID: "z", Offset: 12, Length: 8}}
	b.run(b.p, req)
	events := b.events[b.p]
	b.wantTold(b.p, "+5")
	want := [][]MediaKey{{{"x", 2}}, {{"x", -2}, {"y", 2}}, nil, {{"z", 0}}, {{"z", -4}}}
	if !reflect.DeepEqual(events[0].Media, want) {
		t.Errorf("%v, want %v", events[0].Media, want)
	}
	names := events[0].Hashes

	other := req
	other.ID, other.Media = "b", slices.Clone(req.Media)
	other.Media[2].ID = "w" // from the fourth block on
	b.run(b.p, other)
	events = b.events[b.p]
	b.wantTold(b.p, "+2>")
	if *events[0].Parent != names[2] || events[0].Hashes[0] == names[3] || !reflect.DeepEqual(events[0].Media, [][]MediaKey{{{"w", 0}}, {{"w", -4}}}) {
		t.Errorf("%+v after %x", events[0], names)
	}

	moved := req
	moved.ID, moved.Media = "c", slices.Clone(req.Media)
	moved.Media[1].Offset = 7 // inside the second block
	b.run(b.p, moved)
	if events = b.events[b.p]; len(events) != 1 || *events[0].Parent != names[0] {
		t.Errorf("an item that stands elsewhere in its block: %+v", events)
	}

	plain := greedy("d", prompt(21, 1), 1)
	b.run(b.p, plain)
	if events = b.events[b.p]; events[len(events)-1].Media != nil || events[len(events)-1].Parent != nil {
		t.Errorf("a prompt without media: %+v", events)
	}
}

// TestLook: what the model sees of an item depends on the item and on how far into it the token is.
func TestLook(t *testing.T) {
	all := []Media{{ID: "x", Offset: 2, Length: 3}, {ID: "y", Offset: 4, Length: 2}}
	seen := map[uint64]int{}
	for pos := range 8 {
		seen[look(all, pos)]++
	}
	if seen[0] != 4 || len(seen) != 5 {
		t.Errorf("%v", seen)
	}
	if look([]Media{{ID: "x", Offset: 3, Length: 3}}, 4) != look([]Media{{ID: "x", Offset: 2, Length: 3}}, 3) {
		t.Error("the same part of an item looks different elsewhere")
	}
}
