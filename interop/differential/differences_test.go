package differential

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"remora/interop/harness"
)

// difference is one way in which the two may differ. It covers gaps, and fails the tests when nothing needs it any more.
type difference struct {
	name string
	// cases, path, rust and remora are regular expressions, each for the whole text: "role/group/case" and the parts of the
	// gap. An empty one takes everything.
	cases, path, rust, remora string
	// row is the first cell of the row in docs/differences.md that tells users of it.
	row    string
	reason string
	// standing: it is in nearly every answer, so that a case with nothing else counts as equal.
	standing bool
}

// tally counts what judge has found.
type tally struct {
	mu                       sync.Mutex
	equal, listed, different int            // cases; guarded by mu
	used                     map[string]int // gaps by name of the difference; guarded by mu
}

// compiled are the differences with their expressions.
type compiled struct {
	difference

	patterns [4]*regexp.Regexp
}

// counted is what the whole run came to; the sidecars of all groups report here.
var counted = tally{used: map[string]int{}}

var listed = func() (all []compiled) {
	for _, d := range differences {
		c := compiled{difference: d}
		for i, text := range []string{d.cases, d.path, d.rust, d.remora} {
			if text == "" {
				text = ".*"
			}
			c.patterns[i] = regexp.MustCompile(`^(?s:` + text + `)$`)
		}
		all = append(all, c)
	}
	return all
}()

func (c *compiled) covers(name string, g gap) bool {
	for i, text := range []string{name, g.path, g.rust, g.remora} {
		if !c.patterns[i].MatchString(text) {
			return false
		}
	}
	return true
}

// judge fails the test for every gap that is not listed. name is "role/group/case".
func judge(t *testing.T, name string, rust, remora observation) {
	t.Helper()
	found := gaps(rust, remora)
	unknown, known := 0, 0
	for _, g := range found {
		cover := ""
		for i := range listed {
			if listed[i].covers(name, g) {
				cover = listed[i].name
				if !listed[i].standing {
					known++
				}
				break
			}
		}
		if cover == "" {
			unknown++
			t.Errorf("%s: %v", name, g)
		}
		counted.mu.Lock()
		counted.used[cover]++
		counted.mu.Unlock()
	}
	counted.mu.Lock()
	defer counted.mu.Unlock()
	switch {
	case unknown > 0:
		counted.different++
	case known > 0:
		counted.listed++
	default:
		counted.equal++
	}
}

// TestListedDifferences looks for each difference's row in the table that users read. That every difference is still needed is
// checked in TestMain, after everything has run.
func TestListedDifferences(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(harness.Root(t), "docs", "differences.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			rows[strings.TrimSpace(cells[1])] = true
		}
	}
	names := map[string]bool{}
	for _, d := range differences {
		if !rows[d.row] {
			t.Errorf("%s: docs/differences.md has no row %q", d.name, d.row)
		}
		if d.reason == "" || names[d.name] {
			t.Errorf("%q: every difference has a name of its own and a reason", d.name)
		}
		names[d.name] = true
	}
}
