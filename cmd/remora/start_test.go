package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"remora/internal/tinymodel"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// ground is what a start stands on; each case spoils one part of it.
type ground struct {
	t      *testing.T
	engine *vllmtest.Engine
	model  string // folder
	kv     string // folder of the discovery
	args   []string
	env    environment
}

func newGround(t *testing.T) *ground {
	t.Helper()
	g := &ground{t: t, engine: vllmtest.New(t), model: filepath.Join(t.TempDir(), "model"), kv: filepath.Join(t.TempDir(), "kv")}
	if err := tinymodel.Write(g.model); err != nil {
		t.Fatal(err)
	}
	g.named(func(m *pb.ModelInfo) { m.ModelId = g.model })
	g.env = environment{"DYN_FILE_KV": g.kv, "DYN_TCP_RPC_HOST": "127.0.0.1", "DYN_SYSTEM_HOST": "127.0.0.1", "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "0"}
	g.reach(g.engine.Loopback(t))
	return g
}

func (g *ground) reach(address string) {
	g.args = []string{"sidecar", "--discovery-backend=file", "--grpc-startup-deadline-secs=1", "--grpc-connections=2", "--grpc-endpoint=" + address}
}

func (g *ground) named(change func(m *pb.ModelInfo)) {
	g.engine.Set(func(b *vllmtest.Behaviour) { change(b.Model) })
}

// listening takes a port until the test ends.
func listening(t *testing.T, address string) (port string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// lowPort takes a port that DYN_SYSTEM_PORT can name: the ones that the kernel gives away are above its range.
func (g *ground) lowPort() string {
	g.t.Helper()
	for port := 21_000; port < 32_000; port += 97 {
		l, err := new(net.ListenConfig).Listen(g.t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			g.t.Cleanup(func() { _ = l.Close() })
			return fmt.Sprint(port)
		}
	}
	g.t.Fatal("no port is free")
	return ""
}

// TestSidecarStartFails: exit code 1, and a last line that says what is wrong and what to do about it.
func TestSidecarStartFails(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(g *ground)
		want  []string // parts of the last line
	}{
		"engine absent": {func(g *ground) {
			l, err := new(net.ListenConfig).Listen(g.t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				g.t.Fatal(err)
			}
			g.reach(l.Addr().String())
			_ = l.Close()
		}, []string{"connection refused", "1s", "start vLLM with --grpc-port, or set --grpc-endpoint"}},
		"engine is an HTTP server": {func(g *ground) {
			server := httptest.NewServer(http.NotFoundHandler())
			g.t.Cleanup(server.Close)
			g.reach(server.Listener.Addr().String())
		}, []string{"gRPC"}},
		"engine is another gRPC server": {func(g *ground) {
			l, err := new(net.ListenConfig).Listen(g.t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				g.t.Fatal(err)
			}
			server, served := grpc.NewServer(), make(chan struct{})
			go func() {
				defer close(served)
				_ = server.Serve(l)
			}()
			g.t.Cleanup(func() { server.Stop(); <-served })
			g.reach(l.Addr().String())
		}, []string{"not a vLLM native gRPC server"}},
		"engine does not serve": {func(g *ground) {
			g.engine.SetHealth(vllmtest.ControlService, healthpb.HealthCheckResponse_NOT_SERVING)
		}, []string{"NOT_SERVING", "deadline"}},
		"engine changes its model": {func(g *ground) {
			var looks atomic.Int32
			g.engine.Set(func(b *vllmtest.Behaviour) {
				b.Control = func(_ context.Context, method string) error {
					if method == "GetModelInfo" && looks.Add(1) == 2 {
						g.named(func(m *pb.ModelInfo) { m.ServedModelName = "other" })
					}
					return nil
				}
			})
		}, []string{"changed during the start", `served_model_name was "tiny" and is "other"`}},
		"model folder missing": {func(g *ground) { g.named(func(m *pb.ModelInfo) { m.ModelId = "/no/such/model" }) }, []string{"/no/such/model", "mount the model"}},
		"hub id not cached": {func(g *ground) {
			g.t.Setenv("HF_HUB_CACHE", g.t.TempDir())
			g.named(func(m *pb.ModelInfo) { m.ModelId = "acme/none" })
		}, []string{"acme/none", "hf download acme/none"}},
		"tokenizer missing": {func(g *ground) {
			if err := os.Remove(filepath.Join(g.model, "tokenizer.json")); err != nil {
				g.t.Fatal(err)
			}
		}, []string{"tokenizer.json", "model"}},
		"template missing": {func(g *ground) { g.args = append(g.args, "--custom-jinja-template=/no/such.jinja") }, []string{"/no/such.jinja", "--custom-jinja-template"}},
		"discovery is a file": {func(g *ground) {
			if err := os.WriteFile(g.kv, nil, 0o600); err != nil {
				g.t.Fatal(err)
			}
		}, []string{"DYN_FILE_KV", "not a directory"}},
		"discovery is nowhere": {func(g *ground) { g.env["DYN_FILE_KV"] = "/dev/null/kv" }, []string{"DYN_FILE_KV", "not a directory"}},
		"request port is taken": {func(g *ground) { g.env["DYN_TCP_RPC_PORT"] = listening(g.t, "127.0.0.1:0") },
			[]string{"DYN_TCP_RPC_PORT", "address already in use"}},
		"request host is another's": {func(g *ground) { g.env["DYN_TCP_RPC_HOST"] = "192.0.2.1" },
			[]string{"192.0.2.1", "DYN_TCP_RPC_HOST"}},
		"system port is taken": {func(g *ground) { g.env["DYN_SYSTEM_PORT"] = g.lowPort() },
			[]string{"DYN_SYSTEM_PORT", "address already in use"}},
		"paths that clash": {func(g *ground) {
			g.env["DYN_SYSTEM_PORT"], g.env["DYN_SYSTEM_HEALTH_PATH"], g.env["DYN_SYSTEM_LIVE_PATH"] = "0", "/x", "/x"
		}, []string{"DYN_SYSTEM_LIVE_PATH", "must differ"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGround(t)
			c.spoil(g)
			got := runWith(g.env, g.args...)
			lines := strings.Split(strings.TrimSuffix(got.stderr, "\n"), "\n")
			last := lines[len(lines)-1]
			if got.code != exitFailed || got.stdout != "" || !strings.HasPrefix(last, "remora sidecar: ") {
				t.Fatalf("code %d, stdout %q, stderr:\n%s", got.code, got.stdout, got.stderr)
			}
			for _, part := range c.want {
				if !strings.Contains(last, part) {
					t.Errorf("nothing of %q in: %s", part, last)
				}
			}
			if len(last) > 700 {
				t.Errorf("long-winded, %d bytes: %s", len(last), last)
			}
			left, err := filepath.Glob(filepath.Join(g.kv, "*", "*", "*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left in discovery: %v %v", left, err)
			}
		})
	}
}

// records are the files in a bucket of the discovery, which may be a pattern.
func (g *ground) records(bucket string) []string {
	g.t.Helper()
	found, err := filepath.Glob(filepath.Join(g.kv, "v1", bucket, "*"))
	if err != nil {
		g.t.Fatal(err)
	}
	return found
}

// silent listens and says nothing; reached is closed when somebody has connected.
func silent(t *testing.T, reached chan<- struct{}) (address string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var once sync.Once
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close() //nolint:gocritic // until the end of the test
			once.Do(func() { close(reached) })
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

// hold lets the engine's n-th answer to a method wait for whoever asked to give up.
func (g *ground) hold(method string, n int32, reached chan<- struct{}) {
	var asked atomic.Int32
	g.engine.Set(func(b *vllmtest.Behaviour) {
		b.Control = func(ctx context.Context, m string) error {
			if m == method && asked.Add(1) == n {
				close(reached)
				<-ctx.Done()
			}
			return ctx.Err()
		}
	})
}

// TestSidecarStops: whenever in its start the sidecar is told to stop, it ends with code 0 and leaves nothing behind. No deadline
// of the start helps it: they are all longer than the test may take.
func TestSidecarStops(t *testing.T) {
	for name, prepare := range map[string]func(g *ground, reached chan<- struct{}) (line string){
		"etcd is silent": func(g *ground, reached chan<- struct{}) string {
			g.args = append(g.args, "--discovery-backend=etcd")
			g.env["ETCD_ENDPOINTS"], g.env["ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS"] = "http://"+silent(g.t, reached), "600"
			return ""
		},
		"etcd is absent": func(g *ground, reached chan<- struct{}) string {
			g.args = append(g.args, "--discovery-backend=etcd")
			g.env["ETCD_ENDPOINTS"], g.env["ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS"] = "http://127.0.0.1:1", "600"
			close(reached)
			return ""
		},
		"NATS is silent": func(g *ground, reached chan<- struct{}) string {
			g.args = append(g.args, "--request-plane=nats")
			g.env["NATS_SERVER"], g.env["NATS_STARTUP_CONNECT_TIMEOUT_SECONDS"] = "nats://"+silent(g.t, reached), "600"
			return ""
		},
		"the engine is silent": func(g *ground, reached chan<- struct{}) string { g.reach(silent(g.t, reached)); return "" },
		"the engine is absent": func(g *ground, _ chan<- struct{}) string { g.reach("127.0.0.1:1"); return "waiting for the engine" },
		"the engine does not serve": func(g *ground, _ chan<- struct{}) string {
			g.engine.SetHealth(vllmtest.ControlService, healthpb.HealthCheckResponse_NOT_SERVING)
			return "waiting for the engine"
		},
		"inference does not serve": func(g *ground, _ chan<- struct{}) string {
			g.engine.SetHealth(vllmtest.InferenceService, healthpb.HealthCheckResponse_NOT_SERVING)
			return "waiting for the engine"
		},
		"the model's description":        func(g *ground, reached chan<- struct{}) string { g.hold("GetModelInfo", 1, reached); return "" },
		"the server's description":       func(g *ground, reached chan<- struct{}) string { g.hold("GetServerInfo", 1, reached); return "" },
		"the second look at the model":   func(g *ground, reached chan<- struct{}) string { g.hold("GetModelInfo", 2, reached); return "" },
		"the second look at the server":  func(g *ground, reached chan<- struct{}) string { g.hold("GetServerInfo", 2, reached); return "" },
		"the sources of the cache":       func(g *ground, reached chan<- struct{}) string { g.hold("GetKvEventSources", 1, reached); return "" },
		"the engine has been found":      func(*ground, chan<- struct{}) string { return "engine ready" },
		"registered":                     func(*ground, chan<- struct{}) string { return "worker registered" },
		"stopped before anything begins": func(_ *ground, reached chan<- struct{}) string { close(reached); return "" },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGround(t)
			reached := make(chan struct{})
			line := prepare(g, reached)
			g.args = append(g.args, "--grpc-startup-deadline-secs=600", "--grpc-connect-attempt-timeout-secs=600", "--grpc-retry-interval-secs=600")
			stop, stopNow := context.WithCancel(t.Context())
			defer stopNow()
			logs := make(announced, 64)
			code := make(chan int, 1)
			go func() {
				defer close(logs)
				code <- run(stop, t.Context(), system{args: withoutTwice(g.args), lookup: g.env.lookup, stdout: logs, stderr: logs})
			}()
			for open := true; open; {
				var text string
				select {
				case text, open = <-logs:
					if line != "" && strings.Contains(text, line) {
						stopNow()
					}
				case <-reached:
					stopNow()
					reached = nil
				}
			}
			if stop.Err() == nil {
				t.Fatal("ended before the moment")
			}
			if got := <-code; got != exitOK {
				t.Errorf("code %d", got)
			}
			if left := g.records("*"); len(left) > 0 {
				t.Errorf("left in discovery: %v", left)
			}
		})
	}
}

// withoutTwice keeps the last of the arguments that are given twice.
func withoutTwice(args []string) (out []string) {
	for i, a := range args {
		name, _, _ := strings.Cut(a, "=")
		again := false
		for _, b := range args[i+1:] {
			again = again || strings.HasPrefix(b, name+"=")
		}
		if !again {
			out = append(out, a)
		}
	}
	return out
}
