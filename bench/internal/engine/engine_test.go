package engine_test

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"remora/bench/internal/engine"
	pb "remora/proto/vllm"
)

// dial starts an engine and returns a stock gRPC client of it, which judges its HTTP/2.
func dial(t *testing.T, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- engine.New("/model").Serve(l) }()
	t.Cleanup(func() {
		_ = l.Close()
		<-served
	})
	conn, err := grpc.NewClient(l.Addr().String(), append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func ask(id string, prompt, tokens int, interval time.Duration) *pb.GenerateRequest {
	seed := interval.Microseconds()
	ids := make([]uint32, prompt)
	for i := range ids {
		ids[i] = uint32(i * 37)
	}
	return &pb.GenerateRequest{
		RequestId: id, Prompt: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}},
		Sampling: &pb.RandomSampling{Seed: &seed}, Stopping: &pb.StoppingCriteria{MaxNewTokens: uint32(tokens)},
	}
}

func TestAnswers(t *testing.T) {
	client := pb.NewInferenceClient(dial(t))
	for _, tc := range []struct {
		name           string
		prompt, tokens int
		interval       time.Duration
	}{
		{"paced", 5, 4, time.Millisecond},
		{"flat out", 300, 5000, 0},
		{"one token", 1, 1, 20 * time.Millisecond},
		{"no prompt", 0, 1, 0},
		{"a prompt larger than a window", 200_000, 3, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			stream, err := client.GenerateStream(t.Context(), ask("a", tc.prompt, tc.tokens, tc.interval))
			if err != nil {
				t.Fatal(err)
			}
			first, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got := first.GetPromptInfo().GetNumPromptTokens(); got != uint32(tc.prompt) || first.GetOutputs() != nil {
				t.Fatalf("first message %v, want prompt_info with %d", first, tc.prompt)
			}
			for i := range tc.tokens {
				m, err := stream.Recv()
				if err != nil {
					t.Fatal(err)
				}
				out := m.GetOutputs()
				if out.GetNumTokens() != 1 || len(out.GetTokenIds()) != 1 || m.GetPromptInfo() != nil {
					t.Fatalf("message %d: %v", i, m)
				}
				if age := engine.Age(time.Now().UnixMicro(), out.GetTokenIds()[0]); age > time.Minute.Microseconds() {
					t.Fatalf("message %d is stamped %d µs ago", i, age)
				}
				finish := out.GetFinishInfo()
				if (finish != nil) != (i == tc.tokens-1) {
					t.Fatalf("message %d of %d: finish_info %v", i, tc.tokens, finish)
				}
				if finish != nil && (finish.GetNumOutputTokens() != uint32(tc.tokens) || finish.GetFinishReason() != pb.FinishInfo_LENGTH) {
					t.Fatalf("finish_info %v", finish)
				}
			}
			if m, err := stream.Recv(); m != nil || err == nil || status.Code(err) != codes.Unknown || err.Error() != "EOF" {
				t.Fatalf("after the last token: %v, %v", m, err)
			}
		})
	}
}

// TestSmallWindows reads many streams at once through windows that hold a few messages each.
func TestSmallWindows(t *testing.T) {
	client := pb.NewInferenceClient(dial(t, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10)))
	const streams, tokens = 20, 10_000 // 150 KB a stream
	var open []grpc.ServerStreamingClient[pb.GenerateResponse]
	for i := range streams {
		s, err := client.GenerateStream(t.Context(), ask(string(rune('a'+i)), 3, tokens, 0))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, s)
	}
	for _, s := range open { // one after the other: those that nobody reads must not hold up the rest
		n := 0
		for {
			m, err := s.Recv()
			if err != nil {
				break
			}
			n += len(m.GetOutputs().GetTokenIds())
		}
		if n != tokens {
			t.Fatalf("%d tokens, want %d", n, tokens)
		}
	}
}

func TestAbortAndCancel(t *testing.T) {
	conn := dial(t)
	client := pb.NewInferenceClient(conn)
	for _, interval := range []time.Duration{0, time.Millisecond} {
		stream, err := client.GenerateStream(t.Context(), ask("gone", 3, 1_000_000_000, interval))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = stream.Recv(); err != nil {
			t.Fatal(err)
		}
		if _, err = pb.NewControlClient(conn).Abort(t.Context(), &pb.AbortRequest{RequestIds: []string{"unknown", "gone"}}); err != nil {
			t.Fatal(err)
		}
		var last *pb.GenerateResponse
		for {
			m, err := stream.Recv()
			if err != nil {
				break
			}
			last = m
		}
		if last.GetOutputs().GetFinishInfo().GetFinishReason() != pb.FinishInfo_ABORTED {
			t.Fatalf("last message %v", last)
		}
	}
	// A stream that was reset takes nothing from the next.
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := client.GenerateStream(ctx, ask("reset", 3, 1_000_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	cancel()
	stream, err := client.GenerateStream(t.Context(), ask("after", 3, 10, 0))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for {
		if _, err := stream.Recv(); err != nil {
			break
		}
		n++
	}
	if n != 11 {
		t.Fatalf("%d messages, want 11", n)
	}
}

func TestRefusals(t *testing.T) {
	client := pb.NewInferenceClient(dial(t))
	for name, request := range map[string]*pb.GenerateRequest{
		"no tokens":      ask("a", 1, 0, 0),
		"too slow":       ask("a", 1, 1, time.Hour),
		"negative speed": ask("a", 1, 1, -time.Second),
	} {
		stream, err := client.GenerateStream(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := client.Generate(t.Context(), ask("a", 1, 1, 0)); status.Code(err) != codes.Unimplemented {
		t.Errorf("Generate: %v", err)
	}
}

func TestControlAndHealth(t *testing.T) {
	conn := dial(t)
	control, health := pb.NewControlClient(conn), healthpb.NewHealthClient(conn)
	model, err := control.GetModelInfo(t.Context(), &pb.GetModelInfoRequest{})
	if err != nil || model.GetModelId() != "/model" || !model.GetSupportsTokenIdsInput() {
		t.Errorf("GetModelInfo: %v, %v", model, err)
	}
	server, err := control.GetServerInfo(t.Context(), &pb.GetServerInfoRequest{})
	if err != nil || server.GetApiVersion() != "vllm" || server.GetInstanceId() == "" {
		t.Errorf("GetServerInfo: %v, %v", server, err)
	}
	sources, err := control.GetKvEventSources(t.Context(), &pb.GetKvEventSourcesRequest{})
	if err != nil || len(sources.GetSources()) > 0 {
		t.Errorf("GetKvEventSources: %v, %v", sources, err)
	}
	check, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "vllm.Inference"})
	if err != nil || check.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("Check: %v, %v", check, err)
	}
	watch, err := health.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "vllm.Inference"})
	if err != nil {
		t.Fatal(err)
	}
	told, err := watch.Recv()
	if err != nil || told.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("Watch: %v, %v", told, err)
	}
}

func TestStamp(t *testing.T) {
	now := time.Now().UnixMicro()
	stamps := []uint32{engine.Stamp(), engine.Stamp()}
	if slices.Min(stamps) < 1<<27 || slices.Max(stamps) >= 1<<28 {
		t.Errorf("%x: not of four varint bytes", stamps)
	}
	if age := engine.Age(now+1500, uint32(now&(1<<27-1))|1<<27); age != 1500 {
		t.Errorf("age %d, want 1500", age)
	}
	if age := engine.Age(1<<27+3, 1<<28-2); age != 5 { // around the modulus
		t.Errorf("age %d, want 5", age)
	}
}
