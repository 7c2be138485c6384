package vllm

import (
	"google.golang.org/grpc/codes"

	pb "remora/proto/vllm"
)

// Sink receives the life of one GenerateStream, pushed by the backend. The calls of one stream never overlap and come in
// order: at most one OnHeaders, any number of OnMessages, exactly one OnEnd, last. A call that waits holds back its own
// stream's window, and other streams unless it calls Stream.Yield before.
type Sink interface {
	// OnHeaders: the response headers arrived, which means that the engine has submitted the request (not that it is
	// scheduled). An answer of trailers only, as the engine gives for refusals, has no headers and goes straight to OnEnd.
	// more says that the next call follows at once, with what has arrived together with this: a sink that writes need not yet.
	OnHeaders(more bool)
	// OnMessages hands over all messages that have arrived together, at least one. The slice and the messages are the
	// sink's to read during the call only. more is as for OnHeaders.
	OnMessages(messages []*pb.GenerateResponse, more bool)
	// OnEnd closes the stream's life: the status of the trailers, of the transport, or of our own Drop.
	OnEnd(status Status)
}

// Stream is the caller's handle on an open GenerateStream.
type Stream interface {
	// Drop resets the stream (RST_STREAM CANCEL) without waiting; it is idempotent and may be called from any goroutine,
	// also inside a sink call. OnEnd still follows, with Status.Dropped set, unless the stream had ended by itself. A sink
	// call that runs when Drop is called runs on; after it none but OnEnd begins.
	Drop()
	// Yield is called from inside a sink call before it waits for anything, such as a consumer that does not read: the
	// streams that share the connection go on. It is not for calls that do not wait, because it costs a goroutine.
	Yield()
}

// Status is how a stream or call ended. The zero Status is OK.
type Status struct {
	// RPC is the short name of the call, "GenerateStream". It is set on every status that is not OK.
	RPC     string
	Code    codes.Code
	Message string
	// Dropped: the end is our own Drop.
	Dropped bool
	// Transport: no peer wrote this status; the connection could not be had or broke under the stream.
	Transport bool
	// NotSent: the request is known not to have reached the engine. False means that it may have.
	NotSent bool
}
