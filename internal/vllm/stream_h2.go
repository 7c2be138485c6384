package vllm

import (
	"context"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/codes"

	"remora/internal/vllm/h2"
	pb "remora/proto/vllm"
)

// newPool makes the pool of BackendH2, with the rules that grpc-go's connections keep. It counts its reads in heard.
func newPool(config Config, heard *atomic.Uint64) *h2.Pool {
	return h2.New(h2.Config{
		Dial:           func(ctx context.Context) (net.Conn, error) { return config.Dialer(ctx, config.Endpoint.Address()) },
		Authority:      config.Endpoint.Address(),
		AttemptTimeout: config.AttemptTimeout,
		ReconnectFirst: reconnectFirst, ReconnectMost: reconnectMost,
		MaxConnections: config.MaxConnections,
		PingInterval:   pingInterval, PingTimeout: pingTimeout,
		Heard: heard, Log: config.Log,
	})
}

// h2Stream is an open stream of BackendH2, and stands between it and the sink.
type h2Stream struct {
	h2.Stream

	client *Client // set once
	sink   Sink    // set once
}

func (c *Client) openH2(request *pb.GenerateRequest, rank *uint32, sink Sink) Stream {
	r := &h2Stream{client: c, sink: sink}
	if !c.enter(r) {
		r.Drop()
		go sink.OnEnd(closedStatus()) // as in Open
		return r
	}
	c.pool.Open(&r.Stream, request, rank, r)
	return r
}

// OnHeaders is of h2.Sink.
func (r *h2Stream) OnHeaders(more bool) { r.sink.OnHeaders(more) }

// OnMessages is of h2.Sink.
func (r *h2Stream) OnMessages(messages []*pb.GenerateResponse, more bool) {
	r.client.heard.Add(1)
	r.sink.OnMessages(messages, more)
}

// OnEnd is of h2.Sink.
func (r *h2Stream) OnEnd(end h2.End) {
	defer r.client.leave(r)
	if end.Code == codes.OK {
		r.sink.OnEnd(Status{})
		return
	}
	r.sink.OnEnd(Status{
		RPC: generateStream, Code: end.Code, Message: end.Message,
		Dropped: end.Dropped, Transport: end.Transport, NotSent: end.NotSent,
	})
}
