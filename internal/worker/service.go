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
		svc: s, id: in.Control.ID, started: in.ReceivedAt, sent: in.Headers.FrontendSendNS,
		log:    s.log.With("request_id", in.Control.ID),
		dialed: make(chan struct{}), leaving: make(chan struct{}), decided: make(chan struct{}), ended: make(chan struct{}),
		answer: answer{codec: in.Control.Codec, writing: make(chan struct{}, 1)},
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
