package handoff

import "time"

// Role is what the worker does, as far as the machine cares.
type Role uint8

// The roles. Encode behaves as Aggregated.
const (
	Aggregated Role = iota
	Prefill
	Decode
)

// Policy is how a cancelled keeper lets go of P's blocks.
type Policy uint8

// The policies.
const (
	// Drain waits for the release message.
	Drain Policy = iota
	// Release aborts as soon as the headers are there and reads on: the engine lets go of the blocks at once, even where the
	// request would have waited long for its turn. Safe from engine 0.32 on (measured).
	Release
)

// Config describes one request. The zero Config is an aggregated request.
type Config struct {
	Role Role
	// HasParams: the request carries hand-off parameters. It matters for Decode only.
	HasParams bool
	// Policy matters for keepers only.
	Policy Policy
	// DrainDeadline bounds a drain, counted from the moment that decided it.
	DrainDeadline time.Duration
	// AbortPatience bounds the wait after the Abort of the policy Release.
	AbortPatience time.Duration
	// ShutdownRead bounds the reading that is left once the shutdown's patience has ended.
	ShutdownRead time.Duration
}

// State is where a request is in its life; see the package comment.
type State uint8

// The states of a machine.
const (
	Pending State = iota
	Opening
	Open
	Streaming
	Draining
	Done
)

// Machine is one request's life. Its zero value is not usable: call New. It is not safe for concurrent use; the caller holds
// the request's mutex.
type Machine struct {
	cfg   Config
	state State
	// verdict is the terminal that the end of a drain emits; terminalNone once it has been emitted. Set when the end is decided.
	verdict Terminal
	// cancelled: the client is gone. Set once.
	cancelled bool
	submitted bool // the engine has the request, or will. Set once.
	short     bool // it was submitted for the release alone: its finish is no answer. Set once.
	headers   bool // response headers were seen. Set once.
	released  bool // a release message was seen. Set once.
	aborted   bool // Abort was emitted. Set once.
	ended     bool // the stream's end was seen. Set once.
	closing   bool // the shutdown's patience is over. Set once.
	deaf      bool // the engine does not know Abort. Set once.
}

// New returns a machine in state pending.
func New(cfg Config) Machine { return Machine{cfg: cfg} }

// State returns the current state.
func (m *Machine) State() State { return m.state }

// Cancelled reports whether the client is known to be gone.
func (m *Machine) Cancelled() bool { return m.cancelled }

// keeper: the stream must outlive a cancel until the release message (M2).
func (m *Machine) keeper() bool { return m.cfg.Role == Decode && m.cfg.HasParams }

// lingers: the stream is read on after a cancel; keepers to their release, prefills to their end (M6).
func (m *Machine) lingers() bool { return m.keeper() || m.cfg.Role == Prefill }

// Step takes one event and appends the actions it causes to out, in the order in which they must be carried out. Events that
// mean nothing in the current state, a late timer for instance, cause none.
func (m *Machine) Step(ev Event, out []Action) []Action {
	if ev.Kind == EventEnd {
		m.ended = true
	}
	if m.state == Done {
		return out
	}
	switch ev.Kind {
	case EventDispatch:
		return m.dispatch(out)
	case EventRefuse:
		return m.refuse(ev, out)
	case EventCancel:
		return m.cancel(out)
	case EventHeaders:
		return m.onHeaders(out)
	case EventMessage:
		return m.message(ev, out)
	case EventEnd:
		return m.end(ev, out)
	case EventTimer:
		return m.timeout(out)
	case EventPatience:
		return m.patience(out)
	case EventAbortRefused:
		m.deaf = true
	case EventLost:
		return m.lost(out)
	case EventShutdown:
		return m.shutdown(out)
	case EventCut:
		return m.cut(out)
	}
	return out
}

// dispatch: the request is converted and its turn has come.
func (m *Machine) dispatch(out []Action) []Action {
	if m.submitted || (m.state != Pending && m.state != Draining) {
		return out
	}
	m.submitted = true
	if m.state == Draining { // a keeper whose end was decided first: it must still fetch its blocks (M1)
		m.short = true
		return append(out, Action{Kind: ActSubmit, Short: true})
	}
	m.state = Opening
	return append(out, Action{Kind: ActSubmit})
}

// refuse: the request can't be converted; the engine never hears of it.
func (m *Machine) refuse(ev Event, out []Action) []Action {
	if m.submitted {
		return out
	}
	return m.finish(m.after(Refused), m.release(ev, out))
}

// release: a keeper that goes no further although its hand-off is good has P's blocks freed in another way.
func (m *Machine) release(ev Event, out []Action) []Action {
	if m.keeper() && ev.Unclaimed && !m.headers {
		out = append(out, Action{Kind: ActRelease})
	}
	return out
}

// after returns the terminal of an end that came by itself: Cancelled once the client has gone (M7).
func (m *Machine) after(t Terminal) Terminal {
	if m.cancelled {
		return Cancelled
	}
	return t
}

func (m *Machine) onHeaders(out []Action) []Action {
	if m.headers || !m.submitted {
		return out
	}
	m.headers = true
	switch m.state {
	case Opening:
		m.state = Open
		return append(out, Action{Kind: ActPrologue})
	case Draining:
		return m.hurry(out)
	case Pending, Open, Streaming, Done:
	}
	return out
}

func (m *Machine) message(ev Event, out []Action) []Action {
	if !m.submitted {
		return out
	}
	out = m.onHeaders(out) // a message without headers can't be; should a backend ever do it, nothing breaks
	if ev.Tokens || ev.Finish != NotFinished {
		m.released = true
	}
	if m.state == Draining {
		return m.drainMessage(ev, out)
	}
	switch {
	case ev.Bad:
		return m.fail(out)
	case ev.Finish != NotFinished:
		return m.dropAnd(Finished, append(out, Action{Kind: ActEmit}))
	case ev.Tokens:
		m.state = Streaming
	}
	return append(out, Action{Kind: ActEmit})
}

func (m *Machine) end(ev Event, out []Action) []Action {
	out = m.release(ev, out)
	if m.state == Draining {
		return m.settle(m.verdict, DrainEnded, out)
	}
	if ev.OK {
		return m.finish(Incomplete, out)
	}
	return m.finish(Failed, out)
}
