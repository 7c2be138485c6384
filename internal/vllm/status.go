package vllm

import (
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Texts with which grpc-go marks statuses of its own making. A test pins each of them to the version in go.mod.
const (
	resetText     = "stream terminated by RST_STREAM"
	refusedText   = resetText + " with error code: REFUSED_STREAM"
	tooLargeText  = "larger than max"
	unmarshalText = "failed to unmarshal"
)

// statusOf reads the error of a call of grpc-go, which is nil, io.EOF or a status.
//
// grpc-go does not say who wrote a status: the peer's trailers and its own verdict on a connection come as the same type.
// The only exact way is a stats.Handler, which costs two allocations a message on the hot path. So it is told by what a
// vLLM server can write: never UNAVAILABLE (it has no such answer; that code is the transport's, or a proxy's that has lost
// the engine, which is the same to us), and no text of a reset, whose code is a guess from HTTP/2's and may well be
// CANCELLED when nobody here cancelled. What cannot be decoded is the peer's fault, not the transport's, and is DATA_LOSS.
func statusOf(rpc string, err error) Status {
	if err == nil || errors.Is(err, io.EOF) {
		return Status{}
	}
	raw := status.Convert(err)
	out := Status{RPC: rpc, Code: raw.Code(), Message: raw.Message()}
	switch {
	case out.Code == codes.DeadlineExceeded:
		// Also when the peer, which is told the deadline, was first to act on it and reset the stream.
	case strings.HasPrefix(out.Message, resetText):
		out.Transport = true
		out.NotSent = strings.HasPrefix(out.Message, refusedText)
	case out.Code == codes.Unavailable:
		out.Transport = true
	case out.Code == codes.ResourceExhausted && strings.Contains(out.Message, tooLargeText),
		out.Code == codes.Internal && strings.Contains(out.Message, unmarshalText):
		out.Code = codes.DataLoss
	}
	return out
}
