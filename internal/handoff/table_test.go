package handoff_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"remora/internal/handoff"
)

// TestTable checks the transition table of the package documentation against the code: for each kind of request every state
// and event, with all the actions that any history of up to tableDepth events leads to. -update writes it.
func TestTable(t *testing.T) {
	raw, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	const heading = "// # Transitions\n//\n"
	text, got, ok := strings.Cut(string(raw), heading)
	if !ok {
		t.Fatal("doc.go has no section Transitions")
	}
	want := table(t)
	if got == want {
		return
	}
	if !*update {
		t.Fatal("the table in doc.go is not what the machine does: run go test ./internal/handoff -run TestTable -update and review")
	}
	if err := os.WriteFile("doc.go", []byte(text+heading+want), 0o600); err != nil {
		t.Fatal(err)
	}
}

const tableDepth = 6

// rows is what one kind of request does: by state, then by event word, the outcomes seen.
type rows map[handoff.State]map[string]map[string]bool

func table(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("// The transitions, made from the code by TestTable. Per kind of request and state: event, actions, next state; \"or\" where they\n" +
		"// depend on what came before. Events that do nothing in a state are left out, and so are events that can't come there. A\n" +
		"// draining request that becomes done tells its terminal, cancelled or shutdown, unless it has told one already.\n//\n")
	for _, name := range []string{"decode", "release", "prefill", "aggregated"} {
		seen := rows{}
		seen.explore(t, *newMonitor(configs[name]), tableDepth)
		fmt.Fprintf(&b, "// %s:\n//\n", map[string]string{
			"decode":     "Decode with hand-off parameters, policy drain",
			"release":    "Decode with hand-off parameters, policy release",
			"prefill":    "Prefill",
			"aggregated": "Aggregated, encode, and decode without parameters",
		}[name])
		for _, state := range []handoff.State{handoff.Pending, handoff.Opening, handoff.Open, handoff.Streaming, handoff.Draining} {
			for _, word := range slices.Sorted(maps.Keys(seen[state])) {
				outcomes := slices.Sorted(maps.Keys(seen[state][word]))
				fmt.Fprintf(&b, "//\t%-9s  %-13s  %s\n", state, word, strings.Join(outcomes, "\n//\t"+strings.Repeat(" ", 23)+"or "))
			}
		}
		b.WriteString("//\n")
	}
	return strings.TrimSuffix(b.String(), "//\n") + "package handoff\n"
}

// outcome renders what an event led to. Draining requests differ in whether and how they have told their end; that is left out.
func outcome(from handoff.State, acts []string, to handoff.State) string {
	if from == handoff.Draining {
		acts = slices.DeleteFunc(slices.Clone(acts), func(a string) bool { return a == "terminal(cancelled)" || a == "terminal(shutdown)" })
	}
	return strings.TrimSpace(strings.Join(acts, " ") + " -> " + to.String())
}

func (seen rows) explore(t *testing.T, w monitor, left int) {
	t.Helper()
	if left == 0 || w.m.State() == handoff.Done {
		return
	}
	for _, word := range walked {
		if !w.possible(word) {
			continue
		}
		next := w
		next.history = nil
		state := w.m.State()
		probe := w.m
		acts := probe.Step(events[word], nil)
		if err := next.step(word); err != nil {
			t.Fatal(err)
		}
		if len(acts) > 0 || probe.State() != state {
			texts := make([]string, 0, len(acts))
			for _, a := range acts {
				texts = append(texts, a.String())
			}
			if seen[state] == nil {
				seen[state] = map[string]map[string]bool{}
			}
			if seen[state][word] == nil {
				seen[state][word] = map[string]bool{}
			}
			seen[state][word][outcome(state, texts, probe.State())] = true
		}
		seen.explore(t, next, left-1)
	}
}

// TestEveryRowHasATrace wants the traces to pass through every row of the table. The ones that nobody wrote by hand are in
// testdata/rows.trace, with the shortest history that leads there; -update adds what is missing.
func TestEveryRowHasATrace(t *testing.T) {
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		covered := map[string]bool{}
		for _, words := range traced(t)[name] {
			m := handoff.New(configs[name])
			for _, word := range words {
				covered[m.State().String()+" "+word] = true
				m.Step(events[word], nil)
			}
		}
		type node struct {
			w    monitor
			path []string
		}
		queue := []node{{w: *newMonitor(configs[name])}}
		for len(queue) > 0 {
			at := queue[0]
			queue = queue[1:]
			if at.w.m.State() == handoff.Done || len(at.path) == tableDepth-1 {
				continue
			}
			for _, word := range walked {
				if !at.w.possible(word) {
					continue
				}
				next := node{w: at.w, path: append(slices.Clone(at.path), word)}
				next.w.history = nil
				probe := at.w.m
				acts := probe.Step(events[word], nil)
				if err := next.w.step(word); err != nil {
					t.Fatal(err)
				}
				row := at.w.m.State().String() + " " + word
				if (len(acts) > 0 || probe.State() != at.w.m.State()) && !covered[row] {
					covered[row] = true
					missing = append(missing, fmt.Sprintf("# row: %s, %s\n%s: %s\n----", at.w.m.State(), word, name, strings.Join(next.path, ", ")))
				}
				queue = append(queue, next)
			}
		}
	}
	if len(missing) == 0 {
		return
	}
	if !*update {
		t.Fatalf("%d rows have no trace, the first:\n%s\nrun with -update, then TestTraces with -update, and review", len(missing), missing[0])
	}
	old, err := os.ReadFile("testdata/rows.trace")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	text := strings.TrimSpace(strings.TrimSpace(string(old))+"\n\n"+strings.Join(missing, "\n\n")) + "\n"
	if err := os.WriteFile("testdata/rows.trace", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// traced lists the events of every trace, by config.
func traced(t *testing.T) map[string][][]string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.trace")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][][]string{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(string(raw), "\n") {
			if name, list, ok := strings.Cut(line, ": "); ok && configs[name] != (handoff.Config{}) {
				all[name] = append(all[name], strings.Split(list, ", "))
			}
		}
	}
	return all
}
