package harness

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

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

// TestStopEndsChildren starts a shell whose child ignores SIGTERM: the whole group is gone after Stop.
func TestStopEndsChildren(t *testing.T) {
	p := Start(t, "shell", nil, AtOnce, "/bin/sh", "-c", `trap "" TERM; sleep 600 & echo child $!; wait`)
	p.WaitLog(t, "child", 10*time.Second)
	p.Stop(AtOnce)
	if !p.Exited() {
		t.Error("Stop returned before the end")
	}
	Poll(t, "the group to be gone", 10*time.Second, func() error {
		if err := syscall.Kill(-p.cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
			return errNotYet // killed, and waiting to be reaped
		}
		return nil
	})
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
