package worker

import (
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
	"remora/internal/handoff"
	"remora/internal/translate"
)

// prepare decodes and converts the body; nil: the request can be dispatched.
func (r *request) prepare(in *requestplane.Request) *protocol.Error {
	cfg := r.svc.machine
	defer func() { r.machine = handoff.New(cfg) }()
	if in.Malformed != nil {
		r.svc.metrics.RequestFailed(status.ErrorInvalidMessage)
		r.counted = true
		return in.Malformed
	}
	body, err := protocol.ParseRequest(in.Control.Codec, in.Body)
	if err != nil {
		r.svc.metrics.RequestFailed(status.ErrorDeserialization)
		r.counted = true
		return &protocol.Error{
			Kind: protocol.ErrorInvalidArgument, Message: "request body: " + err.Error(), Public: "The request could not be decoded",
		}
	}
	in.DropBody()
	call, refusal := r.svc.translate.Convert(r.id, body)
	if refusal != nil {
		if refusal.Handoff != translate.FaultNone {
			r.svc.metrics.HandoffRefused(string(refusal.Handoff))
		}
		if refusal.Unclaimed != nil {
			r.claim, cfg.HasParams = &claim{refusal.Unclaimed, refusal.Stamp, refusal.HandoffKey}, true
		}
		return refusal.Err
	}
	r.call = call
	if call.HandoffUsed {
		r.claim = &claim{call.Request.GetKv().GetKvTransferParams(), call.Stamp, call.HandoffKey}
	}
	cfg.HasParams = call.HandoffUsed
	return nil
}

// dispatch hands a converted request over, unless its hand-off has become too old or was used before.
func (r *request) dispatch() {
	if r.keeper() {
		refusal, unchecked := r.svc.handoffs.admit(r.claim, r.sent, time.Since(r.started))
		if unchecked {
			r.svc.metrics.StampUnchecked()
		}
		if refusal != nil {
			r.svc.metrics.HandoffRefused(string(refusal.Handoff))
			r.step(handoff.Event{Kind: handoff.EventRefuse}, occasion{err: refusal.Err})
			return
		}
	}
	r.step(handoff.Event{Kind: handoff.EventDispatch}, occasion{})
}

// releasable tells whether the hand-off of a request that is refused may be fetched without it, and notes that it will be: one
// that is too old or was used before may name blocks that are somebody else's.
func (r *request) releasable() bool {
	if !r.keeper() {
		return false
	}
	refusal, _ := r.svc.handoffs.admit(r.claim, r.sent, time.Since(r.started))
	return refusal == nil
}

// keeper: somebody must fetch the hand-off, whatever becomes of the request.
func (r *request) keeper() bool { return r.claim != nil }
