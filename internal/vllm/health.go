package vllm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Names of an engine's services, for health checks.
const (
	InferenceService = "vllm.Inference"
	ControlService   = "vllm.Control"
)

// Health is what a health check says of a service, in the protocol's words; a number that the protocol does not know is its
// decimal text.
type Health string

// Serving is the only good Health. vLLM turns to NOT_SERVING when its EngineCore has failed or shutdown starts, and never
// back.
const Serving Health = "SERVING"

// Check asks for the health of a service once, bounded by the context and by Config.AttemptTimeout. An error is that of the
// call; it is of kind Protocol when the server has no such service, and so is no vLLM native server.
func (c *Client) Check(ctx context.Context, service string) (Health, error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.AttemptTimeout)
	defer cancel()
	answer, err := healthpb.NewHealthClient(c.aside()).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	status := statusOf("Health.Check", err)
	switch status.Code {
	case codes.OK:
		return Health(answer.GetStatus().String()), nil
	case codes.NotFound, codes.Unimplemented:
		return "", &Error{
			Kind: Protocol,
			Text: fmt.Sprintf("the server at %s is not a vLLM native gRPC server with %s (a vLLM that is too old, or the Python"+
				" gRPC server that listens on 50051 by default?)", c.config.Endpoint, service),
			Err: status.Err(),
		}
	default:
		return "", status.Err()
	}
}

// WaitServing asks until the service is SERVING. It fails at once when the server has no such service, and at the context's
// deadline with the last answer.
func (c *Client) WaitServing(ctx context.Context, service string) error {
	start := time.Now()
	retries := retryLog{log: c.config.Log}
	var last error
	for {
		health, err := c.Check(ctx, service)
		if err == nil && health == Serving {
			return nil
		}
		if KindOfError(err) == Protocol {
			return err
		}
		if err == nil {
			err = errors.New("it answers " + string(health))
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if ctx.Err() == nil {
			retries.note(ctx, slog.LevelDebug, err.Error(), "engine not serving yet", "peer", c.config.Endpoint.String(), "service", service)
			if pause(ctx, c.config.RetryInterval) {
				continue
			}
		}
		return &Error{
			Kind: giveUpKind(ctx, CannotConnect),
			Text: fmt.Sprintf("wait for %s at %s to serve: %s, %v elapsed, last status",
				service, c.config.Endpoint, endOfPatience(ctx, start), time.Since(start).Round(time.Millisecond)),
			Err: last,
		}
	}
}
