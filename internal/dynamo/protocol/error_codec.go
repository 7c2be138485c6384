package protocol

import (
	"errors"
	"fmt"
)

// ErrorUnknown is what a reader makes of an error without a known kind. Workers say ErrorBackendUnknown.
var ErrorUnknown = ErrorKind{false, "Unknown"} // 500, no, no

// errorCatalog gives the class and reason that belong to each kind. Readers of the newer generation turn a pair that does not
// fit into Internal, so kinds outside this table are written without one and the reader derives it.
var errorCatalog = [...]struct {
	kind          ErrorKind
	class, reason string
}{
	{ErrorInvalidArgument, "InvalidRequest", "request.invalid_argument"},
	{ErrorBackendInvalidArgument, "InvalidRequest", "backend.invalid_argument"},
	{ErrorUnknown, "Internal", "runtime.unclassified"},
	{ErrorBackendUnknown, "Internal", "backend.unknown"},
	{ErrorKind{false, "Cancelled"}, "Cancelled", "request.cancelled"},
	{ErrorBackendCancelled, "Cancelled", "backend.cancelled"},
	{ErrorBackendEngineShutdown, "Unavailable", "backend.engine_shutdown"},
	{ErrorBackendStreamIncomplete, "Unavailable", "backend.stream_incomplete"},
	{ErrorKind{false, "CannotConnect"}, "Unavailable", "transport.cannot_connect"},
	{ErrorBackendCannotConnect, "Unavailable", "backend.cannot_connect"},
	{ErrorKind{false, "Disconnected"}, "Unavailable", "transport.disconnected"},
	{ErrorBackendDisconnected, "Unavailable", "backend.disconnected"},
	{ErrorKind{false, "ConnectionTimeout"}, "DeadlineExceeded", "transport.connection_timeout"},
	{ErrorBackendTimeout, "DeadlineExceeded", "backend.connection_timeout"},
	{ErrorKind{true, "ResponseTimeout"}, "DeadlineExceeded", "backend.response_timeout"},
	{ErrorKind{false, "WorkerUnavailable"}, "Unavailable", "backend.worker_unavailable"},
	{ErrorKind{false, "Unavailable"}, "Unavailable", "backend.unavailable"},
	{ErrorWorkerOverloaded, "CapacityExhausted", "capacity.worker_overloaded"},
	{ErrorResourceExhausted, "CapacityExhausted", "capacity.pool_exhausted"},
}

// Class returns the class and reason of the newer error generation; ok is false for a kind that Remora never writes.
func (k ErrorKind) Class() (class, reason string, ok bool) {
	for _, row := range &errorCatalog {
		if row.kind == k {
			return row.class, row.reason, true
		}
	}
	return "", "", false
}

// kindOfReason is the way back, for errors that carry only the newer fields.
func kindOfReason(reason string) ErrorKind {
	for _, row := range &errorCatalog {
		if row.reason == reason {
			return row.kind
		}
	}
	return ErrorUnknown
}

// AppendPrologue appends the header that opens a response: {"error":null} for a nil err, else the text and the typed error, of
// the same shape as the stock sidecar's. It is JSON whatever the codec of the request. Only the sentinel may follow an error.
func AppendPrologue(dst []byte, err *Error) []byte {
	e := encoder{dst: dst, codec: JSON}
	e.openMap(2)
	e.key("error")
	if err == nil {
		e.null()
		e.closeMap()
		return e.dst
	}
	class, _, known := err.Kind.Class()
	if !known {
		class = err.Kind.Name
	}
	e.text("Generate Error: " + class + ": " + err.Message)
	e.key("typed_error")
	e.error(err)
	e.closeMap()
	return e.dst
}

// ParsePrologue reads the header that opens a response. refusal is nil for a good one; a text without a type reads as
// CannotConnect, which is how frontends treat it. err is set where header is no prologue.
func ParsePrologue(header []byte) (refusal *Error, err error) {
	var (
		text  *string
		typed *Error
		given bool
	)
	err = document(JSON, header, func(r *reader, key []byte) error {
		switch string(key) {
		case "error":
			given = true
			return optional(r, &text, (*reader).str)
		case "typed_error":
			return optional(r, &typed, (*reader).error)
		default:
			return r.skip()
		}
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("prologue: %w", err)
	case typed != nil:
		return typed, nil
	case text != nil:
		return &Error{Kind: ErrorKind{false, "CannotConnect"}, Message: *text}, nil
	case !given:
		return nil, fmt.Errorf("prologue: %w", &FieldError{Path: "error", Err: errMissing})
	default:
		return nil, nil //nolint:nilnil // no refusal and no failure is the normal answer
	}
}

// error writes an error object, with the members that the stock sidecar writes: readers of both generations find theirs.
func (e *encoder) error(err *Error) {
	class, reason, known := err.Kind.Class()
	e.openMap(3 + 2*countTrue(known) + countTrue(err.Public != ""))
	e.key("error_type")
	e.errorKind(err.Kind)
	if known {
		e.key("class")
		e.text(class)
		e.key("reason")
		e.text(reason)
	}
	e.key("message")
	e.text(err.Message)
	e.key("diagnostic")
	e.text(err.Message)
	e.public(err)
	e.closeMap()
}

func (e *encoder) errorKind(k ErrorKind) {
	if !k.Backend {
		e.text(k.Name)
		return
	}
	e.openMap(1)
	e.key("Backend")
	e.text(k.Name)
	e.closeMap()
}

func (e *encoder) public(err *Error) {
	if err.Public == "" {
		return
	}
	e.key("public")
	e.openMap(2)
	e.key("type")
	e.text("message")
	e.key("message")
	e.text(err.Public)
	e.closeMap()
}

// error reads an error object of either generation.
func (r *reader) error() (out Error, err error) {
	var message, diagnostic, reason string
	err = r.object(func(key []byte) error {
		switch string(key) {
		case "error_type":
			return r.orNull(func() (err error) {
				out.Kind, err = r.errorKind()
				return err
			})
		case "message":
			return r.strOrEmpty(&message)
		case "diagnostic":
			return r.strOrEmpty(&diagnostic)
		case "reason":
			return r.strOrEmpty(&reason)
		case "public":
			return r.orNull(func() (err error) {
				out.Public, err = r.publicText()
				return err
			})
		default:
			return r.skip()
		}
	})
	if out.Kind == (ErrorKind{}) {
		out.Kind = kindOfReason(reason)
	}
	if out.Message = message; message == "" {
		out.Message = diagnostic
	}
	return out, err
}

func (r *reader) errorKind() (k ErrorKind, err error) {
	kind, err := r.peek()
	if err != nil {
		return k, err
	}
	if kind != KindMap {
		k.Name, err = r.str()
		return k, err
	}
	err = r.object(func(key []byte) (err error) {
		if string(key) != "Backend" {
			return errors.New("unknown variant")
		}
		k.Backend = true
		k.Name, err = r.str()
		return err
	})
	return k, err
}

// publicText reads the text of a public part of type "message"; the other types carry numbers for which Error has no room.
func (r *reader) publicText() (text string, err error) {
	err = r.object(func(key []byte) error {
		if string(key) == "message" {
			return r.strOrEmpty(&text)
		}
		return r.skip()
	})
	return text, err
}
