package handoff

import "time"

// EventKind names what happened.
type EventKind uint8

// The events.
const (
	// EventDispatch: the request is converted and may be submitted.
	EventDispatch EventKind = iota
	// EventRefuse: the request can't be converted. Instead of EventDispatch.
	EventRefuse
	// EventCancel: the client is gone or wants no more: stop, kill, end or reset of the response connection, failed dial-back.
	EventCancel
	// EventHeaders: the engine's response headers arrived.
	EventHeaders
	// EventMessage: one engine message; see the fields of Event.
	EventMessage
	// EventEnd: the engine stream ended; OK says how. Nothing of the stream comes after it.
	EventEnd
	// EventTimer: the time of the last ActTimer has passed.
	EventTimer
	// EventShutdown: the process stops and the time for answers to run on is over.
	EventShutdown
	// EventCut: the process stops now.
	EventCut
)

// FinishKind says what finish_info, if any, a message carries.
type FinishKind uint8

// The finish kinds.
const (
	NotFinished     FinishKind = iota
	FinishedWhole              // length or stop
	FinishedAborted            // ABORTED
)

// Event is one input of the machine.
type Event struct {
	Kind EventKind

	// EventMessage only, all of the raw message, before conversion:
	Tokens bool       // num_tokens > 0
	Finish FinishKind // finish_info
	Params bool       // finish_info carries hand-off parameters
	Bad    bool       // the message can't be converted

	// EventEnd only: status OK.
	OK bool
}

// ActionKind names what the caller must do.
type ActionKind uint8

// The actions.
const (
	// ActSubmit: open the engine stream; Short: with max_new_tokens 1 and no min_new_tokens.
	ActSubmit ActionKind = iota
	// ActPrologue: the engine has the request; the client may be told so.
	ActPrologue
	// ActEmit: hand the output of the current message, if it has one, to the client.
	ActEmit
	// ActTerminal: the request's one terminal. Nothing is emitted after it.
	ActTerminal
	// ActAbort: Control.Abort with the request's engine id. An ActDrop that follows waits for its answer, within bounds.
	ActAbort
	// ActDrop: reset the engine stream.
	ActDrop
	// ActTimer: feed EventTimer after After; replaces an earlier timer.
	ActTimer
	// ActDrained: a drain ended with Outcome.
	ActDrained
	// ActOrphan: a finished prefill's parameters will not be used.
	ActOrphan
)

// Action is one output of the machine.
type Action struct {
	Kind     ActionKind
	Short    bool          // ActSubmit
	After    time.Duration // ActTimer
	Terminal Terminal      // ActTerminal
	Outcome  DrainOutcome  // ActDrained
}

// Terminal is how a request ended.
type Terminal uint8

// The terminals.
const (
	terminalNone Terminal = iota // already emitted
	Finished                     // the engine's finish, emitted just before
	Cancelled                    // the client left first; not an error
	Failed                       // the engine ended with an error, or sent a message that can't be converted
	Incomplete                   // the engine ended without a finish
	Refused                      // the request can't be converted
	Shutdown                     // this process stops; nobody had cancelled
)

// DrainOutcome is how a drain ended.
type DrainOutcome uint8

// The outcomes of a drain.
const (
	DrainReleased       DrainOutcome = iota // a token message came
	DrainFinished                           // a finish came
	DrainEnded                              // the stream ended first
	DrainDeadline                           // the deadline passed after the headers
	DrainHeadersNever                       // the deadline passed before the headers
	DrainNeverSubmitted                     // the deadline passed before the request was sent
	DrainCut                                // cut by a second signal
)
