package vllmtest

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pb "remora/proto/vllm"
)

func (e *Engine) control(ctx context.Context, method string) (Behaviour, error) {
	e.mu.Lock()
	behaviour := e.behaviour
	e.mu.Unlock()
	if behaviour.Control == nil {
		return behaviour, nil
	}
	return behaviour, behaviour.Control(ctx, method)
}

// GetModelInfo answers with Behaviour.Model.
func (e *Engine) GetModelInfo(ctx context.Context, _ *pb.GetModelInfoRequest) (*pb.ModelInfo, error) {
	e.record(Event{Kind: Discovered, ID: "GetModelInfo"})
	behaviour, err := e.control(ctx, "GetModelInfo")
	return behaviour.Model, err
}

// GetServerInfo answers with Behaviour.Server.
func (e *Engine) GetServerInfo(ctx context.Context, _ *pb.GetServerInfoRequest) (*pb.ServerInfo, error) {
	e.record(Event{Kind: Discovered, ID: "GetServerInfo"})
	behaviour, err := e.control(ctx, "GetServerInfo")
	return behaviour.Server, err
}

// GetKvEventSources answers with Behaviour.Sources: by default there are none, as of an engine that publishes no KV events.
func (e *Engine) GetKvEventSources(ctx context.Context, _ *pb.GetKvEventSourcesRequest) (*pb.GetKvEventSourcesResponse, error) {
	e.record(Event{Kind: Discovered, ID: "GetKvEventSources"})
	behaviour, err := e.control(ctx, "GetKvEventSources")
	return &pb.GetKvEventSourcesResponse{Sources: behaviour.Sources}, err
}

// Abort ends the live requests of the ids as vLLM does: their scripts answer ABORTED at their next waiting step.
func (e *Engine) Abort(ctx context.Context, request *pb.AbortRequest) (*pb.AbortResponse, error) {
	for _, id := range request.GetRequestIds() {
		e.record(Event{Kind: Aborted, ID: id})
	}
	behaviour, err := e.control(ctx, "Abort")
	if err != nil {
		return nil, err
	}
	if behaviour.Deaf {
		return &pb.AbortResponse{}, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range request.GetRequestIds() {
		for call := range e.calls[id] {
			call.abortLocked()
		}
	}
	return &pb.AbortResponse{}, nil
}

// abortLocked is called under the engine's mu, which is what makes the check and the close one.
func (c *Call) abortLocked() {
	select {
	case <-c.aborted:
	default:
		close(c.aborted)
	}
}

// recordingHealth is grpc-go's health service with its calls in the log.
type recordingHealth struct {
	*health.Server

	engine *Engine
}

func (h recordingHealth) Check(ctx context.Context, request *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	h.engine.record(Event{Kind: Checked, ID: request.GetService()})
	if h.engine.deafHealth.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.Server.Check(ctx, request)
}

func (h recordingHealth) Watch(request *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	h.engine.record(Event{Kind: Watched, ID: request.GetService()})
	if h.engine.noWatch {
		return status.Error(codes.Unimplemented, "no Watch here")
	}
	return h.Server.Watch(request, stream)
}
