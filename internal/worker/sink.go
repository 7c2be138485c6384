package worker

import (
	"time"

	"google.golang.org/grpc/codes"

	"remora/internal/handoff"
	"remora/internal/vllm"
	pb "remora/proto/vllm"
)

// OnHeaders implements vllm.Sink.
func (r *request) OnHeaders(more bool) {
	r.step(handoff.Event{Kind: handoff.EventHeaders}, occasion{})
	if !more {
		r.flush(r.yield)
	}
}

// OnMessages implements vllm.Sink: all that arrived together leaves in one write.
func (r *request) OnMessages(messages []*pb.GenerateResponse, more bool) {
	r.mu.Lock()
	for _, message := range messages {
		r.stepLocked(r.convert(message))
	}
	crowded := len(r.answer.pending) > pendingBeforeDial
	r.mu.Unlock()
	if crowded {
		r.yield()
		<-r.dialed // only a dial-back that is still under way lets this grow
	}
	if !more {
		r.flush(r.yield)
	}
}

// convert reads a message. Once one of them breaks the protocol the rest is only looked at for what it releases: its counts
// can't be trusted. Called with mu held.
func (r *request) convert(message *pb.GenerateResponse) (handoff.Event, occasion) {
	ev := MessageEvent(message)
	if r.distrusted {
		ev.Bad = true
		return ev, occasion{}
	}
	result, err := r.call.Response.Convert(message)
	if err == nil {
		if result.Handoff {
			r.svc.handoffs.stamp(result.Output, r.call.Prompt, r.sent, time.Since(r.started))
		}
		return ev, occasion{output: result.Output}
	}
	r.distrusted, ev.Bad = true, true
	if r.machine.State() == handoff.Draining { // else the failure of the request says it
		r.log.Warn("engine message can't be converted", "error", err, "engine_id", r.engineID)
	}
	return ev, occasion{err: conversionError(err)}
}

// pendingBeforeDial bounds what is kept for a client whose dial-back is still under way, in bytes. What came in the call that
// went past it is on top: as much as an engine stream's window lets through.
const pendingBeforeDial = 64 << 10

// MessageEvent reads off the raw message what the machine must know, so that a message which can't be converted still counts
// as the release that it is.
func MessageEvent(m *pb.GenerateResponse) handoff.Event {
	out, finish := m.GetOutputs(), m.GetOutputs().GetFinishInfo()
	ev := handoff.Event{Kind: handoff.EventMessage, Tokens: out.GetNumTokens() > 0}
	switch {
	case finish == nil:
	case finish.GetFinishReason() == pb.FinishInfo_ABORTED:
		ev.Finish = handoff.FinishedAborted
	default:
		ev.Finish = handoff.FinishedWhole
		ev.Params = finish.GetKvTransferParams() != nil
	}
	return ev
}

// OnEnd implements vllm.Sink.
func (r *request) OnEnd(end vllm.Status) {
	ok := end.Code == codes.OK
	r.step(handoff.Event{Kind: handoff.EventEnd, OK: ok, Unclaimed: declined(end)}, occasion{err: streamError(end)})
	r.flush(r.yield)
	close(r.ended)
}

// yielding returns what a sink call does before it waits. Made once, because it is passed along with every token.
func (r *request) yielding() func() {
	return func() {
		r.mu.Lock()
		stream := r.stream // set: a sink call steps the machine first, which waits for the Open that it belongs to
		r.mu.Unlock()
		stream.Yield()
	}
}
