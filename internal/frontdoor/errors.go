package frontdoor

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"remora/internal/dynamo/protocol"
)

// The failures of a Plane that callers tell apart. A Plane wraps them with what happened.
var (
	// ErrNotReached: nothing of the request got to the instance; another one may have it.
	ErrNotReached = errors.New("worker was not reached")
	// ErrOverloaded: the worker acknowledged with "Server overloaded".
	ErrOverloaded = errors.New("worker is overloaded")
	// ErrUnavailable: the worker refused, closed without an answer, or broke the stream off.
	ErrUnavailable = errors.New("worker is unavailable")
	// ErrTimeout: the worker did not answer in time.
	ErrTimeout = errors.New("worker did not answer in time")
	// ErrProtocol: the worker's bytes could not be understood.
	ErrProtocol = errors.New("worker broke the protocol")
)

// RefusedError is an error prologue: the worker refused the request before it began.
type RefusedError struct {
	Refusal *protocol.Error
}

// Error implements error.
func (e *RefusedError) Error() string { return "worker refused the request: " + e.Refusal.Error() }

// httpError is an answer of OpenAI's error shape. Param and Code are null on the wire where empty.
type httpError struct {
	status  int
	kind    string // OpenAI's "type"
	message string
	param   string
	code    string
}

// Error implements error.
func (e *httpError) Error() string { return fmt.Sprintf("%d %s: %s", e.status, e.kind, e.message) }

// The statuses that net/http has no name for.
const (
	statusClientGone = 499
	statusOverloaded = 529
)

// badRequest says what is wrong with one parameter; param is empty where it is the request as a whole.
func badRequest(param, format string, args ...any) *httpError {
	return &httpError{
		status: http.StatusBadRequest, kind: "invalid_request_error", param: param, message: fmt.Sprintf(format, args...),
	}
}

// statusError has the type that goes with the status, and no detail.
func statusError(status int, message string) *httpError {
	e := &httpError{status: status, message: message}
	switch status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge:
		e.kind = "invalid_request_error"
	case http.StatusServiceUnavailable, statusOverloaded:
		e.kind = "service_unavailable"
	case http.StatusGatewayTimeout:
		e.kind = "timeout_error"
	case statusClientGone:
		e.kind = "request_cancelled"
	default:
		e.kind = "internal_server_error"
	}
	return e
}

// plainText is what a client reads where the worker gave no public text.
func plainText(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "Invalid request"
	case statusClientGone:
		return "Request cancelled"
	case http.StatusServiceUnavailable:
		return "The worker is unavailable"
	case http.StatusGatewayTimeout:
		return "The worker did not answer in time"
	case statusOverloaded:
		return "The worker is overloaded"
	default:
		return "Internal server error"
	}
}

// itemStatus maps the kind of an error item to the status that the stock frontend gives it (measured on 1.6.1).
func itemStatus(kind protocol.ErrorKind) int {
	switch kind.Name {
	case "InvalidArgument":
		return http.StatusBadRequest
	case "CannotConnect", "Disconnected", "EngineShutdown", "StreamIncomplete", "WorkerUnavailable", "Unavailable":
		return http.StatusServiceUnavailable
	case "ConnectionTimeout", "ResponseTimeout":
		return http.StatusGatewayTimeout
	case "WorkerOverloaded", "ResourceExhausted":
		return statusOverloaded
	case "Cancelled":
		return statusClientGone
	default:
		return http.StatusInternalServerError
	}
}

// prologueStatus maps an error prologue likewise; there fewer kinds are told apart.
func prologueStatus(kind protocol.ErrorKind) int {
	switch kind {
	case protocol.ErrorInvalidArgument, protocol.ErrorBackendInvalidArgument:
		return http.StatusBadRequest
	case protocol.ErrorWorkerOverloaded:
		return statusOverloaded
	case protocol.ErrorBackendUnknown:
		return http.StatusInternalServerError
	default:
		return http.StatusServiceUnavailable
	}
}

// workerError turns a failure at a worker into what the client sees. The operator's text stays inside; once a stream is
// running the public text is shown for every status, before it only where it helps the caller.
func workerError(err error, streaming bool) *httpError {
	var (
		refused *RefusedError
		item    *protocol.Error
		status  int
		public  string
	)
	switch {
	case errors.As(err, &refused):
		status, public = prologueStatus(refused.Refusal.Kind), refused.Refusal.Public
	case errors.As(err, &item):
		status, public = itemStatus(item.Kind), item.Public
	case errors.Is(err, ErrOverloaded):
		status = statusOverloaded
	case errors.Is(err, ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		status = http.StatusGatewayTimeout
	case errors.Is(err, ErrNotReached), errors.Is(err, ErrUnavailable), errors.Is(err, context.Canceled):
		status = http.StatusServiceUnavailable
	default:
		status = http.StatusInternalServerError
	}
	hidden := status == statusClientGone || status == statusOverloaded || status == http.StatusInternalServerError
	if public == "" || (hidden && !streaming) {
		public = plainText(status)
	}
	return statusError(status, public)
}
