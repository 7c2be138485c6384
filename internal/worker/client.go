package worker

import (
	"context"
	"time"

	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
)

// dial connects back to the frontend. A frontend that can't be reached is a client that has left. dialed is closed before
// anything is written: a consumer that does not read must not keep those who wait for the dial.
func (r *request) dial(info requestplane.ConnectionInfo) {
	if r.connect(info) {
		r.flush(nil)
	}
}

func (r *request) connect(info requestplane.ConnectionInfo) bool {
	defer close(r.dialed)
	stream, err := r.svc.dialer.Dial(r.svc.ctx, info, r.onControl)
	if err != nil {
		r.svc.metrics.RequestFailed(status.ErrorResponseStream)
		r.log.Warn("frontend can't be dialled back", "address", info.Address, "error", err)
		r.leave("dial-back failed")
		return false
	}
	r.mu.Lock()
	gone := r.answer.gone // the reader may have said so already
	r.answer.client = stream
	r.mu.Unlock()
	if gone {
		stream.Close()
	}
	return !gone
}

// onControl hears what the frontend says on the response connection. A reset can swallow the kill, so the ends of the
// connection mean the same.
func (r *request) onControl(ev requestplane.Event) {
	if ev.Leaving() {
		r.leave(ev.Kind.String())
		return
	}
	r.stop()
}

// leave: the client can't be reached any more. After the terminal that is the normal end of a response.
func (r *request) leave(why string) {
	r.mu.Lock()
	to := r.answer.client
	r.answer.gone, r.answer.pending = true, nil
	r.cancel(why)
	r.mu.Unlock()
	if to != nil {
		to.Close()
	}
}

// stop: the client wants no more, but reads on until the stream ends. Serve flushes what that brings.
func (r *request) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cancel("stop")
}

// readOutTimeout bounds how long a client may take to read what is left of its answer after the terminal.
const readOutTimeout = time.Minute

// finish delivers what is pending after the terminal, waits for the client's close and for the engine stream's end. When the
// service is closed it stops delivering.
func (r *request) finish() {
	<-r.dialed
	closed := context.AfterFunc(r.svc.ctx, func() { r.leave("the worker has ended") })
	defer closed()
	patience := time.AfterFunc(readOutTimeout, func() { r.leave("the answer was not read") })
	r.flush(nil)
	patience.Stop()
	r.mu.Lock()
	to, submitted, aborting := r.answer.client, r.stream != nil, r.aborting
	r.mu.Unlock()
	if to != nil {
		to.Wait() // bounded: it has ended or was closed
	}
	if submitted {
		<-r.ended // it has ended or was dropped, and the engine client guarantees the call
	}
	if aborting != nil {
		<-aborting // bounded: as long as an Abort is on its way, no other request may bear the id (M9)
	}
}
