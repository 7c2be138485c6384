package chaos

import (
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/dynamo/protocol"
	"remora/internal/handoff"
	"remora/internal/translate"
)

// machine is the hand-off machine, or one with a broken rule.
type machine interface {
	Step(ev handoff.Event, out []handoff.Action) []handoff.Action
	State() handoff.State
	Cancelled() bool
}

// leg is one request at one worker: what internal/worker's request is, with one event queue in the place of its goroutines.
type leg struct {
	*run

	id     string // for the trace
	conv   *conv
	role   role
	worker *worker
	extra  bool // sent by a fault, nobody wants its answer
	body   *protocol.PreprocessedRequest
	sent   int64 // by the frontend's clock, as the frame says; 0: not told

	// The worker's side, as in the real one.
	machine    machine
	engineID   string
	call       *translate.Call
	refusal    *translate.Refusal
	unclaimed  *structpb.Struct
	keeper     bool
	started    time.Duration
	placed     bool
	dialed     bool // the dial-back has succeeded or failed
	connected  bool
	gone       bool // nothing can be delivered any more
	pending    []frame
	lastFrame  time.Duration
	distrusted bool
	stream     *stream
	deadline   *event
	patience   *event
	aborting   *abortCall
	removed    bool

	// What checks want to know.
	grant       *grant // that it brought
	streams     []*stream
	headers     bool
	freed       bool // a release message was read
	finishRead  bool
	bad         bool
	ended       bool // onEnd
	cancels     int
	decidedAt   time.Duration // when something decided its end
	doneAt      time.Duration
	terminals   int
	terminal    handoff.Terminal
	aborts      int
	dropped     bool
	dropOn      handoff.EventKind
	orphan      bool
	dispatched  bool
	admittedAt  time.Duration // when the age of its hand-off was looked at
	fault       string        // refused
	turnedAway  bool
	released    bool
	releaseLate bool
	tooLate     bool // declined, when its hand-off had become too old already

	// The frontend's side.
	tokens    []uint32
	reason    protocol.FinishReason
	params    protocol.Value
	failed    protocol.ErrorKind
	ends      int
	closed    bool // the frontend takes nothing any more
	dialFails bool
	whenOpen  func() // what the frontend says as soon as there is a connection
}

// abortCall is an Abort on its way.
type abortCall struct {
	answered bool
	timeout  *event
	then     func()
}

// frame is what goes to the frontend in one piece.
type frame struct {
	tokens []uint32
	reason protocol.FinishReason
	params protocol.Value
	failed protocol.ErrorKind
	isErr  bool
	end    bool
}

// prepare converts the body.
func (l *leg) prepare() {
	cfg := l.worker.machine
	l.call, l.refusal = l.worker.translate.Convert(l.conv.id, l.body)
	if l.refusal != nil {
		l.call = nil
		l.unclaimed, cfg.HasParams = l.refusal.Unclaimed, l.refusal.Unclaimed != nil
		l.refused(l.refusal)
	} else {
		l.unclaimed = l.call.Request.GetKv().GetKvTransferParams()
		cfg.HasParams = l.call.HandoffUsed
		l.keeper = l.role == roleDecode && l.call.HandoffUsed
	}
	m := handoff.New(cfg)
	l.machine = &m
	if l.rules.wrap != nil {
		l.machine = l.rules.wrap(l, &m)
	}
}

func (l *leg) refused(r *translate.Refusal) {
	l.fault = string(r.Handoff)
	if l.fault == "" {
		l.fault = "declined"
	}
	l.refusal = r
	l.tally.refusals[l.fault]++
	l.logf(l.id, "is refused: %s", l.fault)
}

// dispatch hands a converted request over, unless its hand-off has become too old or was used before.
func (l *leg) dispatch() {
	l.dispatched = true
	if l.keeper {
		if refusal := l.worker.admit(l); refusal != nil {
			l.refused(refusal)
			l.step(handoff.Event{Kind: handoff.EventRefuse}, nil)
			return
		}
	}
	l.step(handoff.Event{Kind: handoff.EventDispatch}, nil)
}

// dial connects back; then goes on when it is known whether that worked.
func (l *leg) dial(then func()) {
	takes := l.hop()
	if l.chance(3) { // a frontend that is slow to accept
		takes = l.between(0, 5*time.Second)
	}
	l.after(takes, func() {
		l.dialed = true
		if l.dialFails || l.conv.frontend().dead || l.gone || l.worker.ended {
			l.logf(l.id, "frontend can't be dialled back")
			l.leave("dial-back-failed")
		} else {
			l.connected = true
			if l.whenOpen != nil {
				l.after(l.hop(), l.whenOpen)
			}
			l.flush()
		}
		then()
		l.settle()
	})
}

// leave: the client can't be reached any more.
func (l *leg) leave(why string) {
	l.gone, l.pending = true, nil
	l.cancel(why)
	l.settle()
}

// stop: the client wants no more, but reads on.
func (l *leg) stop() { l.cancel("stop") }

func (l *leg) cancel(why string) {
	if l.removed || l.machine.State() == handoff.Done || l.machine.Cancelled() {
		return
	}
	l.cancels++
	where := l.where()
	l.tally.moments[where]++
	l.logf(l.id, "client has left (%s), %s", why, where)
	l.step(handoff.Event{Kind: handoff.EventCancel}, nil)
}

// where says in the words of the test matrix what a cancel hits.
func (l *leg) where() string {
	s := l.stream
	var at string
	switch {
	case s == nil && !l.dispatched:
		at = "before dispatch"
	case s == nil:
		at = "at dispatch"
	case !s.registered && !s.over:
		at = "on the way to the engine"
	case s.finished:
		at = "finish in flight"
	case s.over:
		at = "error in flight"
	case l.role == rolePrefill && !l.headers:
		at = "before headers"
	case l.role == rolePrefill:
		at = "queued or running"
	case l.freed:
		at = "streaming"
	case s.reading:
		at = "reading"
	case s.received:
		at = "received"
	case l.role == roleDecode:
		at = "queued"
	default:
		at = "before the first token"
	}
	return string(l.role) + " " + at
}

// step feeds one event and carries out its actions.
func (l *leg) step(ev handoff.Event, failure *protocol.Error) {
	l.stepWith(ev, frame{}, failure)
}

func (l *leg) stepWith(ev handoff.Event, out frame, failure *protocol.Error) {
	was := l.machine.State()
	acts := l.machine.Step(ev, nil)
	is := l.machine.State()
	if l.out != nil && (len(acts) > 0 || was != is) {
		l.logf(l.id, "%s: %v -> %v", eventName(ev), acts, is)
	}
	if was != is && (is == handoff.Draining || is == handoff.Done) && was != handoff.Draining {
		l.decidedAt = l.now
	}
	for _, act := range acts {
		l.judge(ev, act)
		l.carryOut(ev, act, out, failure)
	}
	if was != handoff.Draining && is == handoff.Draining {
		l.worker.unline(l)
	}
	if is == handoff.Done {
		if was != handoff.Done {
			l.doneAt = l.now
			if l.stream != nil && !l.ended && !l.dropped {
				l.violatef("C6", "%s has ended and leaves its stream open", l.id)
			}
		}
		l.deadline.off()
		l.patience.off()
		l.worker.unline(l)
		l.worker.exit(l)
	}
	l.flush()
	l.settle()
}

func (l *leg) carryOut(ev handoff.Event, act handoff.Action, out frame, failure *protocol.Error) {
	switch act.Kind {
	case handoff.ActSubmit:
		if act.Short {
			translate.Shorten(l.call.Request)
		}
		l.stream = l.worker.engine.open(l.call.Request, l, l)
		l.streams = append(l.streams, l.stream)
		l.mark(atSubmit)
	case handoff.ActPrologue:
	case handoff.ActEmit:
		l.emit(out)
	case handoff.ActTerminal:
		l.conclude(act.Terminal, failure)
	case handoff.ActAbort:
		l.abort()
	case handoff.ActDrop:
		l.dropped, l.dropOn = true, ev.Kind
		l.drop()
	case handoff.ActTimer:
		l.deadline = l.after(act.After, func() { l.step(handoff.Event{Kind: handoff.EventTimer}, nil) })
	case handoff.ActPatience:
		l.patience.off()
		l.patience = l.after(act.After, func() { l.step(handoff.Event{Kind: handoff.EventPatience}, nil) })
	case handoff.ActRelease:
		l.worker.release(l, l.unclaimed)
	case handoff.ActDrained:
		l.tally.drains[act.Outcome.String()]++
	case handoff.ActOrphan:
		l.orphan = true
	}
}

func (l *leg) emit(f frame) {
	if !l.gone && (f.tokens != nil || f.reason != "" || f.isErr) {
		l.pending = append(l.pending, f)
	}
}

// conclude writes the terminal.
func (l *leg) conclude(t handoff.Terminal, failure *protocol.Error) {
	l.terminal = t
	switch t {
	case handoff.Cancelled:
		l.emit(frame{reason: protocol.FinishCancelled})
	case handoff.Shutdown:
		l.emit(frame{isErr: true, failed: protocol.ErrorBackendEngineShutdown})
	case handoff.Refused:
		l.emit(frame{isErr: true, failed: l.refusal.Err.Kind})
	case handoff.Failed, handoff.Incomplete:
		kind := protocol.ErrorBackendUnknown
		if failure != nil {
			kind = failure.Kind
		}
		l.emit(frame{isErr: true, failed: kind})
	default: // Finished
	}
	l.emit(frame{isErr: true, end: true}) // isErr: to be sent although it is empty
}

// flush sends what is pending.
func (l *leg) flush() {
	if !l.connected || l.gone {
		return
	}
	for _, f := range l.pending {
		l.lastFrame = max(l.lastFrame, l.now+l.hop())
		l.at(l.lastFrame, func() { l.conv.receive(l, f) })
	}
	l.pending = l.pending[:0]
}

func (l *leg) abort() {
	call := &abortCall{}
	l.aborting = call
	answered := func(known bool) {
		if call.answered {
			return
		}
		call.answered = true
		call.timeout.off()
		if !known {
			l.step(handoff.Event{Kind: handoff.EventAbortRefused}, nil)
		}
		if call.then != nil {
			call.then()
		}
	}
	call.timeout = l.after(abortTimeout, func() { answered(true) })
	l.tally.aborts++
	l.worker.engine.abort(l.engineID, answered)
}

// drop resets the stream, after the answer to an Abort that is on its way.
func (l *leg) drop() {
	call := l.aborting
	if call == nil || call.answered {
		l.stream.drop()
		return
	}
	grace := l.after(abortGrace, l.stream.drop)
	call.then = func() {
		grace.off()
		l.stream.drop()
	}
}

// settle removes a leg that has nothing left to wait for.
func (l *leg) settle() {
	if l.removed || l.machine.State() != handoff.Done || !l.dialed || l.stream != nil && !l.ended || l.connected && !l.gone {
		return
	}
	l.removed = true
	l.worker.remove(l)
}
