package vllm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
)

// Kind says what went wrong with an engine, in the terms that decide what to do about it.
type Kind uint8

// The kinds of failure.
const (
	// None is the kind of an OK status and of a nil error.
	None Kind = iota
	// InvalidArgument: the request or a setting is at fault; trying it again elsewhere does not help.
	InvalidArgument
	// CannotConnect: there is no connection to the engine, or the engine answers that it is unavailable.
	CannotConnect
	// Disconnected: the connection or stream broke under a request that may have reached the engine.
	Disconnected
	// Cancelled: ended by our own Drop or cancelled context, or by the engine as cancelled.
	Cancelled
	// Timeout: a deadline passed.
	Timeout
	// Overloaded: the engine has no room.
	Overloaded
	// Unimplemented: the server does not know the call.
	Unimplemented
	// EngineDead: EngineCore has failed; the server in front of it answers still, and exits within a minute.
	EngineDead
	// StreamIncomplete: the stream ended with OK and without a finish. Only the reader of the messages can see this.
	StreamIncomplete
	// Protocol: the server's answers are not those of a vLLM engine.
	Protocol
	// Unknown: any other failure of the engine.
	Unknown
)

// String is the kind's name.
func (k Kind) String() string {
	switch k {
	case None:
		return "None"
	case InvalidArgument:
		return "InvalidArgument"
	case CannotConnect:
		return "CannotConnect"
	case Disconnected:
		return "Disconnected"
	case Cancelled:
		return "Cancelled"
	case Timeout:
		return "Timeout"
	case Overloaded:
		return "Overloaded"
	case Unimplemented:
		return "Unimplemented"
	case EngineDead:
		return "EngineDead"
	case StreamIncomplete:
		return "StreamIncomplete"
	case Protocol:
		return "Protocol"
	case Unknown:
		return "Unknown"
	default:
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
}

// engineDeadText is how the server in front of a failed EngineCore answers open streams and new requests, with INTERNAL
// (vLLM 0.32.0, measured).
const engineDeadText = "engine core reported fatal failure"

// KindOf sorts a status. The codes follow the table of the Rust sidecar, but that back-pressure, missing calls, broken
// connections and a dead EngineCore are kinds of their own.
func KindOf(status Status) Kind {
	switch {
	case status.Code == codes.OK:
		return None
	case status.Dropped:
		return Cancelled
	case status.Transport && !status.NotSent:
		return Disconnected
	case status.Transport:
		return CannotConnect
	}
	switch status.Code {
	case codes.InvalidArgument, codes.NotFound, codes.OutOfRange, codes.FailedPrecondition, codes.AlreadyExists:
		return InvalidArgument
	case codes.Unavailable:
		return CannotConnect
	case codes.Canceled:
		return Cancelled
	case codes.DeadlineExceeded:
		return Timeout
	case codes.ResourceExhausted:
		return Overloaded
	case codes.Unimplemented:
		return Unimplemented
	case codes.DataLoss:
		return Protocol
	case codes.Internal:
		if strings.Contains(status.Message, engineDeadText) {
			return EngineDead
		}
		return Unknown
	case codes.OK, codes.Unknown, codes.PermissionDenied, codes.Unauthenticated, codes.Aborted:
		return Unknown
	default:
		return Unknown
	}
}

// String is "<rpc>: <message> (<Code>)", the form that the Rust sidecar gives to clients, code names included.
func (s Status) String() string {
	return fmt.Sprintf("%s: %s (%s)", s.RPC, s.Message, codeName(s.Code))
}

// Err is the status as an error of its kind; nil when it is OK.
func (s Status) Err() error {
	if s.Code == codes.OK {
		return nil
	}
	return &Error{Kind: KindOf(s), Text: s.String()}
}

// codeName differs from Code.String where Go's names are not the ones on the wire text of the Rust sidecar, to which a code
// that gRPC does not have is Unknown.
func codeName(code codes.Code) string {
	switch {
	case code == codes.OK:
		return "Ok"
	case code == codes.Canceled:
		return "Cancelled"
	case code > codes.Unauthenticated:
		return codes.Unknown.String()
	default:
		return code.String()
	}
}

// Error is a failure of a kind.
type Error struct {
	Kind Kind
	Text string
	Err  error // the cause, or nil
}

// Error is the text and the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Text
	}
	return e.Text + ": " + e.Err.Error()
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOfError is the kind of the first Error in the chain; Unknown for errors that are not from this room.
func KindOfError(err error) Kind {
	if err == nil {
		return None
	}
	if own, ok := errors.AsType[*Error](err); ok {
		return own.Kind
	}
	return Unknown
}

func invalid(format string, args ...any) error {
	return &Error{Kind: InvalidArgument, Text: fmt.Sprintf(format, args...)}
}

func protocol(format string, args ...any) error {
	return &Error{Kind: Protocol, Text: fmt.Sprintf(format, args...)}
}

// giveUpKind tells a deadline, which ends in the kind of what was waited for, from the caller's own cancel.
func giveUpKind(ctx context.Context, atDeadline Kind) Kind {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return atDeadline
	}
	return Cancelled
}
