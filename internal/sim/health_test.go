package sim

import (
	"testing"
	"testing/synctest"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func wantHealth(t *testing.T, e *engine, want string) {
	t.Helper()
	client := healthpb.NewHealthClient(e.conn)
	for _, name := range healthNames() {
		got, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
		if err != nil || got.GetStatus().String() != want {
			t.Errorf("health of %q: %v %v, want %s", name, got.GetStatus(), err, want)
		}
	}
}

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", nil)
		wantHealth(t, e, "SERVING")
		client := healthpb.NewHealthClient(e.conn)
		_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "vllm.Generate"})
		wantStatus(t, err, "NotFound: service not registered")
		watch, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "vllm.Inference"})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"SERVING", "NOT_SERVING"} {
			got, err := watch.Recv()
			if err != nil || got.GetStatus().String() != want {
				t.Fatalf("watch: %v %v, want %s", got.GetStatus(), err, want)
			}
			if want == "SERVING" {
				e.health.Shutdown()
			}
		}
		if err := e.end(); err != nil {
			t.Error(err)
		}
		if _, err := watch.Recv(); err == nil {
			t.Error("watch goes on after the end")
		}
	})
}
