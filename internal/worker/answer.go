package worker

import (
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
	"remora/internal/handoff"
)

// answer is what goes back to the frontend: the frames that wait for the next flush, and what of a whole response has been
// appended so far. It is guarded by its request's mu, but for the writer's part.
type answer struct {
	codec     protocol.Codec               // set once
	client    *requestplane.ResponseStream // nil until the dial-back has succeeded
	gone      bool                         // nothing can be delivered any more
	pending   []byte                       // frames that wait for the next flush
	prologued bool                         // a prologue is in pending or was written
	emitted   bool                         // an item is in pending or was written
	over      bool                         // the sentinel is in pending or was written

	// writing holds a token while somebody writes to client; taken before mu. It is no mutex because a test's clock stands still
	// while one is waited for.
	writing chan struct{}
	spare   []byte // guarded by writing
}

func (a *answer) prologue() {
	if a.prologued || a.gone {
		return
	}
	a.prologued = true
	a.pending = requestplane.AppendPrologue(a.pending)
}

// item appends an item, and reports whether it is the first.
func (a *answer) item(item *protocol.Item) (first bool) {
	if a.gone {
		return false
	}
	a.prologue() // headers that come while a shutdown reads on bring none
	first = !a.emitted
	a.emitted = true
	a.pending = requestplane.AppendItem(a.pending, a.codec, item)
	return first
}

// complete appends what ends a response that began with a good prologue.
func (a *answer) complete() {
	a.prologue()
	a.pending = requestplane.AppendSentinel(requestplane.AppendFinal(a.pending, a.codec))
	a.over = true
}

// refuse is a whole response: an error in the place of the prologue.
func (a *answer) refuse(err *protocol.Error) {
	a.prologued, a.over = true, true
	a.pending = requestplane.AppendSentinel(requestplane.AppendErrorPrologue(a.pending, err))
}

func (r *request) emit(item *protocol.Item) {
	if r.answer.item(item) {
		r.svc.metrics.FirstResponse(time.Since(r.started))
	}
}

// conclude writes the terminal and everything that must follow it.
func (r *request) conclude(t handoff.Terminal, cause *protocol.Error) {
	r.terminal = t
	defer close(r.decided)
	if r.answer.gone {
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
	r.answer.complete()
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
	if !r.answer.prologued && fitForPrologue(err.Kind) {
		r.answer.refuse(err)
		return
	}
	r.emit(&protocol.Item{Error: err})
	r.answer.complete()
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
	a := &r.answer
	select {
	case a.writing <- struct{}{}:
	default:
		if wait != nil {
			wait()
		}
		a.writing <- struct{}{}
	}
	defer func() { <-a.writing }()
	r.mu.Lock()
	to, frames, last := a.client, a.pending, a.over
	if to == nil || a.gone || len(frames) == 0 {
		r.mu.Unlock()
		return
	}
	a.pending, a.spare = a.spare[:0], nil // two buffers take turns; what is being written must not be appended to
	r.mu.Unlock()

	write := to.WriteFrames
	if last {
		write = to.EndFrames
	}
	err := write(frames, wait)
	if cap(frames) <= maxSpare {
		a.spare = frames[:0]
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
