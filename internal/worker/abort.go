package worker

import (
	"context"
	"time"

	"remora/internal/handoff"
	"remora/internal/vllm"
)

// How long Abort may take, and how long the drop that follows it waits. An engine answers in 1 to 20 ms (measured); a dead or
// stuck one must not keep the stream open.
const (
	abortTimeout = 5 * time.Second
	abortGrace   = time.Second
)

// abort sends Control.Abort on a goroutine of the service. Called with mu held.
func (r *request) abort() {
	done := make(chan struct{})
	r.aborting = done
	r.svc.metrics.AbortSent()
	r.svc.background.Go(func() {
		defer close(done)
		ctx, stop := context.WithTimeout(r.svc.ctx, abortTimeout)
		defer stop()
		if err := r.svc.engine.Abort(ctx, r.engineID); err != nil {
			if vllm.KindOfError(err) == vllm.Unimplemented {
				r.step(handoff.Event{Kind: handoff.EventAbortRefused}, occasion{})
			}
			r.log.Warn("abort failed", "error", err, "engine_id", r.engineID)
		}
	})
}

// drop resets the engine stream; where an Abort is on its way it waits for the answer, so that the engine sees the two in
// order. Called with mu held.
func (r *request) drop() {
	stream, aborting := r.stream, r.aborting
	if aborting == nil {
		stream.Drop()
		return
	}
	r.svc.background.Go(func() {
		patience := time.NewTimer(abortGrace)
		defer patience.Stop()
		select {
		case <-aborting:
		case <-r.ended:
		case <-patience.C:
		}
		stream.Drop()
	})
}
