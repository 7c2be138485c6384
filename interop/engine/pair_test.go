package engine

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"remora/internal/sim/calibration"
	"remora/interop/harness"
	"remora/interop/tinyllama"
)

// smallEngine is a real engine with the settings that the calibration counts on, on ports that it keeps when it is started
// again.
type smallEngine struct {
	*harness.Process
	*harness.Client

	owner            *testing.T // what it runs for, also when a subtest starts it again
	name, model      string
	grpc, http, nixl int
}

// GRPCPort implements harness.Engine.
func (e *smallEngine) GRPCPort() int { return e.grpc }

func newSmallEngine(t *testing.T, name, model string) *smallEngine {
	t.Helper()
	return &smallEngine{owner: t, name: name, model: model, grpc: harness.FreePort(t), http: harness.FreePort(t), nixl: harness.FreePort(t)}
}

// start does not wait until the engine serves.
func (e *smallEngine) start(t *testing.T) {
	t.Helper()
	e.run(t, nil, "--num-gpu-blocks-override", strconv.Itoa(calibration.Blocks), "--kv-transfer-config", shortLease())
}

// shortLease is the connector's configuration that the calibration counts on.
func shortLease() string {
	return fmt.Sprintf(`{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_device":"cpu",`+
		`"kv_connector_extra_config":{"kv_lease_duration":%d}}`, calibration.Lease/time.Second)
}

// run starts the engine's process with NAME=value settings and arguments of its own. An engine without a NIXL port has no connector.
func (e *smallEngine) run(t *testing.T, env []string, args ...string) {
	t.Helper()
	nixl := "-"
	if e.nixl != 0 {
		nixl = strconv.Itoa(e.nixl)
	}
	e.Client = harness.NewClient(e.http)
	e.Process = harness.Start(e.owner, e.name, env, harness.Politely, append([]string{
		filepath.Join(harness.Root(t), "interop", "scripts", "start-engine.sh"), harness.VLLMVenv(t), e.model,
		strconv.Itoa(e.http), strconv.Itoa(e.grpc), nixl,
		"--max-num-seqs", strconv.Itoa(calibration.MaxSeqs), "--max-model-len", strconv.Itoa(calibration.MaxModelLen),
		"--block-size", strconv.Itoa(calibration.BlockSize),
	}, args...)...)
}

func (e *smallEngine) waitReady(t *testing.T) {
	t.Helper()
	harness.Poll(t, e.name, 10*time.Minute, func() error {
		_, err := e.Get(t.Context(), "/health")
		if err != nil && e.Exited() {
			return harness.Final(err)
		}
		return err
	})
}

// client is the engine as the calibration sees it.
func (e *smallEngine) client(t *testing.T) *calibration.Engine {
	t.Helper()
	conn, err := grpc.NewClient("127.0.0.1:"+strconv.Itoa(e.grpc), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &calibration.Engine{Conn: conn, URL: e.URL, HTTP: &http.Client{Timeout: 10 * time.Second}}
}

// stall stops the process that holds the engine's blocks, or lets it go on.
func (e *smallEngine) stall(t *testing.T, on bool) error {
	t.Helper()
	sig := syscall.SIGCONT
	if on {
		sig = syscall.SIGSTOP
	}
	return syscall.Kill(e.part(t, "VLLM::Worker").PID, sig)
}

// part is the engine's process of a kind: VLLM::EngineCore, or VLLM::Worker, which holds the blocks.
func (e *smallEngine) part(t *testing.T, kind string) harness.Entry {
	t.Helper()
	all := e.Session()
	i := slices.IndexFunc(all, func(r harness.Entry) bool { return strings.HasPrefix(r.Argv[0], kind) })
	if i < 0 {
		t.Fatalf("%s has no process %s: %v", e.name, kind, all)
	}
	return all[i]
}

// startSmallPair starts two such engines on one model and waits until both serve.
func startSmallPair(t *testing.T) (p, d *smallEngine) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), harness.RealModel)
	if err := tinyllama.Write(folder, 7); err != nil {
		t.Fatal(err)
	}
	p, d = newSmallEngine(t, "small-prefill", folder), newSmallEngine(t, "small-decode", folder)
	begin := time.Now()
	p.start(t)
	d.start(t)
	p.waitReady(t)
	d.waitReady(t)
	t.Logf("two engines serve after %v", time.Since(begin).Round(time.Second))
	return p, d
}

// calibrate drives the real pair through the scenario that the simulator's own tests run.
func calibrate(t *testing.T, p, d *smallEngine) {
	t.Helper()
	rows, err := calibration.Rows()
	if err != nil {
		t.Fatal(err)
	}
	pair := &calibration.Pair{
		P: p.client(t), D: d.client(t),
		Stall: func(_ context.Context, on bool) error { return p.stall(t, on) },
		KillP: func(context.Context) error {
			p.Stop(harness.AtOnce)
			return nil
		},
		RestartP: func(context.Context) (*calibration.Engine, error) {
			p.start(t)
			p.waitReady(t)
			return p.client(t), nil
		},
	}
	held := 0
	for _, row := range rows {
		if t.Run(row.Name, func(t *testing.T) {
			begin := time.Now()
			if err := row.Run(t.Context(), pair, t.Logf); err != nil {
				t.Error(err)
			}
			t.Logf("%v", time.Since(begin).Round(100*time.Millisecond))
		}) {
			held++
		}
	}
	t.Logf("SUMMARY: %d of %d rows hold for the real pair", held, len(rows))
}
