package handoff_test

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"remora/internal/handoff"
)

var walked = []string{
	"dispatch", "refuse", "refuse+good", "cancel", "headers", "prompt", "tokens", "finish", "finish+params", "aborted", "bad", "bad+tokens",
	"bad+finish", "end", "error", "declined", "timer", "patience", "abort-refused", "lost", "shutdown", "cut",
}

// TestMain has rapid look closer than it does by itself: a step costs next to nothing here.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "5000"); err != nil {
		panic(err)
	}
	os.Exit(m.Run()) // -rapid.checks on the command line comes later and wins
}

// TestWalk feeds every possible sequence of events up to the bound to every kind of request.
func TestWalk(t *testing.T) {
	const depth = 8
	for name, cfg := range configs {
		t.Run(name, func(t *testing.T) {
			sequences := 0
			reached := map[handoff.State]bool{}
			var walk func(w monitor, left int)
			walk = func(w monitor, left int) {
				sequences++
				reached[w.m.State()] = true
				if left == 0 || w.afterDone > 2 {
					return
				}
				for _, word := range walked {
					if !w.possible(word) {
						continue
					}
					next := w
					next.history = slices.Clone(w.history)
					if err := next.step(word); err != nil {
						t.Fatalf("%s: %v", strings.Join(next.history, ", "), err)
					}
					walk(next, left-1)
				}
			}
			walk(*newMonitor(cfg), depth)
			t.Logf("SUMMARY: %d sequences of up to %d of %d events, %d of 6 states", sequences, depth, len(walked), len(reached))
		})
	}
}

// TestLongRuns goes beyond the walk's bound with random sequences.
func TestLongRuns(t *testing.T) {
	for name, cfg := range configs {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newMonitor(cfg)
				for range rapid.IntRange(1, 60).Draw(t, "length") {
					able := slices.DeleteFunc(slices.Clone(walked), func(word string) bool { return !w.possible(word) })
					word := rapid.SampledFrom(able).Draw(t, "event")
					if err := w.step(word); err != nil {
						t.Fatalf("%s: %v", strings.Join(w.history, ", "), err)
					}
				}
			})
		})
	}
}

// TestEveryRequestEnds closes any history the world's way (the timer fires, the stream ends, a cut) and wants done.
func TestEveryRequestEnds(t *testing.T) {
	for name, cfg := range configs {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newMonitor(cfg)
				for range rapid.IntRange(0, 12).Draw(t, "length") {
					able := slices.DeleteFunc(slices.Clone(walked), func(word string) bool { return !w.possible(word) })
					if err := w.step(rapid.SampledFrom(able).Draw(t, "event")); err != nil {
						t.Fatal(err)
					}
				}
				for _, word := range []string{"dispatch", "cancel", "timer", "patience"} {
					if w.m.State() != handoff.Done && w.possible(word) {
						if err := w.step(word); err != nil {
							t.Fatal(err)
						}
					}
				}
				if w.m.State() != handoff.Done {
					t.Fatalf("%s: still %v after the deadline", strings.Join(w.history, ", "), w.m.State())
				}
			})
		})
	}
}
