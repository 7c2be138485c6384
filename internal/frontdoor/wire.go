package frontdoor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
)

// wirePlane is the Plane over TCP.
type wirePlane struct {
	client    *requestplane.Client
	responses *requestplane.ResponseServer
}

// NewPlane returns the Plane that sends over client and awaits the answers at responses. The caller runs and closes both, after
// the Server's Run has returned.
func NewPlane(client *requestplane.Client, responses *requestplane.ResponseServer) Plane {
	return &wirePlane{client, responses}
}

// Send implements Plane. The answer is awaited beyond ctx, which bounds the sending alone.
func (p *wirePlane) Send(ctx context.Context, to Instance, id string, r *protocol.PreprocessedRequest) (Stream, error) {
	incoming, connection := p.responses.Register(context.WithoutCancel(ctx), id, to.Codec)
	control := &requestplane.Control{
		ID: id, RequestType: "single_in", ResponseType: "many_out", Codec: to.Codec, Connection: connection,
	}
	headers := requestplane.Headers{RequestID: id, FrontendSendNS: time.Now().UnixNano()}
	body := protocol.AppendRequest(nil, to.Codec, r)
	if err := p.client.Send(ctx, to.Address, headers, control, body); err != nil {
		incoming.Kill()
		return nil, sendError(err)
	}
	return &wireStream{incoming}, nil
}

// sendError sorts what Send says. Only a failed dial is sure to have left nothing at the worker.
func sendError(err error) error {
	var (
		refusal *requestplane.Refusal
		network *net.OpError
	)
	switch {
	case errors.As(err, &refusal) && refusal.Overloaded:
		return fmt.Errorf("%w: %w", ErrOverloaded, err)
	case errors.As(err, &network) && network.Op == "dial",
		errors.Is(err, requestplane.ErrBusy), errors.Is(err, requestplane.ErrBadAddress):
		return fmt.Errorf("%w: %w", ErrNotReached, err)
	case errors.Is(err, requestplane.ErrAckTimeout):
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	case errors.Is(err, requestplane.ErrUnknownAck):
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	default:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
}

// wireStream is one answer over TCP.
type wireStream struct {
	incoming *requestplane.Incoming
}

// Ready implements Stream.
func (s *wireStream) Ready(ctx context.Context) error {
	err := s.incoming.Ready(ctx)
	if refusal, ok := errors.AsType[*protocol.Error](err); ok {
		return &RefusedError{refusal}
	}
	return nextError(err)
}

// Next implements Stream.
func (s *wireStream) Next(ctx context.Context) (protocol.Item, error) {
	item, err := s.incoming.Next(ctx)
	return item, nextError(err)
}

// Kill implements Stream.
func (s *wireStream) Kill() { s.incoming.Kill() }

// nextError sorts what Incoming says, a refusal apart.
func nextError(err error) error {
	switch {
	case errors.Is(err, requestplane.ErrMissingFinal), errors.Is(err, requestplane.ErrClosed):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case errors.Is(err, requestplane.ErrBadResponse):
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	default: // none, the regular end, or the end of a context
		return err
	}
}
