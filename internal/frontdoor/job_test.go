package frontdoor

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/protocol"
)

// TestLimits: what would never end by itself ends at its limit, and the worker is told.
func TestLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		stuck bool
		run   func(j *job, c *fakeCall) error
		limit time.Duration
		want  error
	}{
		"send": {true, func(j *job, _ *fakeCall) error {
			_, _, err := j.send(j.served.prefill, func(Instance) *protocol.PreprocessedRequest { return j.request })
			return err
		}, sendLimit, context.DeadlineExceeded},
		"prefill": {false, func(j *job, _ *fakeCall) error {
			_, _, err := j.prefill()
			if !(<-j.plane.(*fakePlane).calls).isKilled() {
				t.Error("the prefill worker was not told")
			}
			return err
		}, prefillLimit, context.DeadlineExceeded},
		"tail": {false, func(j *job, c *fakeCall) error { return tail(j.base, c) }, tailLimit, errNoEnd},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				plane := newFakePlane()
				plane.stuck = tc.stuck
				j := &job{
					base: t.Context(), plane: plane, log: slog.New(slog.DiscardHandler), request: new(protocol.PreprocessedRequest),
					served: &served{prefill: []Instance{{ID: 1}}, turn: new(turn)},
				}
				began := time.Now()
				err := tc.run(j, &fakeCall{})
				if took := time.Since(began); took != tc.limit || !errors.Is(err, tc.want) {
					t.Errorf("%v after %v", err, took)
				}
				if status := workerError(err, false).status; status != http.StatusGatewayTimeout {
					t.Errorf("the client is told %d", status)
				}
			})
		})
	}
}

// TestCutWhileSending: the cut does not wait for a worker that takes its time to acknowledge.
func TestCutWhileSending(t *testing.T) {
	d := openDoor(t, func(c *Config) { c.Plane.(*fakePlane).stuck = true })
	d.serve(protocol.Aggregated)
	answer := d.post(completionPath, promptBody(""))
	d.call()
	d.stop()
	d.cut()
	d.must(d.ended())
	if r := <-answer; r.status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// TestDecodeWorkersOfTheMoment: a prefill takes its time, so the decode workers are those at its end.
func TestDecodeWorkersOfTheMoment(t *testing.T) {
	d := openDoor(t, nil)
	d.serve(protocol.Prefill, protocol.Decode)
	answer := d.post(completionPath, promptBody(""))
	p := d.call()
	d.putCard(protocol.Decode, 3, cardOf(protocol.Decode))
	d.putInstance(protocol.Decode, 3)
	d.must(d.store.Delete(t.Context(), discovery.Instances, address(protocol.Decode).Key(2)))
	d.must(d.store.Delete(t.Context(), discovery.ModelCards, address(protocol.Decode).Key(2)))
	d.await(func() bool {
		workers := d.server.registry.table.Load().served["tiny"].front
		return len(workers) == 1 && workers[0].ID == 3
	})
	p.handoff(handoffParams())
	c := d.call()
	if c.to.ID != 3 {
		t.Errorf("worker %d", c.to.ID)
	}
	c.accept()
	c.finish(protocol.FinishStop)
	if r := <-answer; r.status != http.StatusOK {
		t.Errorf("%d %s", r.status, r.body)
	}
}
