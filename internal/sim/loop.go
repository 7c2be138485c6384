package sim

import (
	"context"
	"errors"
	"sync"
	"time"

	"remora/internal/sim/core"
)

// errStopped is what callers of a loop that has ended get.
var errStopped = errors.New("sim: engine has stopped")

// loop is the only goroutine that touches the core. It steps while there is work, and sleeps until the next call or deadline
// otherwise. Everybody else talks to the core through call.
type loop struct {
	engine   *core.Engine
	stepTime time.Duration
	start    time.Time // set once by run
	fetch    *fetcher  // nil: no connector
	calls    chan func()
	quit     chan struct{} // closed by run when it returns
	onDeath  func()        // set once; called by run when the engine has died, before any stream learns of it
	noticed  bool          // onDeath was called; owned by run
	// publishEvents takes what a step did to the prefix cache; nil: nobody. Set once, before run.
	publishEvents func([]core.Event)

	streams map[string]*stream // internal id -> reader; owned by run

	mu    sync.Mutex
	stats core.Stats // guarded by mu
}

func newLoop(engine *core.Engine, stepTime time.Duration, onDeath func()) *loop {
	l := &loop{
		engine:   engine,
		stepTime: stepTime,
		calls:    make(chan func()),
		quit:     make(chan struct{}),
		onDeath:  onDeath,
		streams:  make(map[string]*stream),
	}
	l.publish()
	return l
}

// run steps the engine until the context ends.
func (l *loop) run(ctx context.Context) {
	defer close(l.quit)
	l.start = time.Now()
	timer := time.NewTimer(0)
	<-timer.C
	ends := l.start // of the step under way, or of the last one
	for busy := false; ; {
		if !busy {
			ends = time.Now()
		}
		plan := l.engine.Schedule(time.Since(l.start))
		if l.fetch != nil {
			l.fetch.carryOut(plan)
		}
		l.deliver()
		var alarm <-chan time.Time
		if busy = plan.Busy; busy {
			// What this side of the engine computes is part of the step, unless it takes longer than that.
			if ends = ends.Add(l.stepTime); time.Until(ends) < 0 {
				ends = time.Now()
			}
			timer.Reset(time.Until(ends))
			alarm = timer.C
		} else if at, ok := l.engine.NextDeadline(); ok {
			timer.Reset(at - time.Since(l.start))
			alarm = timer.C
		}
		if !l.wait(ctx, alarm, busy) {
			return
		}
		timer.Stop()
		if busy {
			l.engine.Apply(time.Since(l.start))
			l.deliver()
		}
	}
}

// wait serves calls until the alarm. An idle engine (not busy) returns after a call too, since there may be work now. It says
// false when the context has ended.
func (l *loop) wait(ctx context.Context, alarm <-chan time.Time, busy bool) bool {
	for {
		select {
		case f := <-l.calls:
			f()
			if l.drain(); !busy {
				return true
			}
			l.deliver()
		case <-alarm:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// drain serves the calls that are already there, but not for ever.
func (l *loop) drain() {
	for range 256 {
		select {
		case f := <-l.calls:
			f()
		default:
			return
		}
	}
}

// deliver hands results to their readers, tells subscribers of the cache, and renews the published statistics.
func (l *loop) deliver() {
	l.publish()
	if events := l.engine.TakeEvents(); len(events) > 0 && l.publishEvents != nil {
		l.publishEvents(events)
	}
	l.noticeDeath()
	for _, out := range l.engine.Take() {
		st, ok := l.streams[out.ID]
		if !ok {
			continue
		}
		if out.Reason != core.Running {
			delete(l.streams, out.ID)
		}
		if st.gone {
			if out.Reason == core.Running {
				l.engine.Cancel(out.ID, core.Aborted)
			}
			continue
		}
		st.push(out)
	}
}

// noticeDeath tells of the engine's death, once.
func (l *loop) noticeDeath() {
	if l.engine.Dead() && !l.noticed {
		l.noticed = true
		l.onDeath()
	}
}

func (l *loop) publish() {
	stats := l.engine.Stats()
	l.mu.Lock()
	l.stats = stats
	l.mu.Unlock()
}

func (l *loop) snapshot() core.Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// call runs f on the loop's goroutine and waits for it.
func (l *loop) call(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case l.calls <- func() { f(); close(done) }:
		<-done
		return nil
	case <-l.quit:
		return errStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// submit queues a request and returns its reader.
func (l *loop) submit(ctx context.Context, external string, req core.Request) (*stream, error) {
	st := &stream{external: external, id: req.ID, ready: make(chan struct{}, 1)}
	var addErr error
	err := l.call(ctx, func() {
		if addErr = l.engine.Add(req); addErr == nil {
			l.streams[req.ID] = st
		}
	})
	if err != nil {
		return nil, err
	}
	return st, addErr
}

// leave ends a request whose reader has gone (Aborted) or has seen enough (Stop).
func (l *loop) leave(st *stream, reason core.Reason) {
	// The request is on its way out whatever becomes of its context; a loop that has ended has forgotten it anyway.
	_ = l.call(context.Background(), func() {
		delete(l.streams, st.id)
		l.engine.Cancel(st.id, reason)
	})
}

// abandon lets a request go on whose reader has gone: to its next output, if that is noticed, or to its end.
func (l *loop) abandon(st *stream, noticed bool) {
	_ = l.call(context.Background(), func() { // as in leave
		if noticed {
			st.gone = true
		} else {
			delete(l.streams, st.id)
		}
	})
}

// abort ends every live request that bears one of the external ids.
func (l *loop) abort(ctx context.Context, ids map[string]bool) error {
	return l.call(ctx, func() {
		for id, st := range l.streams {
			if ids[st.external] {
				l.engine.Cancel(id, core.Aborted)
			}
		}
	})
}

// stream carries results from the loop to one handler. The loop never waits for a handler: what is not read yet queues up,
// bounded by the tokens that the request may generate.
type stream struct {
	external string
	id       string
	ready    chan struct{} // has a token when outs may have something
	gone     bool          // nobody reads; owned by the loop

	mu   sync.Mutex
	outs []core.Output // guarded by mu
}

func (s *stream) push(out core.Output) {
	s.mu.Lock()
	s.outs = append(s.outs, out)
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// take returns what has come and leaves spare's memory for what comes next.
func (s *stream) take(spare []core.Output) []core.Output {
	s.mu.Lock()
	defer s.mu.Unlock()
	outs := s.outs
	s.outs = spare[:0]
	return outs
}
