package handoff

// String returns the state's word, as the traces use it.
func (s State) String() string {
	return [...]string{"pending", "opening", "open", "streaming", "draining", "done"}[s]
}

// String returns the terminal's word, as metrics and traces use it.
func (t Terminal) String() string {
	return [...]string{"none", "finished", "cancelled", "failed", "incomplete", "refused", "shutdown"}[t]
}

// String returns the outcome's word, as metrics and traces use it.
func (o DrainOutcome) String() string {
	return [...]string{"released", "finished", "aborted", "ended", "deadline", "headers_never", "never_submitted", "cut"}[o]
}

// String renders an action as the traces write it.
func (a Action) String() string {
	switch a.Kind {
	case ActSubmit:
		if a.Short {
			return "submit-short"
		}
		return "submit"
	case ActPrologue:
		return "prologue"
	case ActEmit:
		return "emit"
	case ActTerminal:
		return "terminal(" + a.Terminal.String() + ")"
	case ActAbort:
		return "abort"
	case ActDrop:
		return "drop"
	case ActTimer:
		return "timer(" + a.After.String() + ")"
	case ActPatience:
		return "patience(" + a.After.String() + ")"
	case ActRelease:
		return "release"
	case ActDrained:
		return "drained(" + a.Outcome.String() + ")"
	case ActOrphan:
		return "orphan"
	}
	return "?"
}

// String returns the policy's word, as the command line uses it.
func (p Policy) String() string { return [...]string{"drain", "release"}[p] }
