package worker

import (
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
	"remora/internal/handoff"
	"remora/internal/translate"
	"remora/internal/vllm"
	pb "remora/proto/vllm"
)

// request runs one request: the hand-off machine decides, the engine stream and the response stream act.
//
// Its events come from four sides: the engine stream's goroutine (vllm.Sink), the response stream's reader, the drain timer,
// and the service (dispatch, shutdown, cut). Each takes mu, steps the machine and appends what is to be written to pending;
// then, without mu, it flushes. A flush may block on a consumer that does not read: when it is the engine's goroutine that
// blocks, the engine stream's own window fills up and holds the engine back, nobody else.
type request struct {
	svc      *service
	id       string // the frontend's context id
	engineID string // the id at the engine; differs from id only while id is live already (M9)
	codec    protocol.Codec
	log      *slog.Logger
	call     *translate.Call // nil if the request could not be converted
	// unclaimed is a decode's well-formed hand-off, for the case that the request is declined. Set once.
	unclaimed *structpb.Struct
	counted   bool      // its failure is in the metrics already. Set once.
	started   time.Time // when the frame was read
	sent      int64     // when the frontend sent it, by its clock, in nanoseconds; 0: not told

	decided chan struct{} // closed with the terminal
	ended   chan struct{} // closed by OnEnd
	dialed  chan struct{} // closed when the dial-back has succeeded or failed
	leaving chan struct{} // closed when a drain begins: what waits for a place goes without

	// writing holds a token while somebody writes to client; taken before mu. It is no mutex because a test's clock stands still
	// while one is waited for.
	writing chan struct{}
	spare   []byte // guarded by writing

	mu         sync.Mutex
	machine    handoff.Machine              // guarded by mu
	client     *requestplane.ResponseStream // guarded by mu; nil until the dial-back has succeeded
	gone       bool                         // guarded by mu; nothing can be delivered any more
	pending    []byte                       // guarded by mu; frames that wait for the next flush
	prologued  bool                         // guarded by mu; a prologue is in pending or was written
	emitted    bool                         // guarded by mu; an item is in pending or was written
	distrusted bool                         // guarded by mu; a message could not be converted
	over       bool                         // guarded by mu; the sentinel is in pending or was written
	terminal   handoff.Terminal             // set once, before decided is closed
	stream     vllm.Stream                  // guarded by mu; nil until submitted
	deadline   *time.Timer                  // guarded by mu; the drain's
	patience   *time.Timer                  // guarded by mu; of an abort or a shutdown
	decidedAt  time.Time                    // guarded by mu; when a drain began
	aborting   chan struct{}                // guarded by mu; closed when Abort has been answered
	acts       []handoff.Action             // guarded by mu; scratch
}

// occasion is what the actions of one event may refer to.
type occasion struct {
	output *protocol.EngineOutput // ActEmit
	err    *protocol.Error        // ActTerminal: refused, failed, incomplete
}

// step feeds one event and carries out its actions. It does not write: the caller flushes.
func (r *request) step(ev handoff.Event, on occasion) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stepLocked(ev, on)
}

func (r *request) stepLocked(ev handoff.Event, on occasion) {
	wasDraining := r.machine.State() == handoff.Draining
	r.acts = r.machine.Step(ev, r.acts[:0])
	if !wasDraining && r.machine.State() == handoff.Draining {
		r.decidedAt = time.Now()
		close(r.leaving)
		r.log.Debug("drain begins", "engine_id", r.engineID)
	}
	for _, act := range r.acts {
		r.carryOut(act, on)
	}
	if r.machine.State() == handoff.Done {
		stopTimer(r.deadline)
		stopTimer(r.patience)
	}
}

func (r *request) carryOut(act handoff.Action, on occasion) {
	switch act.Kind {
	case handoff.ActSubmit:
		if act.Short {
			translate.Shorten(r.call.Request)
		}
		r.stream = r.svc.engine.Open(r.call.Request, r.call.Rank, r)
	case handoff.ActPrologue:
		r.prologue()
	case handoff.ActEmit:
		if on.output != nil {
			r.emit(&protocol.Item{Data: on.output})
		}
	case handoff.ActTerminal:
		r.conclude(act.Terminal, on.err)
	case handoff.ActAbort:
		r.abort()
	case handoff.ActDrop:
		r.drop()
	case handoff.ActTimer:
		r.deadline = r.timer(act.After, handoff.EventTimer)
	case handoff.ActPatience:
		stopTimer(r.patience)
		r.patience = r.timer(act.After, handoff.EventPatience)
	case handoff.ActRelease:
		r.svc.release(r.engineID, r.unclaimed, r.rank(), r.log)
	case handoff.ActDrained:
		held := time.Since(r.decidedAt)
		r.svc.metrics.DrainEnded(drainOutcome(act.Outcome), held)
		fields := []any{"outcome", act.Outcome.String(), "held", held, "engine_id", r.engineID}
		if on.err != nil { // nobody is left to be told
			fields = append(fields, "cause", on.err)
		}
		r.log.Log(r.svc.ctx, drainLevel(act.Outcome), "drain ended", fields...)
	case handoff.ActOrphan:
		r.svc.metrics.Orphaned()
		r.log.Warn("prefill finished after its client had left: its blocks wait for the lease", "engine_id", r.engineID)
	}
}

// drainLevel says how loud the end of a drain is: what an operator should look at is a warning.
func drainLevel(o handoff.DrainOutcome) slog.Level {
	switch o {
	case handoff.DrainReleased, handoff.DrainFinished, handoff.DrainAborted:
		return slog.LevelDebug
	case handoff.DrainEnded, handoff.DrainDeadline, handoff.DrainHeadersNever, handoff.DrainNeverSubmitted, handoff.DrainCut:
		return slog.LevelWarn
	}
	return slog.LevelWarn
}

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

// flush writes what is pending. Never called with mu held, nor on the response stream's reader.
func (r *request) flush() {
	r.writing <- struct{}{}
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
	err := write(frames)
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

// leave: the client can't be reached any more. After the terminal that is the normal end of a response.
func (r *request) leave(why string) {
	r.mu.Lock()
	to := r.client
	r.gone, r.pending = true, nil
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

// cancel feeds the first cancel. Called with mu held.
func (r *request) cancel(why string) {
	if r.machine.State() == handoff.Done || r.machine.Cancelled() {
		return
	}
	r.svc.metrics.RequestCancelled()
	r.log.Debug("client left", "how", why, "state", r.machine.State().String())
	r.stepLocked(handoff.Event{Kind: handoff.EventCancel}, occasion{})
}

// timer feeds kind later. What that brings is flushed by Serve.
func (r *request) timer(after time.Duration, kind handoff.EventKind) *time.Timer {
	return time.AfterFunc(after, func() { r.step(handoff.Event{Kind: kind}, occasion{}) })
}

func stopTimer(t *time.Timer) {
	if t != nil {
		t.Stop()
	}
}

func (r *request) rank() *uint32 {
	if r.call == nil {
		return nil
	}
	return r.call.Rank
}

// OnHeaders implements vllm.Sink.
func (r *request) OnHeaders() {
	r.step(handoff.Event{Kind: handoff.EventHeaders}, occasion{})
	r.flush()
}

// OnMessages implements vllm.Sink: all that arrived together leaves in one write.
func (r *request) OnMessages(messages []*pb.GenerateResponse) {
	r.mu.Lock()
	for _, message := range messages {
		r.stepLocked(r.convert(message))
	}
	crowded := len(r.pending) > pendingBeforeDial
	r.mu.Unlock()
	if crowded {
		<-r.dialed // only a dial-back that is still under way lets this grow
	}
	r.flush()
}

// convert reads a message. Once one of them breaks the protocol the rest is only looked at for what it releases: its counts
// can't be trusted. Called with mu held.
func (r *request) convert(message *pb.GenerateResponse) (handoff.Event, occasion) {
	ev := messageEvent(message)
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

// pendingBeforeDial bounds what is kept for a client whose dial-back is still under way, in bytes.
const pendingBeforeDial = 64 << 10

// messageEvent reads off the raw message what the machine must know, so that a message which can't be converted still counts
// as the release that it is.
func messageEvent(m *pb.GenerateResponse) handoff.Event {
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
	r.flush()
	close(r.ended)
}
