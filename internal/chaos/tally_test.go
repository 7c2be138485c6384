package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// tally sums up what schedules were about, for the summary: a check that meets nothing proves nothing.
type tally struct {
	schedules, events, legs, answers, exempt, aborts, stale int

	moments   map[string]int // cancels, by what they hit
	ways      map[word]int
	faults    map[word]int
	terminals map[string]int
	drains    map[string]int
	refusals  map[string]int
	releases  map[string]int
	kvEvents  map[string]int
	cover     cover
}

func newTally() *tally {
	return &tally{
		moments: map[string]int{}, ways: map[word]int{}, faults: map[word]int{}, terminals: map[string]int{}, drains: map[string]int{},
		refusals: map[string]int{}, releases: map[string]int{}, kvEvents: map[string]int{},
		cover: newCover(),
	}
}

func list[K cmp.Ordered](counts map[K]int) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%v %d", key, counts[key]))
	}
	return strings.Join(parts, ", ")
}

func (t *tally) String() string {
	return fmt.Sprintf("%d schedules, %d events, %d requests, %d whole answers compared (%d exempt), %d Aborts, %d reads of blocks not held any more; "+
		"cancels by moment: %s; by way: %s; faults: %s; terminals: %s; drains: %s; refusals: %s; releases: %s; KV events: %s",
		t.schedules, t.events, t.legs, t.answers, t.exempt, t.aborts, t.stale,
		list(t.moments), list(t.ways), list(t.faults), list(t.terminals), list(t.drains), list(t.refusals), list(t.releases), list(t.kvEvents))
}

// missing lists what no schedule was about, or no blocks were released by.
func (t *tally) missing() []string {
	var none []string
	for _, way := range ways {
		if t.ways[way] == 0 {
			none = append(none, string(way))
		}
	}
	for _, fault := range faults {
		if t.faults[fault] == 0 {
			none = append(none, string(fault))
		}
	}
	for _, x := range excuses {
		if !x.rare && t.releases["expiry: "+x.why] == 0 {
			none = append(none, x.why)
		}
	}
	if pairs, _, _ := t.cover.empty(); len(pairs) > 0 {
		none = append(none, pairs...)
	}
	for _, kind := range []string{"stored", "removed"} {
		if t.kvEvents[kind] == 0 {
			none = append(none, kind)
		}
	}
	for _, m := range []map[string]int{t.moments, t.refusals, t.drains, t.terminals} {
		if len(m) < 5 {
			none = append(none, list(m))
		}
	}
	return none
}
