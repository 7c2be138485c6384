package requestplane

import (
	"context"
	"fmt"
	"sync"
	"time"

	"remora/internal/dynamo/protocol"
)

// Request is one request as it came off the wire.
type Request struct {
	Path       string // TCP: the endpoint path; NATS: the subject
	Headers    Headers
	Control    Control
	Body       []byte // in Control.Codec, not yet looked at; the request owns it until DropBody
	ReceivedAt time.Time

	// Malformed is set where the frame was sound but its headers were not, and the consumer can be dialled: the request must be
	// answered by this error in the prologue, because an accepted request without an answer hangs for ever.
	Malformed *protocol.Error

	// Unacked is set where the acceptance could not be written. The frontend takes the request for refused and may send it
	// elsewhere, so it must not run here as well.
	Unacked bool

	memory *[]byte    // what Body lies in; nil: nobody wants it back
	from   *sync.Pool // of memory
}

// maxKeptPayload is the largest payload whose memory is used again: a few long prompts must not stay for ever.
const maxKeptPayload = 1 << 20

// DropBody gives the memory of the body back, once, when nothing of it is needed any more.
func (r *Request) DropBody() {
	memory, from := r.memory, r.from
	r.Body, r.memory, r.from = nil, nil, nil
	if memory != nil && cap(*memory) <= maxKeptPayload {
		from.Put(memory)
	}
}

// Handler serves one endpoint.
type Handler interface {
	// Admit decides before the acknowledgement, quickly and without blocking: nil accepts, a *Refusal gives its text, another
	// error the text of an unavailable worker. It runs on the goroutine that reads the requests, for malformed ones too.
	Admit(req *Request) error
	// Serve runs a request that Admit accepted, exactly once, on a goroutine of its own, after the acknowledgement has been
	// written. ctx ends when the server is closed, not with the request's connection.
	Serve(ctx context.Context, req *Request)
}

// NewRequest reads the two-part message that carries a request on every transport. An error means that only the
// acknowledgement can tell: nobody can be dialled. The request is there in any case, for the log.
func NewRequest(path string, payload []byte) (*Request, error) {
	req := &Request{Path: path, ReceivedAt: time.Now()}
	header, body, err := splitTwoPart(payload)
	if err != nil {
		return req, err
	}
	control, malformed, refusal := parseControl(header)
	if refusal != nil {
		return req, refusal
	}
	req.Control, req.Body = control, body
	if malformed != nil {
		req.Malformed = &protocol.Error{
			Kind:    protocol.ErrorInvalidArgument,
			Message: fmt.Sprintf("control header: %v", malformed),
			Public:  "The request could not be read by the worker",
		}
	}
	return req, nil
}
