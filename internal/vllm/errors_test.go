package vllm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestKindOfEveryCode(t *testing.T) {
	tests := []struct {
		code codes.Code
		name string // as in the text for clients
		want Kind
	}{
		{codes.OK, "Ok", None},
		{codes.Canceled, "Cancelled", Cancelled},
		{codes.Unknown, "Unknown", Unknown},
		{codes.InvalidArgument, "InvalidArgument", InvalidArgument},
		{codes.DeadlineExceeded, "DeadlineExceeded", Timeout},
		{codes.NotFound, "NotFound", InvalidArgument},
		{codes.AlreadyExists, "AlreadyExists", InvalidArgument},
		{codes.PermissionDenied, "PermissionDenied", Unknown},
		{codes.ResourceExhausted, "ResourceExhausted", Overloaded},
		{codes.FailedPrecondition, "FailedPrecondition", InvalidArgument},
		{codes.Aborted, "Aborted", Unknown},
		{codes.OutOfRange, "OutOfRange", InvalidArgument},
		{codes.Unimplemented, "Unimplemented", Unimplemented},
		{codes.Internal, "Internal", Unknown},
		{codes.Unavailable, "Unavailable", CannotConnect},
		{codes.DataLoss, "DataLoss", Protocol},
		{codes.Unauthenticated, "Unauthenticated", Unknown},
		{codes.Code(99), "Unknown", Unknown}, // none that gRPC has
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := Status{RPC: "GenerateStream", Code: test.code, Message: "text"}
			if got := KindOf(s); got != test.want {
				t.Errorf("kind %v, want %v", got, test.want)
			}
			if want := "GenerateStream: text (" + test.name + ")"; s.String() != want {
				t.Errorf("text %q, want %q", s, want)
			}
			err := s.Err()
			if KindOfError(err) != test.want {
				t.Errorf("error %v is of kind %v, want %v", err, KindOfError(err), test.want)
			}
			if err != nil && err.Error() != s.String() {
				t.Errorf("error text %q", err)
			}
		})
	}
}

func TestKindOfCircumstances(t *testing.T) {
	tests := []struct {
		name   string
		status Status
		want   Kind
	}{
		{"zero", Status{}, None},
		{"our drop", Status{Code: codes.Canceled, Dropped: true}, Cancelled},
		{"no connection", Status{Code: codes.Unavailable, Transport: true, NotSent: true}, CannotConnect},
		{"connection lost", Status{Code: codes.Unavailable, Transport: true}, Disconnected},
		{"reset that reads like a cancel", Status{Code: codes.Canceled, Transport: true}, Disconnected},
		{
			"EngineCore died under the stream",
			Status{Code: codes.Internal, Message: "engine-core error: engine core reported fatal failure"}, EngineDead,
		},
		{"failed generation", Status{Code: codes.Internal, Message: "engine failed during generation"}, Unknown},
		{"the same words in a refusal", Status{Code: codes.InvalidArgument, Message: "engine core reported fatal failure"}, InvalidArgument},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := KindOf(test.status); got != test.want {
				t.Errorf("kind %v, want %v", got, test.want)
			}
		})
	}
}

func TestKindNames(t *testing.T) {
	seen := map[string]bool{}
	for kind := None; kind <= Unknown; kind++ {
		if seen[kind.String()] {
			t.Errorf("two kinds are named %v", kind)
		}
		seen[kind.String()] = true
	}
	if got := Kind(200).String(); got != "Kind(200)" {
		t.Error(got)
	}
}

func TestErrorChain(t *testing.T) {
	cause := errors.New("connection refused")
	err := fmt.Errorf("start: %w", &Error{Kind: CannotConnect, Text: "connect", Err: cause})
	if KindOfError(err) != CannotConnect || !errors.Is(err, cause) || err.Error() != "start: connect: connection refused" {
		t.Errorf("%v of kind %v", err, KindOfError(err))
	}
	if KindOfError(nil) != None || KindOfError(cause) != Unknown {
		t.Error("kinds of nil and of a foreign error")
	}
}

func TestStatusOf(t *testing.T) {
	reset := "stream terminated by RST_STREAM with error code: "
	tests := []struct {
		err  error
		want Status
	}{
		{nil, Status{}},
		{io.EOF, Status{}},
		{status.Error(codes.NotFound, "x"), Status{RPC: "R", Code: codes.NotFound, Message: "x"}},
		{status.Error(codes.Unavailable, "x"), Status{RPC: "R", Code: codes.Unavailable, Message: "x", Transport: true}},
		{
			status.Error(codes.Canceled, reset+"CANCEL"),
			Status{RPC: "R", Code: codes.Canceled, Message: reset + "CANCEL", Transport: true},
		},
		{
			status.Error(codes.Unavailable, reset+"REFUSED_STREAM"),
			Status{RPC: "R", Code: codes.Unavailable, Message: reset + "REFUSED_STREAM", Transport: true, NotSent: true},
		},
		{status.FromContextError(context.DeadlineExceeded).Err(), Status{
			RPC: "R", Code: codes.DeadlineExceeded, Message: "context deadline exceeded",
		}},
		{
			status.Error(codes.DeadlineExceeded, reset+"CANCEL"),
			Status{RPC: "R", Code: codes.DeadlineExceeded, Message: reset + "CANCEL"},
		},
		{status.Error(codes.ResourceExhausted, "queue is full"), Status{RPC: "R", Code: codes.ResourceExhausted, Message: "queue is full"}},
	}
	for _, test := range tests {
		if got := statusOf("R", test.err); got != test.want {
			t.Errorf("%v: %+v, want %+v", test.err, got, test.want)
		}
	}
}
