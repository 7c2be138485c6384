package chaos

import (
	"fmt"
	"slices"
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/handoff"
	"remora/internal/translate"
	pb "remora/proto/vllm"

	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/vllm"
)

// role is a leg's and its worker's.
type role string

const (
	roleAggregated role = "aggregated"
	rolePrefill    role = "prefill"
	roleDecode     role = "decode"
)

// The times of a real worker's shutdown and of its Aborts.
const (
	abortPatience = 5 * time.Second
	abortTimeout  = 5 * time.Second
	abortGrace    = time.Second
	shutdownRead  = time.Second
	settleTime    = 11 * time.Second
	cutTime       = 2 * time.Second
)

// worker is one Remora process, as far as requests see it: the gate, the memory of used hand-offs, the ids, the shutdown.
type worker struct {
	*run

	name      string
	role      role
	engine    *engine
	translate *translate.Engine
	machine   handoff.Config
	free      int    // places
	line      []*leg // that wait for one
	inside    int    // admitted and not yet left
	live      map[string]*leg
	order     []*leg // those of live, oldest first
	used      map[string]time.Duration
	suffixes  int
	last      handoff.EventKind // what was broadcast; EventDispatch: nothing
	refusing  bool
	paused    bool // its engine does not answer
	ended     bool
}

func newWorker(r *run, name string, as role, e *engine) *worker {
	w := &worker{
		run: r, name: name, role: as, engine: e, free: r.plan.places, live: make(map[string]*leg), used: make(map[string]time.Duration),
		translate: &translate.Engine{ServedName: "model", BlockSize: blockSize},
		machine: handoff.Config{
			Policy: r.plan.policy, DrainDeadline: r.plan.deadline, AbortPatience: abortPatience, ShutdownRead: shutdownRead,
		},
	}
	switch as {
	case roleAggregated:
		w.translate.Role, w.machine.Role = protocol.Aggregated, handoff.Aggregated
	case rolePrefill:
		w.translate.Role, w.machine.Role = protocol.Prefill, handoff.Prefill
	case roleDecode:
		w.translate.Role, w.machine.Role = protocol.Decode, handoff.Decode
	}
	if r.rules.skipShape {
		w.translate.HandoffCheck = translate.HandoffOff
	}
	return w
}

// serve is one request from its frame on.
func (w *worker) serve(l *leg) {
	if w.refusing || w.paused || w.ended {
		w.logf(l.id, "is refused by a worker that takes no requests")
		l.turnedAway = true
		w.after(w.hop(), func() { l.conv.turnedAway(l) })
		return
	}
	w.inside++
	l.started = w.now
	l.prepare()
	w.add(l)
	l.mark(atArrival)
	proceed := func() {
		if l.refusal != nil {
			l.step(handoff.Event{Kind: handoff.EventRefuse, Unclaimed: w.releasable(l)}, nil)
			return
		}
		w.enter(l)
	}
	if l.keeper || l.refusal != nil && l.unclaimed != nil && !w.rules.dialFirst { // the frontend is not waited for where P's blocks are
		l.dial(func() {})
		proceed()
		return
	}
	l.dial(proceed)
}

// add gives a leg an id that no live request bears.
func (w *worker) add(l *leg) {
	l.engineID = l.conv.id
	for w.live[l.engineID] != nil && !w.rules.sharedIDs {
		w.suffixes++
		l.engineID = fmt.Sprintf("%s-s%d", l.conv.id, w.suffixes)
	}
	w.live[l.engineID] = l
	w.order = append(w.order, l)
	if l.call != nil {
		l.call.Request.RequestId = l.engineID
	}
	if w.last != handoff.EventDispatch {
		l.step(handoff.Event{Kind: w.last}, nil)
	}
}

// remove forgets a leg. Its id stays taken while an Abort for it may still be on its way: it would hit a request that came
// back under the same id.
func (w *worker) remove(l *leg) {
	free := func() {
		if w.live[l.engineID] == l {
			delete(w.live, l.engineID)
		}
	}
	if l.aborting == nil || l.aborting.answered || w.rules.earlyIDs {
		free()
	} else {
		l.aborting.then = free // the stream has ended, so nobody waits to drop it
	}
	w.order = slices.DeleteFunc(w.order, func(o *leg) bool { return o == l })
	w.inside--
}

// enter takes a place or waits for one.
func (w *worker) enter(l *leg) {
	switch {
	case w.free > 0:
		w.free--
		l.placed = true
		l.dispatch()
		if l.machine.State() == handoff.Done {
			w.exit(l)
		}
	case l.machine.State() == handoff.Draining || l.machine.State() == handoff.Done:
		l.dispatch()
	default:
		w.logf(l.id, "waits for a place")
		w.line = append(w.line, l)
	}
}

// unline: a leg whose end is decided does not wait any longer.
func (w *worker) unline(l *leg) {
	if i := slices.Index(w.line, l); i >= 0 {
		w.line = slices.Delete(w.line, i, i+1)
		w.after(w.between(0, 100*time.Microsecond), l.dispatch)
	}
}

func (w *worker) exit(l *leg) {
	if !l.placed {
		return
	}
	l.placed = false
	w.free++
	if len(w.line) > 0 {
		next := w.line[0]
		w.line = w.line[1:]
		w.after(w.between(0, 100*time.Microsecond), func() { w.enter(next) })
	}
}

// admit refuses a hand-off that is too old or was used before, and notes the use.
func (w *worker) admit(l *leg) *translate.Refusal {
	if age, stale := l.age(w.now - l.started); stale && !w.rules.skipStamp {
		return translate.Stale(age)
	}
	if !w.use(l.grant.key) && !w.rules.skipReuse {
		return translate.Reused()
	}
	return nil
}

// age is that of a leg's hand-off, by its stamp, when the leg has been here for since.
func (l *leg) age(since time.Duration) (age time.Duration, stale bool) {
	l.admittedAt = l.now
	text, _ := l.body.PrefillResult.DisaggregatedParams.Get("_remora")
	stamp, _ := translate.ParseStamp(text.Str) // zero: no age
	age, known := stamp.Age(l.sent, since)
	l.grant.blind = l.grant.blind || !known
	return age, known && stamp.Stale(age)
}

// use notes the use of a hand-off; false: it was used before, within a lease.
func (w *worker) use(key string) bool {
	if until, again := w.used[key]; again && w.now < until {
		return false
	}
	w.used[key] = w.now + w.plan.lease
	return true
}

// releasable: the hand-off of a request that is declined here was not used before. The completion of one that was would free
// the blocks under its first reader.
func (w *worker) releasable(l *leg) bool {
	return l.unclaimed != nil && (w.rules.skipReleaseCheck || w.use(l.grant.key))
}

// release has the engine fetch a hand-off that nobody will use (M10), unless its blocks may not be held any more by now.
func (w *worker) release(l *leg, params *structpb.Struct) {
	if _, stale := l.age(w.now - l.started); stale && !w.rules.skipReleaseCheck {
		_, cameLate := l.age(0)
		l.tooLate = cameLate || l.stream != nil // the worker itself must not lose the time
		return
	}
	if !w.plan.releases || w.rules.skipRelease || params == nil {
		return
	}
	out := &releasing{}
	w.suffixes++
	s := w.engine.open(&pb.GenerateRequest{
		RequestId: fmt.Sprintf("%s-release-%d", l.engineID, w.suffixes), Model: "model",
		Prompt:   &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: []uint32{0}}},
		Stopping: &pb.StoppingCriteria{MaxNewTokens: 1},
		Kv:       &pb.KVCacheParameters{KvTransferParams: params},
	}, nil, out)
	l.streams = append(l.streams, s)
	l.released = true
	w.logf(l.id, "hand-off is released")
	out.limit = w.after(w.plan.deadline, func() {
		l.releaseLate = true
		s.drop()
	})
}

// releasing is the sink of a release.
type releasing struct{ limit *event }

func (*releasing) onHeaders()                     {}
func (*releasing) onMessage(*pb.GenerateResponse) {}
func (r *releasing) onEnd(vllm.Status)            { r.limit.off() }

// signal is the first SIGTERM (M5).
func (w *worker) signal(p *stopPlan) {
	w.logf(w.name, "is told to stop")
	if p.second > 0 {
		w.after(p.second, func() {
			if !w.ended {
				w.logf(w.name, "is told to stop at once")
				w.cut()
			}
		})
	}
	w.after(p.grace, func() {
		w.refusing = true
		w.logf(w.name, "takes no more requests; %d inside", w.inside)
		w.after(p.timeout, func() {
			if w.ended || w.inside == 0 {
				w.end()
				return
			}
			w.broadcast(handoff.EventShutdown)
			w.after(shutdownRead+settleTime, func() {
				if w.inside > 0 {
					w.violatef("M5", "%s: %d requests are left at the end of the shutdown", w.name, w.inside)
				}
				w.end()
			})
		})
	})
}

// cut ends everything at once.
func (w *worker) cut() {
	w.refusing = true
	w.broadcast(handoff.EventCut)
	w.after(cutTime, w.end)
}

// lost tells every request that nothing can be expected of the engine.
func (w *worker) lost() {
	w.paused = true
	for _, l := range slices.Clone(w.order) {
		l.step(handoff.Event{Kind: handoff.EventLost}, &protocol.Error{Kind: protocol.ErrorBackendEngineShutdown})
	}
}

func (w *worker) broadcast(kind handoff.EventKind) {
	w.last = kind
	for _, l := range slices.Clone(w.order) {
		l.step(handoff.Event{Kind: kind}, nil)
	}
}

// end closes the service.
func (w *worker) end() {
	if w.ended {
		return
	}
	w.ended = true
	w.logf(w.name, "has ended; %d inside", w.inside)
	for _, l := range slices.Clone(w.order) {
		if l.machine.State() != handoff.Done {
			w.violatef("M5", "%s has not ended with its worker", l.id)
		}
		l.leave("worker-ended")
	}
}
