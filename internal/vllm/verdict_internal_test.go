package vllm

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// verdictRun feeds a verdict and writes down its changes.
type verdictRun struct {
	verdict verdict
	now     time.Time
	changes []string
}

func newVerdictRun() *verdictRun {
	return &verdictRun{verdict: newVerdict("a"), now: time.Unix(1e9, 0)}
}

// step is a word of the small language below: time passes, then something is seen.
func (r *verdictRun) step(word string) (Change, bool) {
	var change Change
	var changed bool
	name, instance, identified := strings.Cut(word, "=")
	switch name {
	case "500ms", "1s", "2s", "1m":
		passed, err := time.ParseDuration(name)
		if err != nil {
			panic(err)
		}
		r.now = r.now.Add(passed)
	case "good":
		change, changed = r.verdict.checked(r.now, checkResult{health: Serving, identified: identified, instance: instance})
	case "bad":
		change, changed = r.verdict.checked(r.now, checkResult{health: "NOT_SERVING"})
	case "miss":
		change, changed = r.verdict.checked(r.now, checkResult{err: errors.New("no answer")})
	case "tells-good":
		change, changed = r.verdict.told(r.now, Serving)
	case "tells-bad":
		change, changed = r.verdict.told(r.now, "NOT_SERVING")
	default:
		panic("unknown word " + word)
	}
	if changed {
		r.changes = append(r.changes, fmt.Sprintf("%s %s %s", word, change.State, change.Instance))
	}
	return change, changed
}

func TestVerdict(t *testing.T) {
	tests := []struct{ name, script, want string }{
		{"all is well", "good 1s good=a tells-good 1m good", ""},
		{"believed at once", "tells-bad", "tells-bad not serving "},
		{"by a check", "bad", "bad not serving "},
		{"one miss", "miss good miss good miss", ""},
		{"two misses", "miss miss miss", "miss gone "},
		{"a miss is forgotten by any answer", "miss bad miss", "bad not serving "},
		{"what Watch tells does not undo a miss", "miss tells-good miss", "miss gone "},
		{"another process", "good=b", "good=b gone "},
		{"and it serves", "good=b 1s good=b", "good=b gone , good=b serving b"},
		{"no instance is an instance", "good=", "good= gone "},
		{"from core death to the end", "tells-bad bad 1m miss miss", "tells-bad not serving , miss gone "},
		{"from gone to not serving", "miss miss 1m bad", "miss gone , bad not serving "},
		{"back after a second", "tells-bad good 500ms good 500ms good", "tells-bad not serving , good serving a"},
		{"not by what Watch tells", "tells-bad tells-good 1s tells-good 1m tells-good", "tells-bad not serving "},
		{"a miss begins the second again", "bad good 500ms miss 500ms good 500ms good 500ms good", "bad not serving , good serving a"},
		{"so does another process", "bad good=b 500ms good=c 500ms good=c", "bad not serving "},
		{"and then it is that one", "bad good=b 500ms good=c 1s good=c", "bad not serving , good=c serving c"},
		{"the next time it takes two", "bad good 1s good bad good 1s good 1s good", "bad not serving , good serving a, bad not serving , good serving a"},
		{"unless it was long ago", "bad good 1s good 1m bad good 1s good", "bad not serving , good serving a, bad not serving , good serving a"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			run := newVerdictRun()
			for word := range strings.FieldsSeq(test.script) {
				run.step(word)
			}
			if got := strings.Join(run.changes, ", "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Whatever is seen: a change is to another state; a bad health and another process never pass unnoticed; back is only an
// engine whose checks were good, of one process, for a second at least; and changes to serving are bounded.
func TestVerdictHolds(t *testing.T) {
	words := rapid.SampledFrom([]string{
		"500ms", "500ms", "500ms", "1s", "1s", "2s", "1m", "good", "good", "good=a", "good=a", "good=b", "bad", "miss", "tells-good", "tells-bad",
	})
	rapid.Check(t, func(t *rapid.T) {
		run := newVerdictRun()
		script := rapid.SliceOfN(words, 1, 200).Draw(t, "script")
		state, instance := EngineServing, "a"
		misses := 0
		var goodSince time.Time
		var ups []time.Time
		for i, word := range script {
			change, changed := run.step(word)
			name, told, identified := strings.Cut(word, "=")
			if changed && change.State == state {
				t.Fatalf("%v: %v again", script[:i+1], state)
			}
			switch name {
			case "bad", "tells-bad":
				misses, goodSince = 0, time.Time{}
				if run.verdict.state != EngineNotServing {
					t.Fatalf("%v: %v", script[:i+1], run.verdict.state)
				}
			case "miss":
				misses++
				goodSince = time.Time{}
				if misses >= 2 && run.verdict.state != EngineGone {
					t.Fatalf("%v: %v", script[:i+1], run.verdict.state)
				}
			case "good":
				misses = 0
				if identified && told != instance {
					if run.verdict.state == EngineServing {
						t.Fatalf("%v: another process is taken for the first", script[:i+1])
					}
					instance, goodSince = told, time.Time{}
				}
				if goodSince.IsZero() {
					goodSince = run.now
				}
			}
			if changed && change.State == EngineServing {
				if name != "good" || run.now.Sub(goodSince) < holdFirst || change.Instance != instance {
					t.Fatalf("%v: %+v", script[:i+1], change)
				}
				ups = append(ups, run.now)
			}
			if changed {
				state = change.State
			}
		}
		// Six within a minute are impossible: between them lie 2, 4, 8, 16 and 32 s, or a minute of service.
		for i := range len(ups) - 6 {
			if ups[i+6].Sub(ups[i]) < steadyAfter {
				t.Fatalf("%v: seven returns within %v", script, ups[i+6].Sub(ups[i]))
			}
		}
	})
}

func TestEngineStateNames(t *testing.T) {
	for state, want := range map[EngineState]string{
		EngineServing: "serving", EngineNotServing: "not serving", EngineGone: "gone", 9: "EngineState(9)",
	} {
		if state.String() != want {
			t.Error(state.String())
		}
	}
}
