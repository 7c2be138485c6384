package handoff

// This file is how a request is brought to its end before it has come there by itself: what decides it (a client that leaves, a
// bad message, an engine that is lost, the shutdown), and the drain that may follow.

func (m *Machine) cancel(out []Action) []Action {
	if m.cancelled {
		return out
	}
	m.cancelled = true
	switch m.state {
	case Pending:
		if m.keeper() {
			return m.drain(Cancelled, out)
		}
		return m.finish(Cancelled, out)
	case Opening:
		if m.lingers() {
			return m.drain(Cancelled, out)
		}
		return m.dropAnd(Cancelled, out) // no Abort: one sent before the headers is lost (measured)
	case Open:
		if m.lingers() {
			return m.hurry(m.drain(Cancelled, out))
		}
		return m.dropAnd(Cancelled, m.abort(out))
	case Streaming:
		if m.cfg.Role == Prefill {
			return m.hurry(m.drain(Cancelled, out))
		}
		return m.dropAnd(Cancelled, m.abort(out))
	case Draining:
		if m.verdict == Shutdown { // a drain that the shutdown decided; now nobody is left to be told so
			m.verdict = Cancelled
		}
		return out
	case Done:
	}
	return out
}

// fail: the answer is over, though the stream is not. The client hears of it now; a keeper's blocks are fetched all the same (M2).
func (m *Machine) fail(out []Action) []Action {
	if m.keeper() && !m.released {
		out = append(out, Action{Kind: ActTerminal, Terminal: m.after(Failed)})
		return m.hurry(m.drain(terminalNone, out))
	}
	return m.dropAnd(m.after(Failed), out)
}

// lost: nothing can be expected of the engine any more, but nobody can be sure. Answers end so that their clients can go
// elsewhere; what is not submitted yet will see for itself, and drains have their deadline.
func (m *Machine) lost(out []Action) []Action {
	switch m.state {
	case Opening, Open, Streaming:
		return m.fail(out)
	case Pending, Draining, Done:
	}
	return out
}

// drainMessage: the end is decided; only what releases blocks counts.
func (m *Machine) drainMessage(ev Event, out []Action) []Action {
	switch {
	case ev.Finish != NotFinished:
		if m.verdict == Shutdown && ev.Finish == FinishedWhole && !ev.Bad && !m.short {
			// Nobody left and the answer came whole within the last second: deliver it.
			return m.settle(Finished, DrainFinished, append(out, Action{Kind: ActEmit}))
		}
		if m.cfg.Role == Prefill && ev.Params {
			out = append(out, Action{Kind: ActOrphan})
		}
		if ev.Finish == FinishedAborted {
			return m.settle(m.verdict, DrainAborted, out)
		}
		return m.settle(m.verdict, DrainFinished, out)
	case ev.Tokens && m.cfg.Role != Prefill:
		return m.settle(m.verdict, DrainReleased, m.abort(out))
	}
	return out
}

// timeout: the drain deadline has passed (M3).
func (m *Machine) timeout(out []Action) []Action {
	if m.state != Draining {
		return out
	}
	switch {
	case !m.submitted:
		return m.settle(m.verdict, DrainNeverSubmitted, out)
	case !m.headers:
		return m.settle(m.verdict, DrainHeadersNever, out)
	}
	return m.settle(m.verdict, DrainDeadline, m.abort(out))
}

// patience: an abort was not answered in time. Where the engine does not know Abort, the drain goes on to its deadline.
func (m *Machine) patience(out []Action) []Action {
	if m.deaf && !m.closing {
		return out
	}
	return m.timeout(out)
}

// shutdown: the time for answers to run on is over (M5).
func (m *Machine) shutdown(out []Action) []Action {
	if m.closing {
		return out
	}
	m.closing = true
	switch m.state {
	case Pending:
		if m.keeper() {
			return m.last(out)
		}
		return m.finish(Shutdown, out)
	case Opening:
		if m.lingers() {
			return m.last(out)
		}
		return m.dropAnd(Shutdown, out)
	case Open:
		if m.lingers() {
			return m.last(m.abort(out))
		}
		return m.dropAnd(Shutdown, m.abort(out))
	case Streaming:
		if m.cfg.Role == Prefill {
			return m.last(m.abort(out))
		}
		return m.dropAnd(Shutdown, m.abort(out))
	case Draining:
		if m.headers {
			out = m.abort(out)
		}
		return append(out, Action{Kind: ActPatience, After: m.cfg.ShutdownRead})
	case Done:
	}
	return out
}

// last is a drain that the shutdown decides: a moment of reading, and no more.
func (m *Machine) last(out []Action) []Action {
	m.state, m.verdict = Draining, Shutdown
	return append(out, Action{Kind: ActPatience, After: m.cfg.ShutdownRead})
}

// cut: stop now, whatever it costs.
func (m *Machine) cut(out []Action) []Action {
	if m.headers {
		out = m.abort(out)
	}
	if m.state == Draining {
		return m.settle(m.verdict, DrainCut, out)
	}
	return m.dropAnd(m.after(Shutdown), out)
}

// drain decides the end and keeps the stream; the deadline bounds it.
func (m *Machine) drain(verdict Terminal, out []Action) []Action {
	m.state, m.verdict = Draining, verdict
	return append(out, Action{Kind: ActTimer, After: m.cfg.DrainDeadline})
}

// hurry aborts a draining request whose headers are there, where that is right: prefills always (M6), every request at the end
// of a shutdown (M5), keepers under the policy Release.
func (m *Machine) hurry(out []Action) []Action {
	switch {
	case !m.headers:
		return out
	case m.cfg.Role == Prefill || m.closing:
		return m.abort(out)
	case m.keeper() && m.cfg.Policy == Release:
		return append(m.abort(out), Action{Kind: ActPatience, After: m.cfg.AbortPatience})
	}
	return out
}

// settle ends a drain.
func (m *Machine) settle(t Terminal, outcome DrainOutcome, out []Action) []Action {
	return m.dropAnd(t, append(out, Action{Kind: ActDrained, Outcome: outcome}))
}

// abort asks the engine to end the request, once.
func (m *Machine) abort(out []Action) []Action {
	if m.aborted {
		return out
	}
	m.aborted = true
	return append(out, Action{Kind: ActAbort})
}

func (m *Machine) dropAnd(t Terminal, out []Action) []Action {
	if m.submitted && !m.ended {
		out = append(out, Action{Kind: ActDrop})
	}
	return m.finish(t, out)
}

func (m *Machine) finish(t Terminal, out []Action) []Action {
	m.state = Done
	if t == terminalNone {
		return out
	}
	return append(out, Action{Kind: ActTerminal, Terminal: t})
}
