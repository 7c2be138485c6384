package sim

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"remora/internal/sim/core"
	pb "remora/proto/vllm"
)

// maxRequestBytes is the largest request that vllm.Inference takes. The transport takes more, so that the refusal can be worded
// as the real server does; beyond hardRequestBytes the library refuses in its own words.
const (
	maxRequestBytes  = 32 << 20
	hardRequestBytes = 64 << 20
)

// inference is the service vllm.Inference.
type inference struct {
	pb.UnimplementedInferenceServer

	s *Server
}

// GenerateStream answers with headers as soon as the request is queued, with PromptInfo and then one token a message, and with
// FinishInfo in the last one. Refusals come without headers.
func (i *inference) GenerateStream(req *pb.GenerateRequest, out grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	return i.generate(out.Context(), req, func() error { return out.SendHeader(nil) }, out.Send)
}

// Generate collects the messages of a stream.
func (i *inference) Generate(ctx context.Context, req *pb.GenerateRequest) (*pb.GenerateResponse, error) {
	var msgs []*pb.GenerateResponse
	collect := func(m *pb.GenerateResponse) error {
		msgs = append(msgs, m)
		return nil
	}
	if err := i.generate(ctx, req, func() error { return nil }, collect); err != nil {
		return nil, err
	}
	return merge(msgs), nil
}

// generate runs one request from its check to its end.
func (i *inference) generate(ctx context.Context, req *pb.GenerateRequest, accepted func() error, send func(*pb.GenerateResponse) error) error {
	if size := proto.Size(req); size > maxRequestBytes {
		return status.Errorf(codes.OutOfRange, "Error, decoded message length too large: found %d bytes, the limit is: %d bytes", size, maxRequestBytes)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	j, err := i.s.prepare(req, md.Get("x-data-parallel-rank"))
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // gone before the engine heard of it: nothing is submitted
		return status.FromContextError(ctx.Err()).Err()
	}
	r, err := i.s.place(j.rank)
	if err != nil {
		return err
	}
	defer r.live.Add(-1)
	st, err := r.loop.submit(ctx, j.external, j.core)
	switch {
	case errors.Is(err, core.ErrDead):
		return errFatal()
	case errors.Is(err, core.ErrDuplicate):
		return invalid("request `%s` is already in flight", j.core.ID)
	case errors.Is(err, errStopped):
		return errStopping()
	case err != nil:
		return status.FromContextError(err).Err()
	}
	if err := accepted(); err != nil {
		i.drop(r, st)
		return err
	}
	return i.pump(ctx, j, r, st, send)
}

// pump carries results to the client until the request or the client ends.
func (i *inference) pump(ctx context.Context, j *job, r *rank, st *stream, send func(*pb.GenerateResponse) error) error {
	var outs []core.Output
	for {
		select {
		case <-st.ready:
		case <-ctx.Done():
			i.drop(r, st)
			return status.FromContextError(ctx.Err()).Err()
		case <-i.s.stopping:
			r.loop.leave(st, core.Aborted)
			return errStopping()
		}
		outs = st.take(outs)
		for _, out := range outs {
			if out.Reason == core.Failed && i.s.faults.on(AbortedErrors) {
				out.Reason = core.Aborted
			}
			msgs, finished, cut, err := j.answer.add(out, r.address)
			if err != nil {
				return err
			}
			if cut {
				r.loop.leave(st, core.Stop)
			}
			for _, m := range msgs {
				if err := send(m); err != nil {
					i.drop(r, st)
					return err
				}
			}
			if finished {
				return nil
			}
		}
	}
}

// drop aborts a request whose client has gone. With a fault the request outlives it, for a while or to its end.
func (i *inference) drop(r *rank, st *stream) {
	switch {
	case i.s.faults.on(DropIgnored):
		r.loop.abandon(st, false)
		return
	case i.s.faults.on(LateDrop):
		r.loop.abandon(st, true)
		return
	}
	i.s.cfg.Log.Info("auto-aborting request due to dropped stream", "request_id", st.id)
	r.loop.leave(st, core.Aborted)
}

func errStopping() error { return status.Error(codes.Unavailable, "engine is shutting down") }
