package worker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
	"remora/internal/handoff"
	"remora/internal/translate"
	"remora/internal/vllm"
	pb "remora/proto/vllm"
)

// engine is the engine client as requests use it.
type engine interface {
	Open(request *pb.GenerateRequest, rank *uint32, sink vllm.Sink) vllm.Stream
	Abort(ctx context.Context, ids ...string) error
}

// service answers the requests of one endpoint. It implements requestplane.Handler.
type service struct {
	ctx       context.Context // ends when the service is closed; set once
	engine    engine          // set once
	dialer    *requestplane.Dialer
	translate *translate.Engine // set once
	machine   handoff.Config    // what the machines of all requests have in common; set once
	metrics   *status.Metrics   // set once
	log       *slog.Logger      // set once
	gate      *gate             // set once
	handoffs  *handoffs         // set once
	releases  bool              // hand-offs of declined requests are released (M10); set once

	background sync.WaitGroup // aborts, ordered drops and releases
	releasing  atomic.Int64   // releases under way

	mu   sync.Mutex
	live map[string]*request // guarded by mu; by engine id
	last handoff.EventKind   // guarded by mu; what broadcast said, for requests that are added later. 0: nothing
}

// Admit implements requestplane.Handler.
func (s *service) Admit(*requestplane.Request) error { return s.gate.admit() }

// Serve implements requestplane.Handler: one request from its frame to the end of its drain.
func (s *service) Serve(_ context.Context, in *requestplane.Request) {
	defer s.gate.leave()
	if in.Unacked {
		// The frontend takes the request for refused and may have sent it elsewhere; two readers of one hand-off must not be.
		s.log.Warn("acceptance could not be written; the request is not run", "request_id", in.Control.ID)
		return
	}
	s.metrics.RequestStarted(len(in.Body))
	if in.Headers.FrontendSendNS > 0 {
		s.metrics.NetworkTransit(in.ReceivedAt.Sub(time.Unix(0, in.Headers.FrontendSendNS)))
	}
	r := &request{
		svc: s, id: in.Control.ID, codec: in.Control.Codec, started: in.ReceivedAt, sent: in.Headers.FrontendSendNS,
		log:     s.log.With("request_id", in.Control.ID),
		decided: make(chan struct{}), ended: make(chan struct{}), dialed: make(chan struct{}), leaving: make(chan struct{}),
		writing: make(chan struct{}, 1),
	}
	r.yield = r.yielding()
	refusal := r.prepare(in)
	s.add(r)
	defer s.remove(r)

	// A decode's hand-off must reach the engine even where the dial-back fails, and as soon as can be: both run at once.
	var dialing sync.WaitGroup
	defer dialing.Wait()
	if r.keeper() {
		dialing.Go(func() { r.dial(in.Control.Connection) })
	} else {
		r.dial(in.Control.Connection)
	}
	if refusal != nil {
		r.step(handoff.Event{Kind: handoff.EventRefuse, Unclaimed: r.releasable()}, occasion{err: refusal})
	} else {
		entered := s.gate.enter(r)
		r.dispatch()
		<-r.decided
		if entered {
			s.gate.exit()
		}
	}
	r.finish()
	s.metrics.RequestEnded(terminal(r.terminal), time.Since(in.ReceivedAt))
}

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
	gone := r.gone // the reader may have said so already
	r.client = stream
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
	to, submitted, aborting := r.client, r.stream != nil, r.aborting
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

// add makes r known and gives it an engine id that no live request bears: a migrated request may come back while its old
// drain still lives, and Abort hits every bearer of an id (M9).
func (s *service) add(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.engineID = r.id
	for s.live[r.engineID] != nil {
		r.engineID = r.id + "-" + suffix()
	}
	s.live[r.engineID] = r
	if r.call != nil {
		r.call.Request.RequestId = r.engineID
	}
	if s.last != 0 {
		r.step(handoff.Event{Kind: s.last}, occasion{})
	}
}

func (s *service) remove(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, r.engineID)
}

// requests are those that live now.
func (s *service) requests() []*request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requestsLocked()
}

func (s *service) requestsLocked() []*request {
	all := make([]*request, 0, len(s.live))
	for _, r := range s.live {
		all = append(all, r)
	}
	return all
}

// broadcast feeds one event, the shutdown's or the cut's, to every live request and to those that are still to come. Those that
// wait in line come first: a place that another one leaves would let them in, to be served after all.
func (s *service) broadcast(kind handoff.EventKind) {
	s.mu.Lock()
	s.last = kind
	all := s.requestsLocked() // at once: who is added later gets it from last
	s.mu.Unlock()
	var submitted []*request
	for _, r := range all {
		if r.submitted() {
			submitted = append(submitted, r)
			continue
		}
		r.step(handoff.Event{Kind: kind}, occasion{}) // what that brings is flushed by Serve and by the engine's goroutine
	}
	for _, r := range submitted {
		r.step(handoff.Event{Kind: kind}, occasion{})
	}
}

func suffix() string {
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil { // never fails since Go 1.24
		return strconv.FormatInt(time.Now().UnixNano(), 16)
	}
	return hex.EncodeToString(b[:])
}
