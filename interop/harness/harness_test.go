package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m.Run) }

func TestMetricsAddUpLabels(t *testing.T) {
	got := parseMetrics("# HELP a x\n# TYPE a gauge\na{x=\"1 2\"} 1.5\na{x=\"3\"} 2\nb 0\nc 1e3\n\nbroken\n")
	for name, want := range map[string]float64{"a": 3.5, "b": 0, "c": 1000} {
		if got[name] != want {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
	if len(got) != 3 {
		t.Errorf("samples %v", got)
	}
}

func TestCountsByLabel(t *testing.T) {
	got := counts("a{x=\"1\",y=\"b c\"} 2\na{y=\"b c\"} 3\na{x=\"1\"} 5\nab{y=\"d\"} 7\na{y=\"e\"} 0\n", "a", "y")
	if want := map[string]float64{"b c": 5, "e": 0}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestPortsDiffer(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		port := FreePort(t)
		if seen[port] || port < firstPort || port > lastPort {
			t.Errorf("port %d", port)
		}
		seen[port] = true
	}
}

// TestConsole runs a body that fails half-way: cleanups run, last first, and the failure is reported.
func TestConsole(t *testing.T) {
	var out bytes.Buffer
	var dir string
	ok := Run(t.Context(), &out, func(c *Console) {
		c.Cleanup(func() { c.Logf("first in, last out") })
		dir = c.TempDir()
		Poll(c, "the moon", time.Minute, func() error { return Final(errors.New("it is day")) })
		c.Logf("never said")
	})
	if ok {
		t.Error("a fatal error is reported as well")
	}
	if want := "error: waiting for the moon: it is day\nfirst in, last out\n"; out.String() != want {
		t.Errorf("said %q, want %q", out.String(), want)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the temporary folder is still there: %v", err)
	}
}

func TestConsoleInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	ok := Run(ctx, &out, func(c *Console) { Poll(c, "nothing", time.Minute, func() error { return errNotYet }) })
	if !ok || out.Len() > 0 {
		t.Errorf("an interrupt is no failure: %v, %q", ok, out.String())
	}
}

// child is a shell script whose child ignores SIGTERM and is in a process group of its own, as a real engine's are.
const child = `set -m; trap "" TERM; sleep 600 & echo "child $!"; wait`

// TestStopEndsChildren: all that a program has started is gone after Stop.
func TestStopEndsChildren(t *testing.T) {
	p := Start(t, "shell", nil, AtOnce, "bash", "-c", child)
	p.WaitLog(t, "child", 10*time.Second)
	if n := len(p.Session()); n != 2 {
		t.Errorf("%d processes, want the shell and its child", n)
	}
	p.Stop(AtOnce)
	if left := p.Session(); !p.Exited() || len(left) > 0 {
		t.Errorf("Stop returned before the end of %v", left)
	}
}

// interrupted tells a copy of this test binary that it is the one to be interrupted.
const interrupted = "REMORA_INTERRUPTED"

// TestInterrupt tells a test binary to end in mid-test: nothing that it started runs on, and its temporary folder is gone.
func TestInterrupt(t *testing.T) {
	if os.Getenv(interrupted) != "" {
		p := Start(t, "shell", nil, AtOnce, "bash", "-c", child)
		p.WaitLog(t, "child", 10*time.Second)
		fmt.Fprintln(os.Stdout, "session", p.cmd.Process.Pid, os.Getenv("TMPDIR"))
		<-p.Done()
		<-make(chan struct{}) // the test does not get to its end by itself
	}
	own := Start(t, "tests", []string{interrupted + "=1"}, AtOnce, os.Args[0], "-test.run=^TestInterrupt$")
	own.WaitLog(t, "session ", 10*time.Second)
	var leader int
	var folder string
	_, told, _ := strings.Cut(own.Log(), "session ")
	if _, err := fmt.Sscan(told, &leader, &folder); err != nil {
		t.Fatalf("%v: %s", err, own.Log())
	}
	if _, err := os.Stat(folder); err != nil {
		t.Error(err)
	}
	own.Signal(syscall.SIGINT)
	if code := own.WaitExit(t, 10*time.Second); code != 130 {
		t.Errorf("exit status %d", code)
	}
	if left := session(leader); len(left) > 0 {
		t.Errorf("still there: %v", left)
	}
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", folder, err)
	}
}

func TestExitStatusAndEnvironment(t *testing.T) {
	t.Setenv("DYN_NAMESPACE", "somebody-elses")
	p := Start(t, "shell", []string{"MINE=1"}, AtOnce, "/bin/sh", "-c", `echo "[$DYN_NAMESPACE][$MINE]"; exit 3`)
	if code := p.WaitExit(t, 10*time.Second); code != 3 {
		t.Errorf("exit status %d", code)
	}
	if got := strings.TrimSpace(p.Log()); got != "[][1]" {
		t.Errorf("environment: %s", got)
	}
}

// TestStream reads events as the stock frontend sends them: comments, a usage chunk, an error, the end mark.
func TestStream(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(": keep-alive\n\n" +
			`data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n" +
			`data: {"choices":[{"text":"b","finish_reason":"stop","logprobs":{"x":1}}]}` + "\n\n" +
			`data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}` + "\n\n" +
			`data: {"error":{"code":503}}` + "\n\ndata: [DONE]\n\n"))
	}))
	t.Cleanup(server.Close)
	c := NewClient(1)
	c.URL = server.URL
	a := c.Ask(t, Request{Prompt: "x", Stream: true})
	if a.Text != "ab" || a.Chunks != 2 || a.Finish != "stop" || a.Usage.Prompt != 3 || a.Usage.Completion != 2 ||
		len(a.Logprobs) != 1 || a.Error != `{"code":503}` {
		t.Errorf("%+v", a)
	}
}
