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
	// EventTimer: the drain deadline has passed.
	EventTimer
	// EventPatience: the time of the last ActPatience has passed.
	EventPatience
	// EventAbortRefused: the engine does not know Abort (UNIMPLEMENTED).
	EventAbortRefused
	// EventLost: the engine has stopped to answer, though its connections stand.
	EventLost
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
	// EventEnd: the engine itself declined the request, trailers only. EventRefuse: the request was declined here, but its
	// hand-off is well-formed. Either way P's blocks are still held and the hand-off could be used.
	Unclaimed bool
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
	// ActTimer: feed EventTimer after After, the drain deadline. At most once.
	ActTimer
	// ActPatience: feed EventPatience after After; replaces an earlier one. It runs beside the drain deadline.
	ActPatience
	// ActDrained: a drain ended with Outcome.
	ActDrained
	// ActOrphan: a finished prefill's parameters will not be used.
	ActOrphan
	// ActRelease: nobody will use the hand-off; have the engine fetch it once so that P frees its blocks (M10).
	ActRelease
)

// Action is one output of the machine.
type Action struct {
	Kind     ActionKind
	Short    bool          // ActSubmit
	After    time.Duration // ActTimer, ActPatience
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
	DrainFinished                           // a finish by length or stop came
	DrainAborted                            // the engine confirmed the abort
	DrainEnded                              // the stream ended first
	DrainDeadline                           // the deadline, or the patience after an abort, passed after the headers
	DrainHeadersNever                       // the same before the headers
	DrainNeverSubmitted                     // the same before the request was sent
	DrainCut                                // cut by a second signal
)
