package requestplane

import (
	"errors"
	"strings"
)

// What can go wrong on these connections. They come wrapped with details.
var (
	ErrClosed       = errors.New("closed")
	ErrFraming      = errors.New("framing cannot be trusted")
	ErrBadAddress   = errors.New("address is not a literal ip:port")
	ErrGone         = errors.New("the consumer has gone")
	ErrEnded        = errors.New("the response has ended")
	ErrAckTimeout   = errors.New("no acknowledgement in time")
	ErrConnection   = errors.New("connection to the worker failed")
	ErrUnknownAck   = errors.New("acknowledgement is not understood")
	ErrBusy         = errors.New("too many requests wait for an acknowledgement")
	ErrMissingFinal = errors.New("the response ended without its final frame")
	ErrKilled       = errors.New("killed by the caller")
	ErrBadResponse  = errors.New("response stream breaks the protocol")
)

// The beginnings of the acknowledgements that a frontend understands as a refusal. Any other text that is not empty makes it
// wait for ever, so there are no others.
const (
	overloadedPrefix  = "Server overloaded: "
	unavailablePrefix = "Server unavailable: "
)

// maxAckText bounds what Server sends: part of it may come from the request.
const maxAckText = 1 << 10

// Refusal is an acknowledgement that declines a request. Overloaded sends it elsewhere and leaves the worker alone for a second
// or so; otherwise the worker counts as unavailable and gets nothing for five seconds.
type Refusal struct {
	Overloaded bool
	Reason     string
}

// Overloaded returns the refusal of a worker that is at capacity, in the stock words.
func Overloaded() *Refusal { return &Refusal{Overloaded: true, Reason: "worker at capacity"} }

// Unavailable returns the refusal of a worker that cannot take the request at all.
func Unavailable(why string) *Refusal { return &Refusal{Reason: why} }

// Error implements error; it is the text of the acknowledgement.
func (r *Refusal) Error() string {
	text := unavailablePrefix + r.Reason
	if r.Overloaded {
		text = overloadedPrefix + r.Reason
	}
	return strings.ToValidUTF8(text[:min(len(text), maxAckText)], "")
}

// RefusalOf gives the acknowledgement for the error of an Admit, or of a request that can't be read.
func RefusalOf(why error) *Refusal {
	if refusal, ok := errors.AsType[*Refusal](why); ok {
		return refusal
	}
	return Unavailable(why.Error())
}

// ackError is how a frontend reads an acknowledgement; nil means accepted.
func ackError(text string) error {
	if text == "" {
		return nil
	}
	if reason, ok := strings.CutPrefix(text, strings.TrimSpace(overloadedPrefix)); ok {
		return &Refusal{Overloaded: true, Reason: strings.TrimSpace(reason)}
	}
	if reason, ok := strings.CutPrefix(text, strings.TrimSpace(unavailablePrefix)); ok {
		return &Refusal{Reason: strings.TrimSpace(reason)}
	}
	return ErrUnknownAck
}

var errUnexpectedFrame = errors.New("unexpected frame from the consumer")
