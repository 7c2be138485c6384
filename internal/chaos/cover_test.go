package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// cell is two values of two axes that came together when a client left.
type cell struct{ a, b word }

// cover counts them, and the moments, ways and roles in threes: a schedule can only show what goes wrong where its axes meet.
type cover struct {
	pairs  map[cell]int
	threes map[[3]word]int
}

func newCover() cover { return cover{pairs: map[cell]int{}, threes: map[[3]word]int{}} }

// The load of a schedule.
const (
	loadAlone word = "alone"
	loadFew   word = "few"
	loadMany  word = "many"
	loadLine  word = "in line" // more requests than a worker has places
)

func (p *plan) load() word {
	switch n := len(p.requests); {
	case p.places < n:
		return loadLine
	case n == 1:
		return loadAlone
	case n < 5:
		return loadFew
	default:
		return loadMany
	}
}

// values are those that a leaving has on each axis; of two faults the schedule counts for the first.
func (p *plan) values(as role, moment, way word) []word {
	return []word{
		moment, way, word(as), "fault " + p.faults[0], p.drops, p.aborts, word("policy " + p.policy.String()), "load " + p.load(),
	}
}

// add counts one client that leaves as its plan says.
func (c *cover) add(p *plan, as role, moment, way word) {
	values := p.values(as, moment, way)
	for i, a := range values {
		for _, b := range values[i+1:] {
			c.pairs[cell{a, b}]++
		}
	}
	c.threes[[3]word{moment, way, word(as)}]++
}

// axes lists the values of each axis.
func axes() [][]word {
	var whens []word
	for _, list := range moments {
		whens = append(whens, list...)
	}
	slices.Sort(whens)
	sorted := func(list []word, prefix word) []word {
		list = slices.Clone(list)
		slices.Sort(list)
		list = slices.Compact(list)
		for i := range list {
			list[i] = prefix + list[i]
		}
		return list
	}
	return [][]word{
		slices.Compact(whens),
		sorted(ways, ""),
		{word(roleAggregated), word(roleDecode), word(rolePrefill)},
		sorted(faults, "fault "),
		{dropAtOnce, dropNext, dropNever},
		{abortWorks, abortUnknown, abortSilent, abortLate},
		{"policy drain", "policy release"},
		{"load " + loadAlone, "load " + loadFew, "load " + loadMany, "load " + loadLine},
	}
}

// barred tells the pairs that no plan has. Not that they would not matter: the left one rules the right one out.
func barred(a, b word) bool {
	is := func(x word, of ...word) bool { return slices.Contains(of, x) }
	switch {
	case slices.Contains(axes()[0], a) && is(b, word(roleAggregated), word(roleDecode), word(rolePrefill)):
		return !slices.Contains(moments[role(b)], a)
	case b == wayDial: // decided before anything else happens
		return a != atSend
	case a == wayDial:
		return false
	// What nothing tells any more: an engine that notices no drop and takes no Abort, or whose READ hangs (see plan.fit).
	case is(a, dropNext, dropNever) && is(b, abortUnknown, abortSilent, abortLate):
		return true
	case a == "fault "+faultReadHung && is(b, dropNext, dropNever):
		return true
	}
	return false
}

// empty lists the pairs that could have come together and did not.
func (c *cover) empty() (none []string, met, least int) {
	least = -1
	all := axes()
	for i, first := range all {
		for _, second := range all[i+1:] {
			for _, a := range first {
				for _, b := range second {
					n := c.pairs[cell{a, b}]
					switch {
					case n > 0:
						met++
						if least < 0 || n < least {
							least = n
						}
					case !barred(a, b):
						none = append(none, fmt.Sprintf("%s with %s", a, b))
					}
				}
			}
		}
	}
	return none, met, least
}

// String is the histogram of moment, way and role, and the rarest of the pairs.
func (c *cover) String() string {
	none, met, least := c.empty()
	rare := slices.SortedFunc(maps.Keys(c.pairs), func(a, b cell) int {
		return cmp.Or(cmp.Compare(c.pairs[a], c.pairs[b]), cmp.Compare(a.a, b.a), cmp.Compare(a.b, b.b))
	})
	var rarest []string
	for _, r := range rare[:min(5, len(rare))] {
		rarest = append(rarest, fmt.Sprintf("%s with %s %d", r.a, r.b, c.pairs[r]))
	}
	var threes []string
	for _, key := range slices.SortedFunc(maps.Keys(c.threes), func(a, b [3]word) int {
		return cmp.Or(cmp.Compare(a[2], b[2]), cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	}) {
		threes = append(threes, fmt.Sprintf("%s/%s/%s %d", key[2], key[0], key[1], c.threes[key]))
	}
	return fmt.Sprintf("%d pairs of {moment, way, role, fault, drop, Abort, policy, load} met, %d not, the rarest %d times (%s); role/moment/way: %s",
		met, len(none), least, strings.Join(rarest, ", "), strings.Join(threes, ", "))
}
