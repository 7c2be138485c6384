package etcd

import (
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The kinds of failure that callers tell apart.
var (
	// ErrConfig: settings that contradict each other, or files that can't be read.
	ErrConfig = errors.New("etcd settings")
	// ErrUnreachable: etcd did not answer within the time for the start.
	ErrUnreachable = errors.New("etcd can't be reached")
	// ErrRefused: etcd answers, and does not let us in.
	ErrRefused = errors.New("etcd refuses us")
)

// errLeaseLost: etcd does not know our lease any more, and with it our records.
var errLeaseLost = errors.New("the lease is lost")

// brief leaves out of an error what gRPC says around it.
func brief(err error) error {
	var carried interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &carried) {
		return err
	}
	if bare, ok := carried.(error); !ok || bare.Error() != err.Error() { // it has been wrapped, and so was made brief before
		return err
	}
	return &briefError{text: carried.GRPCStatus().Message(), cause: err}
}

// briefError is an error with another text.
type briefError struct {
	text  string
	cause error
}

func (e *briefError) Error() string { return e.text }
func (e *briefError) Unwrap() error { return e.cause }

// hopeless: etcd answers, and waiting will not change what it says.
func hopeless(err error) bool {
	if known, ok := errors.AsType[rpctypes.EtcdError](err); ok { // one that its client has looked at
		return known.Code() == codes.InvalidArgument || known.Code() == codes.PermissionDenied || known.Code() == codes.Unauthenticated
	}
	var carried interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &carried) {
		return false
	}
	switch carried.GRPCStatus().Code() {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return true
	default:
		return false
	}
}
