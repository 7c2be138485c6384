// Command testsum runs go test one or more times and says how it went.
//
// It reads the stream of `go test -json`, prints one line a package as go test itself does, the output of every test
// that failed, the reason of every test that was skipped, and closes with one plain line over all runs:
//
//	123 passed, 0 failed, 1 skipped
//
// A line that a package prints outside of its tests and that begins with "== " is a result of its own, and shown; so is
// what a test logs behind "SUMMARY: ", also when it passes. Tests of 20 s and more get a line of their own.
//
// Subtests count as tests. Runs are separated by "--"; a run that begins with "-C DIR" tests another module:
//
//	testsum -race ./... -- -C interop ./...
//
// The exit status is 1 when a test or a build failed, or when go test itself could not run. With CI=true a skipped
// test is a failure too: a test that silently does not run there proves nothing.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	sum := newSummary(os.Stdout)
	for run := range runs(os.Args[1:]) {
		err := goTest(ctx, sum, run)
		if ctx.Err() != nil {
			err = errInterrupted
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "testsum:", err)
			sum.broken = true
		}
		if ctx.Err() != nil {
			break
		}
	}
	ok := sum.close(os.Getenv("CI") == "true")
	stop()
	if !ok {
		os.Exit(1)
	}
}

var errInterrupted = errors.New("interrupted")

// endTime is how long tests that are interrupted may take to end what they have started.
const endTime = 30 * time.Second

// runs splits the command line at "--".
func runs(args []string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for {
			i := slices.Index(args, "--")
			if i < 0 {
				yield(args)
				return
			}
			if !yield(args[:i]) {
				return
			}
			args = args[i+1:]
		}
	}
}

// goTest runs go test with args and feeds its events to sum. The error is about running it, not about failing tests.
func goTest(ctx context.Context, sum *summary, args []string) error {
	line := []string{"test"}
	if len(args) > 1 && args[0] == "-C" { // must stay the first flag
		line, args = append(line, args[:2]...), args[2:]
	}
	cmd := exec.CommandContext(ctx, "go", append(append(line, "-json"), args...)...)
	cmd.Stderr = os.Stderr
	// From a terminal an interrupt comes to the tests as well as to go test, which then waits for them.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = endTime
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("pipe: %w", err)
	}
	err = cmd.Start()
	if err != nil {
		return fmt.Errorf("start go test: %w", err)
	}
	failedBefore := sum.failed
	sum.read(out)
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && sum.failed > failedBefore {
		return nil // the status only repeats what the events said
	}
	if err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return nil
}

// event is one line of `go test -json`: see `go doc test2json` and `go help buildjson`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output and build failures
	Test       string
	Output     string
	Elapsed    float64
}

type summary struct {
	out     io.Writer
	output  map[string]*strings.Builder // by package and test, until the test ends
	saying  map[string]string           // likewise: the summary of which not all is there yet
	failing map[string]bool             // packages in which a test failed and was counted
	skips   []string
	passed  int
	failed  int
	broken  bool // go test did not run to its end
}

func newSummary(out io.Writer) *summary {
	return &summary{out: out, output: map[string]*strings.Builder{}, saying: map[string]string{}, failing: map[string]bool{}}
}

// read takes events until the stream ends. Lines that are no events are passed on.
func (s *summary) read(r io.Reader) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				s.add(e)
			} else {
				_, _ = s.out.Write(line)
			}
		}
		if err != nil {
			return
		}
	}
}

// long is how many seconds make a test worth a line although it passed, so that one can see where the time goes.
const long = 20

// said passes on what a test says behind "SUMMARY: ". Of a long line each event has a part.
func (s *summary) said(key string, e event) {
	said, begun := s.saying[key]
	if !begun {
		if _, said, begun = strings.Cut(e.Output, ": SUMMARY: "); !begun {
			return
		}
	} else {
		said += e.Output
	}
	if !strings.HasSuffix(said, "\n") {
		s.saying[key] = said
		return
	}
	delete(s.saying, key)
	if len(said) > wide {
		said = strings.ReplaceAll(said, "; ", ";\n        ")
	}
	fmt.Fprintf(s.out, "    %s: %s", e.Test, said)
}

// wide is how long a summary may be before it is folded.
const wide = 160

// shown are the beginnings of a package's own lines that are passed on.
var shown = []string{"ok ", "FAIL\t", "== "}

func (s *summary) add(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		if e.Test == "" && slices.ContainsFunc(shown, func(start string) bool { return strings.HasPrefix(e.Output, start) }) {
			fmt.Fprint(s.out, e.Output)
		}
		if e.Test != "" {
			s.said(key, e)
		}
		if s.output[key] == nil {
			s.output[key] = &strings.Builder{}
		}
		s.output[key].WriteString(e.Output)
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "pass", "skip", "fail":
		s.end(e, s.text(key))
		delete(s.output, key)
		if e.Test == "" && e.Action == "fail" {
			s.unfinished(e.Package)
		}
	}
}

// unfinishedLines bounds what is shown of a test that never ended: a crash begins with its reason, and its list of
// goroutines can have thousands of lines.
const unfinishedLines = 100

// unfinished shows what the tests of a failed package said that never ended: when a test binary dies (a signal, a time
// limit), go test gives the reason as output of the test that was running, and ends no test.
func (s *summary) unfinished(pkg string) {
	for _, key := range slices.Sorted(maps.Keys(s.output)) {
		if !strings.HasPrefix(key, pkg+" ") {
			continue
		}
		fmt.Fprintf(s.out, "--- NOT ENDED %s\n", key)
		lines := 0
		for line := range strings.Lines(s.text(key)) {
			if lines++; lines > unfinishedLines {
				fmt.Fprintln(s.out, "...")
				break
			}
			fmt.Fprint(s.out, line)
		}
		delete(s.output, key)
	}
}

func (s *summary) text(key string) string {
	if b := s.output[key]; b != nil {
		return b.String()
	}
	return ""
}

// end counts a test that ended. A package that failed without a failing test (it did not build, it panicked outside a
// test, TestMain gave up) counts as one failure; packages are otherwise not counted.
func (s *summary) end(e event, text string) {
	switch {
	case e.Action == "fail" && (e.Test != "" || !s.failing[e.Package]):
		s.failed++
		s.failing[e.Package] = true
		fmt.Fprintf(s.out, "--- FAILED %s %s (%.1f s)\n%s", e.Package, e.Test, e.Elapsed, text)
	case e.Test == "":
	case e.Action == "pass":
		s.passed++
		if e.Elapsed >= long && !strings.Contains(e.Test, "/") {
			fmt.Fprintf(s.out, "    %s: passed in %.0f s\n", e.Test, e.Elapsed)
		}
	case strings.HasPrefix(e.Test, "Fuzz") && strings.Contains(e.Test, "/"):
		// An input of a fuzz corpus that its target discards: nothing is left untested.
	case e.Action == "skip":
		s.skips = append(s.skips, fmt.Sprintf("SKIPPED %s %s: %s", e.Package, e.Test, reason(text)))
	}
}

// reason is what t.Skip said, without the lines that go test adds around it.
func reason(text string) string {
	var said []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") && line != "" {
			said = append(said, line)
		}
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}

// close prints the skips and the closing line, and reports whether all is well.
func (s *summary) close(noSkips bool) bool {
	for _, line := range s.skips {
		fmt.Fprintln(s.out, line)
	}
	if noSkips && len(s.skips) > 0 {
		fmt.Fprintln(s.out, "skipped tests count as failed here (CI=true)")
		s.failed += len(s.skips)
		s.skips = nil
	}
	tail := ""
	if len(s.skips) > 0 {
		tail = fmt.Sprintf(", %d skipped", len(s.skips))
	}
	fmt.Fprintf(s.out, "\n%d passed, %d failed%s\n", s.passed, s.failed, tail)
	return s.failed == 0 && !s.broken
}
