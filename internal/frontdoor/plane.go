package frontdoor

import (
	"context"

	"remora/internal/dynamo/protocol"
)

// Instance is one worker that can be called.
type Instance struct {
	ID      uint64
	Address string // host:port/path as the instance record has it
	Codec   protocol.Codec
}

// Plane sends requests to workers. Its errors are those of errors.go.
type Plane interface {
	// Send hands the request over and returns once the worker has acknowledged it. id names the request in all its phases.
	Send(ctx context.Context, to Instance, id string, request *protocol.PreprocessedRequest) (Stream, error)
}

// Stream is one request's answer. Its methods are called by one goroutine at a time.
type Stream interface {
	// Ready returns nil once the worker's good prologue is there, a *RefusedError for another one.
	Ready(ctx context.Context) error
	// Next returns the next item; io.EOF after a regular end, an error for any other.
	Next(ctx context.Context) (protocol.Item, error)
	// Kill ends the stream: a worker that still runs reads "kill" and a reset, also one that has not connected back yet.
	// After the end it only gives up what is held. It may be called again.
	Kill()
}
