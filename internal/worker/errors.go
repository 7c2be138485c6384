package worker

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/grpc/codes"

	"remora/internal/dynamo/protocol"
	"remora/internal/vllm"
)

// ErrCut says that requests still ran when the worker ended, because it was told to end at once or they did not end in time.
var ErrCut = errors.New("stopped while requests were still running; they were cut off")

// errUnfit says that the engine can't do what was configured.
var errUnfit = errors.New("engine is not fit")

// errStopped says that the worker was stopped while it started.
var errStopped = errors.New("stopped during the start")

// stoppedOr gives errStopped where the stop is why err came.
func stoppedOr(stop context.Context, err error) error {
	if err != nil && stop.Err() != nil {
		return errStopped
	}
	return err
}

// conversionError tells the client's side that the engine broke its own protocol.
func conversionError(err error) *protocol.Error {
	return &protocol.Error{Kind: protocol.ErrorBackendUnknown, Message: err.Error()}
}

// streamError maps the end of an engine stream to the error that the frontend gets if nothing was finished before. The codes
// follow the Rust sidecar, except where that loses what the frontend could act on: a dead engine and a broken stream are kinds
// with which it may migrate, an early end is StreamIncomplete, and back-pressure stays back-pressure.
func streamError(status vllm.Status) *protocol.Error {
	out := &protocol.Error{Kind: protocol.ErrorBackendUnknown, Message: status.String()}
	switch vllm.KindOf(status) {
	case vllm.None, vllm.StreamIncomplete:
		out.Kind, out.Message = protocol.ErrorBackendStreamIncomplete, "GenerateStream ended before a terminal response"
		out.Public = "The engine ended the answer early"
	case vllm.InvalidArgument:
		// The engine's own sentence says what is wrong with the request, which is the client's business.
		out.Kind, out.Public = protocol.ErrorBackendInvalidArgument, status.Message
	case vllm.CannotConnect:
		out.Kind, out.Public = protocol.ErrorBackendCannotConnect, "The engine can't be reached"
	case vllm.EngineDead:
		out.Kind, out.Public = protocol.ErrorBackendEngineShutdown, "The engine has failed"
	case vllm.Disconnected:
		if status.Code == codes.Unavailable { // the whole connection broke: the process is gone, or the way to it
			out.Kind, out.Public = protocol.ErrorBackendEngineShutdown, "The connection to the engine was lost"
		} else { // a reset of this stream alone
			out.Kind, out.Public = protocol.ErrorBackendStreamIncomplete, "The engine ended the answer early"
		}
	case vllm.Cancelled:
		out.Kind = protocol.ErrorBackendCancelled
	case vllm.Timeout:
		out.Kind, out.Public = protocol.ErrorBackendTimeout, "The engine did not answer in time"
	case vllm.Overloaded:
		out.Kind, out.Public = protocol.ErrorWorkerOverloaded, "The engine has no room"
	case vllm.Unimplemented, vllm.Protocol, vllm.Unknown:
	}
	return out
}

// declined: the engine itself, in good health, turned the request down. Only then is it certain that it never took the
// hand-off, provided that no headers came, and that it can be asked to fetch it in another way.
func declined(status vllm.Status) bool {
	return vllm.KindOf(status) == vllm.InvalidArgument || vllm.KindOf(status) == vllm.Overloaded
}

// fitForPrologue tells which errors may be told by an error prologue. A typed InvalidArgument gives the client a status and
// leaves the worker in routing; the kinds that mean a dead, unreachable or full engine take it out for seconds, which is right.
// Any other kind would take out a healthy worker: it is told by an item.
func fitForPrologue(kind protocol.ErrorKind) bool {
	switch kind {
	case protocol.ErrorInvalidArgument, protocol.ErrorBackendInvalidArgument,
		protocol.ErrorBackendEngineShutdown, protocol.ErrorBackendCannotConnect, protocol.ErrorWorkerOverloaded:
		return true
	}
	return false
}

// failLevel: what is the client's own mistake is no news to an operator.
func failLevel(kind protocol.ErrorKind) slog.Level {
	switch kind {
	case protocol.ErrorInvalidArgument, protocol.ErrorBackendInvalidArgument:
		return slog.LevelInfo
	default:
		return slog.LevelWarn
	}
}
