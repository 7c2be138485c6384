package worker

import (
	"context"
	"time"

	"remora/internal/handoff"
)

const (
	// shutdownRead is how long an unreleased decode is read after its Abort at the end of the shutdown (M5).
	shutdownRead = time.Second
	// settleTime is what requests get after that to deliver their last frames.
	settleTime = 11 * time.Second
	// cutTime is what they get after a cut.
	cutTime = 2 * time.Second
	// pollInterval of the waits of a shutdown.
	pollInterval = 10 * time.Millisecond
)

// shutdown is M5: out of discovery; still taking requests for the grace, because routers lag; then refusing, while answers run
// on; at the end of the patience the rest is told to end, and what does not is cut. A worker without requests does not wait
// beyond the grace, prefill workers included. It returns ErrCut where requests were cut.
func (w *worker) shutdown(cut context.Context) (err error) {
	began := time.Now()
	w.log.Info("shutting down", "requests", w.service.gate.inside(), "grace", w.cfg.GracePeriod, "timeout", w.cfg.ShutdownTimeout)
	w.setReady(false)
	w.unregister(context.Background())
	idle := func() bool { return w.service.gate.inside() == 0 }
	wait(cut, w.cfg.GracePeriod, func() bool { return false })
	w.service.gate.close()
	wait(cut, w.cfg.ShutdownTimeout, func() bool { return idle() && w.service.releasing.Load() == 0 })
	if !idle() && cut.Err() == nil {
		w.log.Warn("answers still run at the end of the shutdown's patience; ending them", "requests", w.service.gate.inside())
		w.service.broadcast(handoff.EventShutdown)
		wait(cut, shutdownRead+settleTime, idle)
	}
	if !idle() {
		w.log.Warn("cutting what is left", "requests", w.service.gate.inside())
		w.service.broadcast(handoff.EventCut)
		wait(context.Background(), cutTime, idle)
		err = ErrCut
	}
	w.metrics.SetDrainTime(time.Since(began))
	w.log.Info("shut down", "took", time.Since(began), "requests_left", w.service.gate.inside())
	return err
}

// wait returns when done says so, after limit, or when cut ends.
func wait(cut context.Context, limit time.Duration, done func() bool) {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return
		case <-cut.Done():
			return
		}
	}
}
