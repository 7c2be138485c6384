package vllm_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"remora/internal/vllm"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

var engineEndpoint = vllm.Endpoint{Host: "engine.test", Port: 50051}

func TestDialFillsThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		var addresses sync.Map
		client := dial(t, engine, func(c *vllm.Config) {
			c.Connections = 8
			c.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
				addresses.Store(address, true)
				return engine.Dial(ctx, address)
			}
		})
		// One more is for everything but the streams.
		if open, made := engine.Connections(); open != 9 || made != 9 {
			t.Errorf("%d open of %d made", open, made)
		}
		addresses.Range(func(address, _ any) bool {
			if address != "engine.test:50051" {
				t.Errorf("dialled %v", address)
			}
			return true
		})
		if client.Endpoint() != engineEndpoint {
			t.Error(client.Endpoint())
		}
	})
}

// An engine that is not there yet is knocked at by one connection, once an interval.
func TestDialWaitsForTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t, vllmtest.Down())
		var attempts atomic.Int32
		time.AfterFunc(90*time.Second+time.Millisecond, engine.Up)
		var log bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
		defer cancel()
		start := time.Now()
		client, err := vllm.Dial(ctx, vllm.Config{
			Endpoint: engineEndpoint, Connections: 4,
			Dialer: func(ctx context.Context, address string) (net.Conn, error) {
				attempts.Add(1)
				return engine.Dial(ctx, address)
			},
			Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != 91*time.Second {
			t.Errorf("took %v", took)
		}
		// 91 refused at seconds 0 to 90, then four connections and that for everything but the streams.
		if got := attempts.Load(); got != 96 {
			t.Errorf("%d attempts", got)
		}
		// At seconds 0, 30, 60 and 90.
		if lines := strings.Count(log.String(), "level=DEBUG"); lines != 4 || !strings.Contains(log.String(), "suppressed=29") {
			t.Errorf("log:\n%s", &log)
		}
	})
}

func TestDialGivesUpAtTheDeadline(t *testing.T) {
	tests := []struct {
		name   string
		dialer func(engine *vllmtest.Engine) vllm.Dialer
		want   []string
	}{
		{
			"refused",
			func(engine *vllmtest.Engine) vllm.Dialer { engine.Down(); return engine.Dial },
			[]string{"http://engine.test:50051", "deadline of 5s", "pool slot 1 of 3", "5 attempts", "5s elapsed", "connection refused"},
		},
		{
			"dial that hangs",
			func(*vllmtest.Engine) vllm.Dialer {
				return func(ctx context.Context, _ string) (net.Conn, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
			},
			[]string{"pool slot 1 of 3", "2 attempts", "deadline"},
		},
		{
			"peer that says nothing",
			func(*vllmtest.Engine) vllm.Dialer {
				return func(context.Context, string) (net.Conn, error) {
					near, far := net.Pipe()
					go func() { _, _ = io.Copy(io.Discard, far) }() // ends with near
					return near, nil
				}
			},
			[]string{"2 attempts", "no HTTP/2 settings"},
		},
		{
			"only the first slot",
			func(engine *vllmtest.Engine) vllm.Dialer {
				var taken atomic.Bool
				return func(ctx context.Context, address string) (net.Conn, error) {
					if taken.CompareAndSwap(false, true) {
						return engine.Dial(ctx, address)
					}
					return nil, &net.OpError{Op: "dial", Net: "tcp", Err: io.ErrUnexpectedEOF}
				}
			},
			[]string{"pool slot ", "unexpected EOF"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := vllmtest.New(t)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				start := time.Now()
				_, err := vllm.Dial(ctx, vllm.Config{
					Endpoint: engineEndpoint, Connections: 3, Dialer: test.dialer(engine), AttemptTimeout: 3 * time.Second,
				})
				if vllm.KindOfError(err) != vllm.CannotConnect || time.Since(start) != 5*time.Second {
					t.Fatalf("after %v: %v", time.Since(start), err)
				}
				for _, want := range test.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %q lacks %q", err, want)
					}
				}
				synctest.Wait()
				if open, _ := engine.Connections(); open != 0 {
					t.Errorf("%d connections left", open)
				}
			})
		})
	}
}

func TestDialCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t, vllmtest.Down())
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(1500*time.Millisecond, cancel)
		start := time.Now()
		_, err := vllm.Dial(ctx, vllm.Config{Endpoint: engineEndpoint, Dialer: engine.Dial})
		if vllm.KindOfError(err) != vllm.Cancelled || time.Since(start) != 1500*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// Peers of another kind, on real sockets: each ends in a plain sentence at the deadline.
// lastWords is a log that ends what it is the log of.
type lastWords struct {
	bytes.Buffer

	then func()
}

func (w *lastWords) Write(p []byte) (int, error) {
	defer w.then()
	return w.Buffer.Write(p)
}

func TestDialWrongKindOfServer(t *testing.T) {
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	plain := httptest.NewServer(hello)
	defer plain.Close()
	secure := httptest.NewUnstartedServer(hello)
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	secure.StartTLS()
	defer secure.Close()
	closed, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := closed.Addr().String()
	if err = closed.Close(); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, address, want string }{
		{"HTTP/1", plain.Listener.Addr().String(), "HTTP port"},
		{"TLS", secure.Listener.Addr().String(), "TLS"},
		{"nobody", refused, "connection refused"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			endpoint, err := vllm.ParseEndpoint(test.address)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			log := &lastWords{then: cancel} // the first attempt has failed
			_, err = vllm.Dial(ctx, vllm.Config{
				Endpoint: endpoint, Connections: 2, Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			})
			if vllm.KindOfError(err) != vllm.Cancelled || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if warned := strings.Contains(log.String(), "level=WARN"); warned == (test.name == "nobody") {
				t.Errorf("a wrong port is worth a warning, an engine that is late is not; log:\n%s", log)
			}
		})
	}
}

func TestLoopback(t *testing.T) {
	engine := vllmtest.New(t)
	endpoint, err := vllm.ParseEndpoint(engine.Loopback(t))
	if err != nil {
		t.Fatal(err)
	}
	client := dial(t, engine, func(c *vllm.Config) { c.Endpoint, c.Dialer, c.Connections = endpoint, nil, 3 })
	sink := newRecorder(t, nil)
	client.Open(request("a"), nil, sink)
	if status := sink.end(); status != (vllm.Status{}) {
		t.Error(status)
	}
}

func TestWaitServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		engine.SetHealth(vllm.InferenceService, healthpb.HealthCheckResponse_NOT_SERVING)
		client := dial(t, engine, nil)
		if err := client.WaitServing(t.Context(), vllm.ControlService); err != nil {
			t.Error(err)
		}
		if health, err := client.Check(t.Context(), vllm.InferenceService); err != nil || health != "NOT_SERVING" {
			t.Error(health, err)
		}
		time.AfterFunc(10*time.Second, func() {
			engine.SetHealth(vllm.InferenceService, healthpb.HealthCheckResponse_ServingStatus(77))
		})
		time.AfterFunc(20*time.Second, func() { engine.Down() })
		time.AfterFunc(40*time.Second, func() {
			engine.SetHealth(vllm.InferenceService, healthpb.HealthCheckResponse_SERVING)
			engine.Up()
		})
		start := time.Now()
		if err := client.WaitServing(t.Context(), vllm.InferenceService); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took < 40*time.Second || took > 42*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestWaitServingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		engine.SetHealth(vllm.ControlService, healthpb.HealthCheckResponse_NOT_SERVING)
		client := dial(t, engine, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		err := client.WaitServing(ctx, vllm.ControlService)
		if vllm.KindOfError(err) != vllm.CannotConnect {
			t.Errorf("kind of %v", err)
		}
		for _, want := range []string{"vllm.Control", "7s elapsed", "NOT_SERVING"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q lacks %q", err, want)
			}
		}
		start := time.Now()
		err = client.WaitServing(t.Context(), "vllm.Generate")
		if vllm.KindOfError(err) != vllm.Protocol || time.Since(start) != 0 || !strings.Contains(err.Error(), "not a vLLM native gRPC server") {
			t.Errorf("unknown service, after %v: %v", time.Since(start), err)
		}
		none := dial(t, vllmtest.New(t, vllmtest.WithoutHealth()), nil)
		if err = none.WaitServing(t.Context(), vllm.ControlService); vllm.KindOfError(err) != vllm.Protocol {
			t.Errorf("no health service: %v", err)
		}
	})
}

func TestDiscover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		client := dial(t, engine, nil)
		first, err := client.Discover(t.Context())
		if err != nil || first.ServedName != "tiny" {
			t.Fatalf("%+v, %v", first, err)
		}
		engine.Set(func(b *vllmtest.Behaviour) {
			b.Model = &pb.ModelInfo{ModelId: "other", ServedModelName: "other", SupportsTokenIdsInput: true}
		})
		second, err := client.Discover(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err = first.SameIdentity(second); vllm.KindOfError(err) != vllm.Protocol {
			t.Error(err)
		}
		engine.Set(func(b *vllmtest.Behaviour) {
			b.Control = func(ctx context.Context, method string) error {
				if method == "GetModelInfo" {
					return status.Error(codes.Unimplemented, "unknown method")
				}
				<-ctx.Done()
				return ctx.Err()
			}
		})
		_, err = client.Discover(t.Context())
		if vllm.KindOfError(err) != vllm.Unimplemented || err.Error() != "GetModelInfo: unknown method (Unimplemented)" {
			t.Error(err)
		}
		engine.Set(func(b *vllmtest.Behaviour) {
			b.Control = func(ctx context.Context, method string) error {
				if method == "GetServerInfo" {
					<-ctx.Done()
				}
				return ctx.Err()
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err = client.Discover(ctx); vllm.KindOfError(err) != vllm.Timeout || !strings.HasPrefix(err.Error(), "GetServerInfo: ") {
			t.Errorf("silence: %v", err)
		}
	})
}

func TestAskForKVSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		client := dial(t, engine, nil)
		ranks := vllm.LocalRanks{Count: 1, Global: 1}
		if sources, notes, err := client.KVSources(t.Context(), ranks); sources != nil || notes != nil || err != nil {
			t.Errorf("an engine without events: %+v, %v, %v", sources, notes, err)
		}
		engine.Set(func(b *vllmtest.Behaviour) {
			b.Sources = []*pb.KvEventSource{{Transport: "zmq", Endpoint: "tcp://*:5557", DataParallelRank: new(uint32)}}
		})
		sources, _, err := client.KVSources(t.Context(), ranks)
		if err != nil || len(sources) != 1 || sources[0].Endpoint.String() != "tcp://engine.test:5557" {
			t.Errorf("%+v, %v", sources, err)
		}
		engine.Set(func(b *vllmtest.Behaviour) {
			b.Control = func(context.Context, string) error { return status.Error(codes.Unimplemented, "unknown method") }
		})
		_, _, err = client.KVSources(t.Context(), ranks)
		if vllm.KindOfError(err) != vllm.Unimplemented || err.Error() != "GetKvEventSources: unknown method (Unimplemented)" {
			t.Error(err)
		}
	})
}

func TestAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := vllmtest.New(t)
		engine.Script("running", vllmtest.Headers(), vllmtest.Prompt(3), vllmtest.Tokens(1), vllmtest.Silence())
		engine.Script("queued", vllmtest.Headers(), vllmtest.Silence())
		client := dial(t, engine, nil)
		running, queued := newRecorder(t, nil), newRecorder(t, nil)
		client.Open(request("running"), nil, running)
		client.Open(request("queued"), nil, queued)
		synctest.Wait()
		if err := client.Abort(t.Context()); err != nil {
			t.Errorf("no ids: %v", err)
		}
		if err := client.Abort(t.Context(), "running", "queued", "unknown"); err != nil {
			t.Error(err)
		}
		if status := running.end(); status != (vllm.Status{}) {
			t.Error(status)
		}
		if status := queued.end(); status != (vllm.Status{}) {
			t.Error(status)
		}
		if got := strings.Join(running.got(), ", "); got != "headers, prompt 3, tokens [1], finish ABORTED [], end" {
			t.Error(got)
		}
		if got := strings.Join(queued.got(), ", "); got != "headers, prompt 3, finish ABORTED [], end" {
			t.Error(got)
		}

		// An Abort that gets no answer is given up, and holds nothing else up meanwhile.
		engine.Set(func(b *vllmtest.Behaviour) {
			b.Control = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
		})
		start := time.Now()
		aborted := make(chan error, 1)
		go func() { aborted <- client.Abort(t.Context(), "x") }()
		synctest.Wait()
		sink := newRecorder(t, nil)
		client.Open(request("meanwhile"), nil, sink)
		if status := sink.end(); status != (vllm.Status{}) || time.Since(start) != 0 {
			t.Errorf("after %v: %v", time.Since(start), status)
		}
		if err := <-aborted; vllm.KindOfError(err) != vllm.Timeout || time.Since(start) != vllm.DefaultAbortTimeout {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		engine.Set(func(b *vllmtest.Behaviour) {
			b.Control = func(context.Context, string) error { return status.Error(codes.Unimplemented, "no Abort here") }
		})
		if err := client.Abort(t.Context(), "x"); vllm.KindOfError(err) != vllm.Unimplemented {
			t.Error(err)
		}
	})
}
