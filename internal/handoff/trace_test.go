package handoff_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"remora/internal/handoff"
)

var update = flag.Bool("update", false, "rewrite the expected part of the traces; review them as text")

// events gives the words of the traces. "tokens+finish" is a message with a token and finish_info.
var events = map[string]handoff.Event{
	"dispatch":      {Kind: handoff.EventDispatch},
	"refuse":        {Kind: handoff.EventRefuse},
	"cancel":        {Kind: handoff.EventCancel},
	"headers":       {Kind: handoff.EventHeaders},
	"prompt":        {Kind: handoff.EventMessage},
	"tokens":        {Kind: handoff.EventMessage, Tokens: true},
	"finish":        {Kind: handoff.EventMessage, Finish: handoff.FinishedWhole},
	"tokens+finish": {Kind: handoff.EventMessage, Tokens: true, Finish: handoff.FinishedWhole},
	"finish+params": {Kind: handoff.EventMessage, Tokens: true, Finish: handoff.FinishedWhole, Params: true},
	"aborted":       {Kind: handoff.EventMessage, Finish: handoff.FinishedAborted},
	"bad":           {Kind: handoff.EventMessage, Bad: true},
	"bad+tokens":    {Kind: handoff.EventMessage, Bad: true, Tokens: true},
	"bad+finish":    {Kind: handoff.EventMessage, Bad: true, Finish: handoff.FinishedWhole},
	"refuse+good":   {Kind: handoff.EventRefuse, Unclaimed: true},
	"declined":      {Kind: handoff.EventEnd, Unclaimed: true},
	"patience":      {Kind: handoff.EventPatience},
	"abort-refused": {Kind: handoff.EventAbortRefused},
	"end":           {Kind: handoff.EventEnd, OK: true},
	"error":         {Kind: handoff.EventEnd},
	"timer":         {Kind: handoff.EventTimer},
	"lost":          {Kind: handoff.EventLost},
	"shutdown":      {Kind: handoff.EventShutdown},
	"cut":           {Kind: handoff.EventCut},
}

// configs gives the words that start a trace.
var configs = map[string]handoff.Config{
	"aggregated": timed(handoff.Config{}),
	"prefill":    timed(handoff.Config{Role: handoff.Prefill}),
	"decode":     timed(handoff.Config{Role: handoff.Decode, HasParams: true}),
	"release":    timed(handoff.Config{Role: handoff.Decode, HasParams: true, Policy: handoff.Release}),
	"no-params":  timed(handoff.Config{Role: handoff.Decode}),
}

func timed(c handoff.Config) handoff.Config {
	c.DrainDeadline, c.AbortPatience, c.ShutdownRead = 30*time.Second, 5*time.Second, time.Second
	return c
}

// TestTraces replays testdata/*.trace: a block is a title line that starts with "#", a line "<config>: event, event, ...",
// "----" and one line an event with the actions it causes and the state it leads to.
func TestTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/*.trace")
	if err != nil || len(files) == 0 {
		t.Fatalf("no traces: %v", err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var rewritten strings.Builder
		for block := range strings.SplitSeq(strings.TrimSpace(string(raw)), "\n\n") {
			head, want, _ := strings.Cut(block, "\n----")
			want = strings.TrimPrefix(want, "\n")
			title, input, ok := strings.Cut(head, "\n")
			if !ok || !strings.HasPrefix(title, "# ") {
				t.Fatalf("%s: a block needs a title and an input line: %q", file, head)
			}
			got := replay(t, file, input)
			fmt.Fprintf(&rewritten, "%s\n%s\n----\n%s\n\n", title, input, got)
			t.Run(filepath.Base(file)+"/"+strings.TrimPrefix(title, "# "), func(t *testing.T) {
				if got != want && !*update {
					t.Errorf("%s\ngot:\n%s\nwant:\n%s", input, got, want)
				}
			})
		}
		if *update {
			if err := os.WriteFile(file, []byte(strings.TrimSuffix(rewritten.String(), "\n")), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func replay(t *testing.T, file, input string) string {
	t.Helper()
	name, list, _ := strings.Cut(input, ": ")
	cfg, ok := configs[name]
	if !ok {
		t.Fatalf("%s: unknown config %q", file, name)
	}
	m := handoff.New(cfg)
	var lines []string
	for word := range strings.SplitSeq(list, ", ") {
		ev, ok := events[word]
		if !ok {
			t.Fatalf("%s: unknown event %q", file, word)
		}
		var acts []string
		for _, a := range m.Step(ev, nil) {
			acts = append(acts, a.String())
		}
		if acts == nil {
			acts = []string{"-"}
		}
		lines = append(lines, fmt.Sprintf("%-14s %s -> %s", word, strings.Join(acts, " "), m.State()))
	}
	return strings.Join(lines, "\n")
}
