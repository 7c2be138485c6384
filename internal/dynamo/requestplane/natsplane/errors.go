package natsplane

import "errors"

// The kinds of failure that callers tell apart.
var (
	// ErrConfig: settings that contradict each other, or files that can't be read.
	ErrConfig = errors.New("NATS settings")
	// ErrUnreachable: the server did not answer within the time for the start.
	ErrUnreachable = errors.New("the NATS server can't be reached")
	// ErrRefused: the server answers, and does not let us in.
	ErrRefused = errors.New("the NATS server refuses us")
)
