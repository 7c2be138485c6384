package worker

import (
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
	"remora/internal/handoff"
)

func (r *request) prologue() {
	if r.prologued || r.gone {
		return
	}
	r.prologued = true
	r.pending = requestplane.AppendPrologue(r.pending)
}

func (r *request) emit(item *protocol.Item) {
	if r.gone {
		return
	}
	if !r.emitted {
		r.emitted = true
		r.svc.metrics.FirstResponse(time.Since(r.started))
	}
	r.prologue() // headers that come while a shutdown reads on bring none
	r.pending = requestplane.AppendItem(r.pending, r.codec, item)
}

// conclude writes the terminal and everything that must follow it.
func (r *request) conclude(t handoff.Terminal, cause *protocol.Error) {
	r.terminal = t
	defer close(r.decided)
	if r.gone {
		return
	}
	switch t {
	case handoff.Finished:
	case handoff.Cancelled: // the client said stop and is still there
		r.emit(&protocol.Item{Data: r.cancelledOutput()})
	case handoff.Shutdown:
		r.fail(&protocol.Error{
			Kind: protocol.ErrorBackendEngineShutdown, Message: "worker shut down before the answer was complete",
			Public: "The worker is shutting down",
		})
		return
	case handoff.Failed, handoff.Incomplete, handoff.Refused:
		r.fail(cause)
		return
	}
	r.complete()
}

// complete appends what ends a response that began with a good prologue.
func (r *request) complete() {
	r.prologue()
	r.pending = requestplane.AppendSentinel(requestplane.AppendFinal(r.pending, r.codec))
	r.over = true
}

// fail ends the response with an error: by an error prologue where that gives the client a status and the worker the
// treatment it deserves, else by an item (a prologue of any other kind takes a healthy worker out of routing for 5 s).
func (r *request) fail(err *protocol.Error) {
	if err == nil {
		err = &protocol.Error{Kind: protocol.ErrorBackendUnknown, Message: "the engine ended the request without saying why"}
	}
	r.log.Log(r.svc.ctx, failLevel(err.Kind), "request failed", "error", err, "engine_id", r.engineID)
	if !r.counted {
		r.svc.metrics.RequestFailed(status.ErrorGenerate)
	}
	if !r.prologued && fitForPrologue(err.Kind) {
		r.prologued = true
		r.pending = requestplane.AppendSentinel(requestplane.AppendErrorPrologue(r.pending, err))
		r.over = true
		return
	}
	r.emit(&protocol.Item{Error: err})
	r.complete()
}

func (r *request) cancelledOutput() *protocol.EngineOutput {
	if r.call == nil {
		return &protocol.EngineOutput{FinishReason: protocol.FinishCancelled}
	}
	return r.call.Response.Cancelled()
}

// flush writes what is pending. wait, if there is one, is called before it has to wait: for a consumer that does not read, or
// for somebody else who waits for it. Never called with mu held, nor on the response stream's reader.
func (r *request) flush(wait func()) {
	select {
	case r.writing <- struct{}{}:
	default:
		if wait != nil {
			wait()
		}
		r.writing <- struct{}{}
	}
	defer func() { <-r.writing }()
	r.mu.Lock()
	to, frames, last := r.client, r.pending, r.over
	if to == nil || r.gone || len(frames) == 0 {
		r.mu.Unlock()
		return
	}
	r.pending, r.spare = r.spare[:0], nil // two buffers take turns; what is being written must not be appended to
	r.mu.Unlock()

	write := to.WriteFrames
	if last {
		write = to.EndFrames
	}
	err := write(frames, wait)
	if cap(frames) <= maxSpare {
		r.spare = frames[:0]
	}
	r.svc.metrics.ResponseBytes(len(frames))
	if err != nil { // the stream reports the break as an event, too
		r.svc.metrics.RequestFailed(publishError(last))
	}
}

// maxSpare keeps a single huge item from staying in memory for the rest of the request.
const maxSpare = 64 << 10

func publishError(last bool) status.ErrorType {
	if last {
		return status.ErrorPublishFinal
	}
	return status.ErrorPublishResponse
}
