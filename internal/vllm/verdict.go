package vllm

import (
	"fmt"
	"time"
)

// EngineState is what supervision makes of an engine.
type EngineState uint8

// The states of an engine.
const (
	// EngineServing: it answers SERVING, and is the process that the last change to this state named.
	EngineServing EngineState = iota
	// EngineNotServing: it answers, but not SERVING: its EngineCore has failed or its shutdown has begun.
	EngineNotServing
	// EngineGone: it does not answer, or another process answers in its place.
	EngineGone
)

// String is the state's name.
func (s EngineState) String() string {
	switch s {
	case EngineServing:
		return "serving"
	case EngineNotServing:
		return "not serving"
	case EngineGone:
		return "gone"
	default:
		return fmt.Sprintf("EngineState(%d)", uint8(s))
	}
}

// Change is a transition of an engine.
type Change struct {
	State  EngineState
	Reason string // for people
	// Silent tells of an engine that is gone: nobody refused us, and no other process answers; it gives no answer. It may be
	// busy or stopped for a moment, and have all its requests still.
	Silent bool
	// Instance is the instance_id of the process that serves now; empty when State is not EngineServing.
	Instance string
}

const (
	// missesToGo: one failed check may be the victim of a connection that broke under it, or of a moment without CPU.
	missesToGo = 2
	// An engine is back when its checks have been good for holdFirst. The time doubles, up to holdMost, each time that it
	// serves for less than steadyAfter, so that one which comes and goes makes few changes.
	holdFirst   = time.Second
	holdMost    = 32 * time.Second
	steadyAfter = time.Minute
)

// checkResult is what one health check found.
type checkResult struct {
	health     Health
	identified bool   // the check asked for the instance as well
	instance   string // when identified
	err        error
}

// verdict turns what was seen into changes. It reads no clock and waits for nothing. Downward it believes at once a health
// that is not SERVING and another instance, and failed checks when two come in a row; upward it asks for patience.
type verdict struct {
	state    EngineState
	instance string // the last process that was known to serve
	misses   int    // failed checks in a row
	hold     time.Duration

	servingSince time.Time // zero: for as long as anyone knows
	goodSince    time.Time // of the checks while not serving; zero: the last one was not good
}

// newVerdict begins with an engine that was found serving.
func newVerdict(instance string) verdict { return verdict{instance: instance, hold: holdFirst} }

// checked takes the result of a check. The second result is false when nothing has changed.
func (v *verdict) checked(now time.Time, result checkResult) (Change, bool) {
	if result.err != nil {
		v.misses++
		v.goodSince = time.Time{}
		if v.misses < missesToGo {
			return Change{}, false
		}
		change, changed := v.down(now, EngineGone, fmt.Sprintf("%d health checks in a row failed, the last with %v", v.misses, result.err))
		change.Silent = changed && KindOfError(result.err) == Timeout
		return change, changed
	}
	v.misses = 0
	if result.health != Serving {
		return v.told(now, result.health)
	}
	if result.identified && result.instance != v.instance {
		reason := fmt.Sprintf("another process answers: instance_id was %q and is %q", v.instance, result.instance)
		v.instance = result.instance
		change, changed := Change{}, false
		if v.state == EngineServing {
			change, changed = v.down(now, EngineGone, reason)
		}
		v.goodSince = now
		return change, changed
	}
	if v.state == EngineServing {
		return Change{}, false
	}
	if v.goodSince.IsZero() {
		v.goodSince = now
	}
	if now.Sub(v.goodSince) < v.hold {
		return Change{}, false
	}
	v.state, v.servingSince = EngineServing, now
	reason := fmt.Sprintf("it answers SERVING for %v", now.Sub(v.goodSince).Round(time.Millisecond))
	return Change{State: EngineServing, Reason: reason, Instance: v.instance}, true
}

// told takes a health that the engine reports by itself. SERVING proves nothing that a check would not prove better.
func (v *verdict) told(now time.Time, health Health) (Change, bool) {
	if health == Serving {
		return Change{}, false
	}
	return v.down(now, EngineNotServing, "it answers "+string(health))
}

func (v *verdict) down(now time.Time, state EngineState, reason string) (Change, bool) {
	v.goodSince = time.Time{}
	if v.state == EngineServing {
		if now.Sub(v.servingSince) >= steadyAfter {
			v.hold = holdFirst
		} else {
			v.hold = min(2*v.hold, holdMost)
		}
	}
	if v.state == state {
		return Change{}, false
	}
	v.state = state
	return Change{State: state, Reason: reason}, true
}
