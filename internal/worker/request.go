package worker

import (
	"log/slog"
	"sync"
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/handoff"
	"remora/internal/routing"
	"remora/internal/translate"
	"remora/internal/vllm"
)

// request runs one request: the hand-off machine decides, the engine stream and the response stream act.
//
// Its events come from four sides: the engine stream's goroutine (vllm.Sink), the response stream's reader, the drain timer,
// and the service (dispatch, shutdown, cut). Each takes mu, steps the machine and appends what is to be written to the answer;
// then, without mu, it flushes. A flush may block on a consumer that does not read. When the engine stream's goroutine blocks,
// it has yielded before: the stream's own window fills up and holds the engine back, and no other stream.
type request struct {
	// These are set before anybody else knows of the request, and do not change, but for what call holds.
	svc      *service
	id       string // the frontend's context id
	engineID string // the id at the engine; differs from id only while id is live already (M9)
	log      *slog.Logger
	started  time.Time       // when the frame was read
	sent     int64           // when the frontend sent it, by its clock, in nanoseconds; 0: not told
	call     *translate.Call // nil if the request could not be converted
	claim    *claim          // a decode's well-formed hand-off; nil where there is none
	counted  bool            // its failure is in the metrics already
	yield    func()          // what a sink call does before it waits

	// What has happened. Each is closed once, and terminal is set before decided is closed.
	dialed   chan struct{} // the dial-back has succeeded or failed
	leaving  chan struct{} // a drain begins: what waits for a place goes without
	decided  chan struct{} // there is a terminal
	ended    chan struct{} // OnEnd has returned: nothing more comes from the engine
	terminal handoff.Terminal

	mu         sync.Mutex
	machine    handoff.Machine  // guarded by mu
	acts       []handoff.Action // guarded by mu; scratch
	answer     answer           // guarded by mu, but for its writer's part
	stream     vllm.Stream      // guarded by mu; nil until submitted
	distrusted bool             // guarded by mu; a message could not be converted
	aborting   chan struct{}    // guarded by mu; closed when Abort has been answered; nil: none was sent
	drainBegan time.Time        // guarded by mu
	deadline   *time.Timer      // guarded by mu; the drain's
	patience   *time.Timer      // guarded by mu; of an abort or a shutdown
	prompt     routing.Prompt   // set once, when submitted; then the count of the load owns it
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
		r.drainBegan = time.Now()
		close(r.leaving)
		r.svc.metrics.Draining(1)
		r.log.Debug("drain begins", "engine_id", r.engineID)
	}
	for _, act := range r.acts {
		r.carryOut(act, on)
	}
	if r.machine.State() == handoff.Done {
		if wasDraining {
			r.svc.metrics.Draining(-1)
		}
		stopTimer(r.deadline)
		stopTimer(r.patience)
	}
}

// submitted reports whether the request has been given to the engine.
func (r *request) submitted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stream != nil
}

func (r *request) carryOut(act handoff.Action, on occasion) {
	switch act.Kind {
	case handoff.ActSubmit:
		if act.Short {
			translate.Shorten(r.call.Request)
		}
		r.prompt = promptOf(r.call.Request)
		r.stream = r.svc.engine.Open(r.call.Request, r.call.Rank, r)
		r.call.Request = nil // its media need not stay in memory as long as its answer runs
	case handoff.ActPrologue:
		r.answer.prologue()
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
		r.svc.release(r)
	case handoff.ActDrained:
		held := time.Since(r.drainBegan)
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
