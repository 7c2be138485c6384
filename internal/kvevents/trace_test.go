package kvevents

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the expected part of the traces; review them as text")

// TestTraces replays testdata/*.trace: a block is a title line that starts with "#", a line "replay:" or "no replay:" and the
// inputs, "----" and one line an input with the actions it causes.
//
// Inputs: up, down, live A5 (message 5 of engine A), replayed A5 (in the answer to the latest question), end and fail (of that
// answer).
func TestTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/*.trace")
	if err != nil || len(files) == 0 {
		t.Fatalf("no traces: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var rewritten strings.Builder
		for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
			head, want, _ := strings.Cut(block, "\n----")
			title, input, ok := strings.Cut(head, "\n")
			if !ok || !strings.HasPrefix(title, "# ") {
				t.Fatalf("%s: a block needs a title and an input line: %q", file, head)
			}
			got := trace(t, input)
			fmt.Fprintf(&rewritten, "%s\n%s\n----\n%s\n\n", title, input, got)
			t.Run(strings.TrimPrefix(title, "# "), func(t *testing.T) {
				if want = strings.TrimPrefix(want, "\n"); got != want && !*update {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
		}
		if *update {
			if err = os.WriteFile(file, []byte(strings.TrimSpace(rewritten.String())+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func trace(t *testing.T, input string) string {
	t.Helper()
	mode, steps, _ := strings.Cut(input, ":")
	m := machine{replay: mode == "replay"}
	var lines []string
	for step := range strings.SplitSeq(steps, ",") {
		step = strings.TrimSpace(step)
		verb, arg, _ := strings.Cut(step, " ")
		var out []action
		switch verb {
		case "up":
			out = m.connected()
		case "down":
			out = m.disconnected()
		case "live":
			out = m.live(named64(t, arg))
		case "replayed":
			out = m.replayed(m.question, named64(t, arg))
		case "end":
			out = m.answered(m.question, nil)
		case "fail":
			out = m.answered(m.question, errors.New("refused"))
		default:
			t.Fatalf("unknown input %q", step)
		}
		lines = append(lines, fmt.Sprintf("%-12s %s", step, actionTexts(out)))
	}
	return strings.Join(lines, "\n")
}

// named64 makes message 5 of engine A from "A5".
func named64(t *testing.T, text string) message {
	t.Helper()
	seq, err := strconv.ParseUint(text[1:], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return message{seq, []byte(text), uint64(text[0])<<32 + seq}
}

func actionTexts(actions []action) string {
	var out []string
	for _, a := range actions {
		switch a.kind {
		case deliver:
			out = append(out, string(a.message.payload))
		case gap:
			out = append(out, fmt.Sprintf("gap(%d: %s)", a.lost, a.why))
		case reset:
			out = append(out, fmt.Sprintf("reset(%s)", a.why))
		case ask:
			text := fmt.Sprintf("ask(%d)", a.from)
			if a.pause > 0 {
				text = fmt.Sprintf("ask(%d in %s)", a.from, a.pause)
			}
			out = append(out, text)
		case hush:
			out = append(out, "hush")
		}
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, " ")
}
