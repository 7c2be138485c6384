package vllm

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	pb "remora/proto/vllm"
)

// rankHeader selects the data-parallel rank, as decimal text of the absolute rank.
const rankHeader = "x-data-parallel-rank"

const generateStream = "GenerateStream"

// Open starts a GenerateStream and returns at once; a nil rank lets the engine choose. The sink is called from
// other goroutines, possibly before Open has returned, and OnEnd always comes. The request must not be changed before OnEnd.
func (c *Client) Open(request *pb.GenerateRequest, rank *uint32, sink Sink) Stream {
	if c.pool != nil {
		return c.openH2(request, rank, sink)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if rank != nil {
		ctx = metadata.AppendToOutgoingContext(ctx, rankHeader, strconv.FormatUint(uint64(*rank), 10))
	}
	s := &grpcStream{sink: sink, cancel: cancel, heard: &c.heard}
	if c.enter(s) {
		go func() {
			defer c.leave(s)
			defer cancel()
			sink.OnEnd(s.run(ctx, c.pick(), request))
		}()
		return s
	}
	// The client is closed. The end must not come from inside the caller's Open, who may hold a lock that OnEnd takes; this
	// goroutine does nothing else, which is why Close need not wait for it.
	s.Drop()
	go sink.OnEnd(closedStatus())
	return s
}

func closedStatus() Status {
	return Status{
		RPC: generateStream, Code: codes.Unavailable, Message: "the engine client is closed", Transport: true, NotSent: true,
	}
}

func (c *Client) enter(s Stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.open[s] = struct{}{}
	return true
}

func (c *Client) leave(s Stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, s)
	if c.idle != nil && len(c.open) == 0 {
		close(c.idle)
	}
}

// grpcStream is an open stream of BackendGRPC.
type grpcStream struct {
	sink    Sink               // called by the stream's goroutine alone
	cancel  context.CancelFunc // set once
	dropped atomic.Bool        // set before cancel is called
	heard   *atomic.Uint64     // the client's; set once
}

// Drop is of the Stream interface.
func (s *grpcStream) Drop() {
	s.dropped.Store(true)
	s.cancel()
}

// Yield is of the Stream interface: each stream has a goroutine of its own.
func (*grpcStream) Yield() {}

// run is the stream's life up to its status.
func (s *grpcStream) run(ctx context.Context, conn *grpc.ClientConn, request *pb.GenerateRequest) Status {
	receiver, err := pb.NewInferenceClient(conn).GenerateStream(ctx, request)
	if err != nil {
		// The request goes to the transport as the last act of this call, so with an error it was not sent.
		status := s.ended(err)
		status.NotSent = true
		if !status.Dropped && !status.Transport {
			// grpc-go could not encode it (text that is not UTF-8) or it is over the limit.
			status.Code = codes.InvalidArgument
		}
		return status
	}
	// A nil map without an error means that there were no headers: trailers only, or no answer at all. The end tells.
	if header, _ := receiver.Header(); header != nil && !s.dropped.Load() {
		s.sink.OnHeaders(false)
	}
	// Reused for each message: decoding resets the struct and makes its parts anew, and the sink keeps nothing.
	message := new(pb.GenerateResponse)
	together := []*pb.GenerateResponse{message}
	for {
		if err = receiver.RecvMsg(message); err != nil {
			return s.ended(err)
		}
		s.heard.Add(1)
		if s.dropped.Load() {
			continue // to the end that Drop has caused
		}
		s.sink.OnMessages(together, false)
		together[0] = message
	}
}

func (s *grpcStream) ended(err error) Status {
	if errors.Is(err, io.EOF) {
		return Status{}
	}
	status := statusOf(generateStream, err)
	if s.dropped.Load() && (status.Transport || status.Code == codes.Canceled) {
		status.Code, status.Dropped, status.Transport = codes.Canceled, true, false
	}
	return status
}
