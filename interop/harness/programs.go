package harness

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Environment variables that say where the programs are. The Makefile sets them; the defaults fit `go test` run by hand
// after `make build dynamo engine`.
const (
	envRemora = "REMORA_BIN"
	envDynamo = "REMORA_DYNAMO_VENV"
	envVLLM   = "REMORA_VLLM_VENV"
	// envServices is a folder with the programs etcd and nats-server.
	envServices = "REMORA_SERVICES"
)

// remoraBinary, dynamoPython and VLLMVenv find what the tests run.
func remoraBinary(t T) string { return located(t, envRemora, "bin/remora", "make build") }
func dynamoPython(t T) string {
	return filepath.Join(located(t, envDynamo, ".cache/dynamo", "make dynamo"), "bin", "python")
}
func VLLMVenv(t T) string { return located(t, envVLLM, ".cache/vllm", "make engine") }

func located(t T, variable, underRoot, remedy string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		path = filepath.Join(Root(t), underRoot)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run `%s` first, or set %s", err, remedy, variable)
	}
	return path
}

// Root is the folder of the Remora module: the nearest one above that holds interop.
func Root(t T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatalf("%v", err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "interop", "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatalf("not inside Remora's tree")
	return ""
}

// How long programs may take to start; generous, since machines in CI are slow and a failure is final.
const (
	startTimeout  = 60 * time.Second
	engineTimeout = 10 * time.Minute
)

// Cluster is what the programs of one Dynamo deployment share.
type Cluster struct {
	Discovery string // folder of the file backend
	env       []string
}

// NewCluster returns a deployment of its own, with file discovery and everything on loopback.
func NewCluster(t T) *Cluster {
	t.Helper()
	dir := t.TempDir()
	return &Cluster{
		Discovery: dir,
		env: []string{
			"DYN_DISCOVERY_BACKEND=file", "DYN_FILE_KV=" + dir, "DYN_REQUEST_PLANE=tcp", "DYN_EVENT_PLANE=zmq",
			"DYN_TCP_RPC_HOST=127.0.0.1", "DYN_TCP_RESPONSE_STREAM_HOST=127.0.0.1",
			"DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS=0",
		},
	}
}

// Frontend is a running stock Dynamo frontend.
type Frontend struct {
	*Process
	*Client
}

// Frontend starts the stock frontend and waits until it answers. It holds inotify instances, of which a user has few:
// share one where tests allow it.
func (c *Cluster) Frontend(t T, args ...string) *Frontend {
	t.Helper()
	port := FreePort(t)
	argv := append([]string{
		dynamoPython(t), "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", strconv.Itoa(port),
		"--router-mode", "round-robin",
	}, args...)
	env := append([]string{"DYN_LOG=info,dynamo_llm::http::service::service_v2=warn"}, c.env...) // no line for each poll
	f := &Frontend{Start(t, "frontend", env, AtOnce, argv...), NewClient(port)}
	Poll(t, "the frontend", startTimeout, func() error {
		if _, err := f.Get(t.Context(), "/health"); err != nil {
			return f.because(err)
		}
		return nil
	})
	return f
}

// because is err, or a final error when the program has ended: the reason to stop polling.
func (p *Process) because(err error) error {
	if p.Exited() {
		return p.alive()
	}
	return err
}

// WaitModel waits until /v1/models lists model.
func (f *Frontend) WaitModel(t T, model string) {
	t.Helper()
	Poll(t, model+" in /v1/models", startTimeout, func() error {
		ids, err := f.models(t.Context())
		if err != nil {
			return f.because(err)
		}
		if !slices.Contains(ids, model) {
			return fmt.Errorf("listed: %q", ids)
		}
		return nil
	})
}

// WaitGone waits until /v1/models no longer lists model.
func (f *Frontend) WaitGone(t T, model string, within time.Duration) {
	t.Helper()
	Poll(t, model+" to leave /v1/models", within, func() error {
		ids, err := f.models(t.Context())
		if err != nil {
			return f.because(err)
		}
		if slices.Contains(ids, model) {
			return fmt.Errorf("listed: %q", ids)
		}
		return nil
	})
}

// WaitServing waits until a short completion succeeds: a listed pair may refuse for a moment, until its decode set has
// noticed the prefill set. Any other failure is one.
func (f *Frontend) WaitServing(t T, model string) {
	t.Helper()
	f.WaitModel(t, model)
	Poll(t, model+" to answer", startTimeout, func() error {
		a, err := f.ask(t.Context(), Request{Model: model, Prompt: "ready?", MaxTokens: 1})
		if err != nil {
			return f.because(err)
		}
		switch a.Status {
		case http.StatusOK:
			return nil
		case http.StatusServiceUnavailable, http.StatusNotFound:
			return fmt.Errorf("status %d: %s", a.Status, a.Body)
		default:
			return Final(fmt.Errorf("status %d: %s", a.Status, a.Body))
		}
	})
}

// Role is a value of --disaggregation-mode.
type Role string

// The roles that the tests use.
const (
	Aggregated Role = "agg"
	Prefill    Role = "prefill"
	Decode     Role = "decode"
)

// Sidecar is a running sidecar of either kind.
type Sidecar struct {
	*Process

	Role Role

	// Status is the system status server: /health, /live, /metrics.
	Status *Client
}

// Kind says which sidecar: the stock one or ours.
type Kind string

// The two kinds.
const (
	Rust   Kind = "rust"
	Remora Kind = "remora"
)

// Sidecar starts a worker in front of the engine and waits until it is registered, which its status server tells. A
// Remora must end with status 0 when it is asked to at the end of the test.
func (c *Cluster) Sidecar(t T, kind Kind, role Role, engine Engine, args ...string) *Sidecar {
	t.Helper()
	s := c.StartSidecar(t, kind, role, engine.GRPCPort(), args...)
	s.WaitReady(t)
	return s
}

// StartSidecar is Sidecar without waiting.
func (c *Cluster) StartSidecar(t T, kind Kind, role Role, grpcPort int, args ...string) *Sidecar {
	t.Helper()
	system := FreePort(t)
	env := append([]string{
		"DYN_SYSTEM_HOST=127.0.0.1", "DYN_SYSTEM_PORT=" + strconv.Itoa(system), "DYN_LOG=debug",
	}, c.env...)
	end := AtOnce
	if kind == Remora {
		end = Politely
	}
	argv := sidecarCommand(t, kind)
	argv = append(argv, "--grpc-endpoint", "http://127.0.0.1:"+strconv.Itoa(grpcPort), "--disaggregation-mode", string(role))
	name := fmt.Sprintf("%s-%s-%d", kind, role, grpcPort)
	s := &Sidecar{Start(t, name, env, end, append(argv, args...)...), role, NewClient(system)}
	if kind == Remora {
		t.Cleanup(func() { // runs before Start's cleanup, so that the exit status is the program's own
			if s.Exited() {
				return // the test ended it and looked at its status
			}
			s.Signal(syscall.SIGTERM)
			if code := s.WaitExit(t, Grace); code != 0 {
				t.Errorf("%s ended with status %d after SIGTERM", name, code)
			}
		})
	}
	return s
}

// StartCommand starts a sidecar with exactly these arguments and variables. It is killed when the test ends.
func StartCommand(t T, kind Kind, env, args []string) *Process {
	t.Helper()
	return Start(t, string(kind), env, AtOnce, append(sidecarCommand(t, kind), args...)...)
}

func sidecarCommand(t T, kind Kind) []string {
	t.Helper()
	if kind == Remora {
		return []string{remoraBinary(t), "sidecar"}
	}
	return []string{dynamoPython(t), "-m", "dynamo.vllm.sidecar"}
}

// WaitReady waits until the sidecar says that it serves.
func (s *Sidecar) WaitReady(t T) {
	t.Helper()
	Poll(t, s.Name+" to be ready", startTimeout, func() error {
		if _, err := s.Status.Get(t.Context(), "/health"); err != nil {
			return s.because(err)
		}
		return nil
	})
}

// Instance is the id under which routers know a Remora, which its metrics tell.
func (s *Sidecar) Instance(t T) uint64 {
	t.Helper()
	text, err := s.Status.Get(t.Context(), "/metrics")
	if err != nil {
		t.Fatalf("%v", err)
	}
	_, rest, _ := strings.Cut(text, `worker_id="`)
	hex, _, _ := strings.Cut(rest, `"`)
	id, err := strconv.ParseUint(hex, 16, 64)
	if err != nil {
		t.Fatalf("the worker_id of the metrics: %v", err)
	}
	return id
}

// Engine is what a sidecar stands in front of.
type Engine interface {
	GRPCPort() int
	// Metrics scrapes the engine under vLLM's names.
	Metrics(t T) Metrics
}

// Sim is a running simulated engine.
type Sim struct {
	*Process
	*Client

	Model string // the name that it serves

	grpc, http, side int
}

// GRPCPort implements Engine.
func (s *Sim) GRPCPort() int { return s.grpc }

// SimModel is the name under which simulators serve the built-in model here.
const SimModel = "remora-tiny"

// StartSim starts a simulated engine and waits until it is healthy.
func StartSim(t T, args ...string) *Sim {
	t.Helper()
	s := &Sim{Model: SimModel, grpc: FreePort(t), http: FreePort(t), side: FreePort(t)}
	s.Restart(t, args...)
	return s
}

// Restart starts the engine, again, on its ports.
func (s *Sim) Restart(t T, args ...string) {
	t.Helper()
	argv := append([]string{
		remoraBinary(t), "sim", "--grpc-port", strconv.Itoa(s.grpc), "--http-port", strconv.Itoa(s.http),
		"--side-channel-port", strconv.Itoa(s.side),
	}, args...)
	s.Process, s.Client = Start(t, fmt.Sprintf("sim-%d", s.grpc), nil, AtOnce, argv...), NewClient(s.http)
	Poll(t, s.Name, startTimeout, func() error {
		if _, err := s.Get(t.Context(), "/health"); err != nil {
			return s.because(err)
		}
		return nil
	})
}

// VLLM is a running real engine.
type VLLM struct {
	*Process
	*Client

	grpc int
}

// GRPCPort implements Engine.
func (v *VLLM) GRPCPort() int { return v.grpc }

// StartVLLM starts a real engine with a KV connector on the model folder, without waiting: it takes a minute, and two can
// start together. Call WaitReady.
func StartVLLM(t T, name, model string, args ...string) *VLLM {
	t.Helper()
	grpc, http := FreePort(t), FreePort(t)
	argv := append([]string{
		filepath.Join(Root(t), "interop", "scripts", "start-engine.sh"), VLLMVenv(t), model,
		strconv.Itoa(http), strconv.Itoa(grpc), strconv.Itoa(FreePort(t)),
	}, args...)
	return &VLLM{Start(t, name, nil, Politely, argv...), NewClient(http), grpc}
}

// WaitReady waits until the engine has loaded its model, and tells now and then what it does.
func (v *VLLM) WaitReady(t T) {
	t.Helper()
	const tellEvery = 20 * time.Second
	began := time.Now()
	tell := began.Add(tellEvery)
	Poll(t, v.Name, engineTimeout, func() error {
		if _, err := v.Get(t.Context(), "/health"); err != nil {
			if now := time.Now(); now.After(tell) {
				tell = now.Add(tellEvery)
				t.Logf("%s loads since %v: %.160s", v.Name, now.Sub(began).Round(time.Second), v.LogTail(1))
			}
			return v.because(err)
		}
		return nil
	})
}

// Up is a running `remora up`: everything in one process.
type Up struct {
	*Process
	*Client
}

// StartUp starts the small deployment and waits until its front door is healthy.
func StartUp(t T, args ...string) *Up {
	t.Helper()
	port := FreePort(t)
	argv := append([]string{remoraBinary(t), "up", "--port", strconv.Itoa(port)}, args...)
	u := &Up{Start(t, "up", nil, Politely, argv...), NewClient(port)}
	Poll(t, "remora up", startTimeout, func() error {
		if _, err := u.Get(t.Context(), "/health"); err != nil {
			return u.because(err)
		}
		return nil
	})
	return u
}
