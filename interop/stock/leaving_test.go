package stock

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"remora/interop/harness"
)

// endless is a request that would run for a minute.
func endless(mark string) harness.Request {
	r := prompt(mark + ": " + story)
	r.MaxTokens = 6000
	return r
}

func TestClientLeavesAggregated(t *testing.T) {
	for _, kind := range []harness.Kind{harness.Rust, harness.Remora} {
		t.Run(string(kind), func(t *testing.T) {
			d := aggregated(t, kind)
			t.Run("in mid-stream", func(t *testing.T) { leaveMidStream(t, d) })
			t.Run("before the first token", func(t *testing.T) { leaveFrozen(t, d, 0) })
		})
	}
}

func TestClientLeavesPair(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			d := pair(t, k.prefill, k.decode)
			t.Run("in mid-stream", func(t *testing.T) { leaveMidStream(t, d) })
			t.Run("during the prefill", func(t *testing.T) { leaveFrozen(t, d, 0) })
			t.Run("before the first token", func(t *testing.T) {
				before := drains(t, k.decode, d.sidecars[1])
				leaveFrozen(t, d, 1)
				if got := drains(t, k.decode, d.sidecars[1]); k.decode == harness.Remora && got != before+1 {
					t.Errorf("%v hand-offs drained to their release, want 1: the engine noticed the client itself", got-before)
				}
			})
		})
	}
}

// drains are the decodes of clients that went, which Remora read on until the engine had fetched their blocks.
func drains(t *testing.T, kind harness.Kind, s *harness.Sidecar) float64 {
	t.Helper()
	if kind != harness.Remora {
		return 0
	}
	return s.Status.Counts(t, "remora_drains_total", "outcome")["released"]
}

func leaveMidStream(t *testing.T, d *deployment) {
	t.Helper()
	settlesAndGoesOn(t, d, func() {
		s := d.Open(t, endless("mid-stream"))
		s.ReadChunks(t, 3)
		s.Close()
	})
}

// leaveFrozen leaves while the nth engine has the request and stands still.
func leaveFrozen(t *testing.T, d *deployment, n int) {
	t.Helper()
	settlesAndGoesOn(t, d, func() {
		harness.LeaveWhileFrozen(t, d.Frontend, d.sims[n].Process, d.sidecars[n], endless("frozen"))
	})
}

// settlesAndGoesOn checks that everything is given back after leave, and that the next answer is the one of before.
func settlesAndGoesOn(t *testing.T, d *deployment, leave func()) {
	t.Helper()
	before := good(t, d.Frontend, prompt(story[:333])).Text
	harness.WaitSettled(t, d.engines, d.sidecars...)
	leave()
	harness.WaitSettled(t, d.engines, d.sidecars...)
	d.WaitServing(t, model) // an engine that stood still for long is out of routing for a moment
	if after := good(t, d.Frontend, prompt(story[:333])).Text; after != before {
		t.Errorf("the same prompt said %q before and %q after", before, after)
	}
}

// TestFrontendBeforeAndAfter wants a worker to be found by frontends that were there and by those that come.
func TestFrontendBeforeAndAfter(t *testing.T) {
	d := aggregated(t, harness.Remora) // its frontend was there first
	later := d.Cluster.Frontend(t)
	later.WaitServing(t, model)
	good(t, d.Frontend, prompt("before"))
	good(t, later, prompt("after"))
}

// TestStopWhileAnswering wants SIGTERM to take the model away at once and to let a running answer, of six seconds, finish.
func TestStopWhileAnswering(t *testing.T) {
	d := aggregated(t, harness.Remora, "--step-time", "20ms")
	s, worker := d.Open(t, withTokens(endless("stop"), 300)), d.sidecars[0]
	s.ReadChunks(t, 3)
	worker.Signal(syscall.SIGTERM)
	d.WaitGone(t, model, 5*time.Second)
	if n := d.sims[0].Metrics(t)[harness.Running]; n != 1 {
		t.Errorf("the model was listed until the answer was over: %v requests run", n)
	}
	s.ReadAll(t)
	if s.Finish != "length" || s.Error != "" {
		t.Errorf("the running answer ended with finish %q, error %q after %d chunks", s.Finish, s.Error, s.Chunks)
	}
	if code := worker.WaitExit(t, harness.Grace); code != 0 {
		t.Errorf("exit status %d after SIGTERM", code)
	}
	if left := records(t, d.Discovery); len(left) > 0 {
		t.Errorf("left in the discovery folder: %q", left)
	}
}

func withTokens(r harness.Request, n int) harness.Request {
	r.MaxTokens = n
	return r
}

// records are the files in a discovery folder.
func records(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			all = append(all, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestKilledWorkerExpires wants what a dead worker left behind to go away by itself, and its successor to be served.
func TestKilledWorkerExpires(t *testing.T) {
	d := aggregated(t, harness.Remora)
	d.sidecars[0].Stop(harness.AtOnce)
	if len(records(t, d.Discovery)) == 0 {
		t.Error("a killed worker has no records to leave behind: this test shows nothing")
	}
	d.WaitGone(t, model, 30*time.Second) // records expire 10 s after their last touch
	d.add(t, harness.Remora, harness.Aggregated, d.sims[0])
	d.WaitServing(t, model)
	good(t, d.Frontend, prompt("again"))
}
