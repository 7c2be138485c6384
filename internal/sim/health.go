package sim

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// healthServer is grpc.health.v1 with the real server's names and refusals. Once NOT_SERVING it stays so.
type healthServer struct {
	*health.Server

	stopping <-chan struct{} // ends Watch streams
}

func newHealth(stopping <-chan struct{}) *healthServer {
	h := &healthServer{Server: health.NewServer(), stopping: stopping}
	h.serve(true)
	return h
}

// serve sets all names. After the library's Shutdown it has no effect.
func (h *healthServer) serve(ok bool) {
	now := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		now = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range healthNames() {
		h.SetServingStatus(name, now)
	}
}

func healthNames() []string { return []string{"", "vllm.Inference", "vllm.Control"} }

func checkName(name string) error {
	if slices.Contains(healthNames(), name) {
		return nil
	}
	return status.Error(codes.NotFound, "service not registered")
}

// Check answers for one name.
func (h *healthServer) Check(ctx context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if err := checkName(req.GetService()); err != nil {
		return nil, err
	}
	return h.Server.Check(ctx, req)
}

// Watch tells the status of one name now and whenever it changes, until the server stops.
func (h *healthServer) Watch(req *healthpb.HealthCheckRequest, out healthpb.Health_WatchServer) error {
	if err := checkName(req.GetService()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(out.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- h.Server.Watch(req, watchStream{out, ctx}) }()
	select {
	case err := <-done:
		return err
	case <-h.stopping:
		cancel()
		<-done //nolint:errcheck // it ends because it was told to
		return errStopping()
	}
}

// watchStream gives the library's Watch a context that ends with the server.
type watchStream struct {
	healthpb.Health_WatchServer

	ctx context.Context
}

// Context is done when the client goes away or the server stops.
func (w watchStream) Context() context.Context { return w.ctx }
