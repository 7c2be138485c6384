package translate

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/dynamo/protocol"
)

// ErrInvalidResponse marks every error of Response.Convert: the engine broke the rules of its own protocol, and its stream
// cannot be trusted any further.
var ErrInvalidResponse = errors.New("invalid vLLM gRPC response")

func invalidResponse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidResponse, fmt.Sprintf(format, args...))
}

// HandoffFault says why a hand-off was refused. The words are label values of a metric, so they are few and stay the same.
type HandoffFault string

// The faults of a hand-off.
const (
	FaultNone       HandoffFault = ""
	FaultAbsent     HandoffFault = "absent"      // a decode request without prefill_result
	FaultNotObject  HandoffFault = "not_object"  // parameters that are no object
	FaultInteger    HandoffFault = "integer"     // an integer that a double cannot carry exactly
	FaultValue      HandoffFault = "value"       // a value that protobuf cannot carry: NaN, raw bytes, too deep
	FaultMissingKey HandoffFault = "missing_key" // a required key is absent
	FaultKind       HandoffFault = "kind"        // a key of the wrong JSON kind, null included
	FaultBlank      HandoffFault = "blank"       // an id or host of blanks only
	FaultPort       HandoffFault = "port"        // a port outside 1-65535
	FaultBlocks     HandoffFault = "blocks"      // a block list that is empty, flat or not made of block ids
	FaultBlockCount HandoffFault = "block_count" // not as many blocks as the prompt fills
	FaultTokens     HandoffFault = "tokens"      // made for another prompt, its stamp says
	FaultStale      HandoffFault = "stale"       // too old, its stamp says
	FaultReused     HandoffFault = "reused"      // used before
)

// Refusal is why a request goes no further. It cost no RPC.
//
// Err.Kind decides how it must be told. InvalidArgument: the request itself is at fault, which is best said in a typed error
// prologue (400, the worker stays in routing). Backend.Disconnected: the request is fine, but its hand-off is malformed; a new
// prefill can mend that, so the frontend should migrate. That one must be told as a good prologue and an error item: as an
// error prologue it would take this worker, which did nothing wrong, out of routing for seconds.
type Refusal struct {
	Err     *protocol.Error
	Handoff HandoffFault // FaultNone where the hand-off is not the reason
	// Unclaimed is the well-formed hand-off of a decode that is refused for another reason: the prefill engine holds its
	// blocks until somebody fetches them or the lease ends.
	Unclaimed *structpb.Struct
	// Stamp and HandoffKey are those of Unclaimed; see Call.
	Stamp      Stamp
	HandoffKey string
}

// Stale is the refusal of a hand-off of that age.
func Stale(age time.Duration) *Refusal {
	return malformed(FaultStale, "it is %v old", age.Round(time.Millisecond))
}

// Reused is the refusal of a hand-off that was used before.
func Reused() *Refusal { return malformed(FaultReused, "it was used before") }

// String is for logs. A Refusal is deliberately no error itself: a nil one in an error interface would not be nil.
func (r *Refusal) String() string { return r.Err.Error() }

// refuse is for what the client wrote: the sentence is shown to it.
func refuse(format string, args ...any) *Refusal {
	text := fmt.Sprintf(format, args...)
	return &Refusal{Err: &protocol.Error{Kind: protocol.ErrorBackendInvalidArgument, Message: text, Public: text}}
}

// refuseHandoff is for what a prefill worker wrote: the client could not do anything with the details.
func refuseHandoff(kind protocol.ErrorKind, fault HandoffFault, format string, args ...any) *Refusal {
	return &Refusal{
		Err: &protocol.Error{
			Kind:    kind,
			Message: "KV hand-off refused: " + fmt.Sprintf(format, args...),
			Public:  "The hand-off from the prefill worker cannot be used",
		},
		Handoff: fault,
	}
}

// malformed refuses a hand-off that an engine would answer with a crash, a hang or wrong text.
func malformed(fault HandoffFault, format string, args ...any) *Refusal {
	return refuseHandoff(protocol.ErrorBackendDisconnected, fault, format, args...)
}
