package vllm_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/vllm"
	"remora/internal/vllm/vllmtest"
)

// Wherever a Drop falls, the end comes at once, comes once, and the engine sees the reset.
func TestDropAtEveryMoment(t *testing.T) { overBackends(t, testDropAtEveryMoment) }

func testDropAtEveryMoment(t *testing.T, backend vllm.Backend) {
	script := func() []vllmtest.Step {
		return []vllmtest.Step{
			vllmtest.Sleep(time.Second), vllmtest.Headers(),
			vllmtest.Sleep(time.Second), vllmtest.Prompt(3),
			vllmtest.Sleep(time.Second), vllmtest.Tokens(1),
			vllmtest.Sleep(time.Second), vllmtest.Tokens(2),
			vllmtest.Silence(),
		}
	}
	tests := []struct {
		after  time.Duration
		calls  string
		engine string
	}{
		{500 * time.Millisecond, "[end]", "received dropped"},
		{1500 * time.Millisecond, "[headers end]", "received headers dropped"},
		{2500 * time.Millisecond, "[headers prompt 3 end]", "received headers sent dropped"},
		{3500 * time.Millisecond, "[headers prompt 3 tokens [1] end]", "received headers sent dropped"},
		{time.Hour, "[headers prompt 3 tokens [1] tokens [2] end]", "received headers sent dropped"},
	}
	for _, test := range tests {
		t.Run(test.after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := vllmtest.New(t)
				engine.Script("a", script()...)
				client := dialOn(t, backend, engine, nil)
				sink := newRecorder(t, nil)
				stream := client.Open(request("a"), nil, sink)
				time.Sleep(test.after) // the bubble's time
				start := time.Now()
				stream.Drop()
				stream.Drop()
				status := sink.end()
				synctest.Wait()
				if !status.Dropped || status.Transport || status.NotSent || vllm.KindOf(status) != vllm.Cancelled {
					t.Errorf("status %+v", status)
				}
				if waited := time.Since(start); waited != 0 {
					t.Errorf("the end took %v", waited)
				}
				if got := fmt.Sprint(sink.got()); got != test.calls {
					t.Errorf("calls %s, want %s", got, test.calls)
				}
				if got := engine.Of("a"); got != test.engine {
					t.Errorf("engine saw %q, want %q", got, test.engine)
				}
			})
		})
	}
}

func TestDropBeforeAnything(t *testing.T) { overBackends(t, testDropBeforeAnything) }

func testDropBeforeAnything(t *testing.T, backend vllm.Backend) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		client := dialOn(t, backend, engine, nil)
		sink := newRecorder(t, nil)
		client.Open(request("a"), nil, sink).Drop()
		if status := sink.end(); !status.Dropped {
			t.Errorf("status %+v", status)
		} else if status.NotSent {
			synctest.Wait()
			if engine.Count(vllmtest.Received, "a") != 0 {
				t.Error("the engine has a request that was not sent")
			}
		}
	})
}

func TestDropInsideTheSink(t *testing.T) { overBackends(t, testDropInsideTheSink) }

func testDropInsideTheSink(t *testing.T, backend vllm.Backend) {
	for _, at := range []string{"headers", "prompt 3", "tokens [1]"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := vllmtest.New(t)
				// All is sent in one go, so that messages wait here already when Drop is called.
				engine.Script("a", vllmtest.Headers(), vllmtest.Prompt(3), vllmtest.Tokens(1, 2, 3), vllmtest.Silence())
				client := dialOn(t, backend, engine, nil)
				opened := make(chan vllm.Stream, 1)
				var sink *recorder
				before := 0
				sink = newRecorder(t, func(call string) {
					if call == at {
						synctest.Wait()
						before = sink.sinkCalls()
						(<-opened).Drop()
					}
				})
				opened <- client.Open(request("a"), nil, sink)
				if status := sink.end(); !status.Dropped {
					t.Errorf("status %+v", status)
				}
				if got := sink.sinkCalls(); before == 0 || got != before+1 {
					t.Errorf("calls %v: something came between the drop in %q and the end", sink.got(), at)
				}
				synctest.Wait()
				if engine.Live() != 0 {
					t.Error("the engine still runs the request")
				}
			})
		})
	}
}

func TestDropAfterTheEnd(t *testing.T) { overBackends(t, testDropAfterTheEnd) }

func testDropAfterTheEnd(t *testing.T, backend vllm.Backend) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		sink := newRecorder(t, nil)
		stream := dialOn(t, backend, engine, nil).Open(request("a"), nil, sink)
		status := sink.end()
		stream.Drop()
		synctest.Wait()
		if status.Dropped || engine.Count(vllmtest.Dropped, "") != 0 {
			t.Errorf("status %+v, engine saw %v", status, engine.Events())
		}
	})
}
