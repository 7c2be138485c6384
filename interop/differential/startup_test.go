package differential

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"remora/internal/vllm/vllmtest"
	"remora/interop/harness"
)

// stage is where one sidecar starts; a case spoils a part of it.
type stage struct {
	t      *testing.T
	engine *vllmtest.Engine
	model  string
	port   int
	env    []string
	args   []string
}

func (s *stage) server(change func(b *vllmtest.Behaviour)) { s.engine.Set(change) }

// starts are starts that fail, each with a word that the last line must have in common.
var starts = []struct {
	name  string
	role  harness.Role
	spoil func(s *stage)
	word  string // what both must name, in lower case
}{
	{name: "engine absent", spoil: func(s *stage) { s.port = closedPort(s.t) }, word: ""},
	{name: "engine does not serve", spoil: func(s *stage) {
		s.engine.SetHealth(vllmtest.ControlService, healthpb.HealthCheckResponse_NOT_SERVING)
	}, word: "vllm.control"},
	{name: "inference does not serve", spoil: func(s *stage) {
		s.engine.SetHealth(vllmtest.InferenceService, healthpb.HealthCheckResponse_NOT_SERVING)
	}, word: "vllm.inference"},
	{name: "another API", spoil: func(s *stage) { s.server(func(b *vllmtest.Behaviour) { b.Server.ApiVersion = "other" }) }, word: "other"},
	{name: "no model id", spoil: func(s *stage) { s.server(func(b *vllmtest.Behaviour) { b.Model.ModelId = " " }) }, word: "model_id"},
	{name: "no served name", spoil: func(s *stage) { s.server(func(b *vllmtest.Behaviour) { b.Model.ServedModelName = "" }) }, word: "served_model_name"},
	{name: "no token ids", spoil: func(s *stage) { s.server(func(b *vllmtest.Behaviour) { b.Model.SupportsTokenIdsInput = false }) }, word: "token"},
	{name: "no ranks", spoil: func(s *stage) { s.server(func(b *vllmtest.Behaviour) { b.Server.Parallelism.DataParallelSize = 0 }) }, word: "data"},
	{name: "ranks beyond the group", spoil: func(s *stage) {
		s.server(func(b *vllmtest.Behaviour) {
			b.Server.Parallelism.DataParallelSize, b.Server.Parallelism.DataParallelRank, b.Server.Parallelism.DataParallelSizeLocal = 8, 6, 4
		})
	}, word: "data"},
	{name: "local ranks unknown and not the first", spoil: func(s *stage) {
		s.server(func(b *vllmtest.Behaviour) {
			b.Server.Parallelism.DataParallelSize, b.Server.Parallelism.DataParallelRank, b.Server.Parallelism.DataParallelSizeLocal = 8, 4, 0
		})
	}, word: "data"},
	{name: "block size beyond 32 bits", spoil: func(s *stage) {
		s.server(func(b *vllmtest.Behaviour) { b.Server.EffectiveAttentionBlockSize = proto.Uint64(1 << 40) })
	}, word: "block"},
	{name: "discovery refused", spoil: func(s *stage) {
		s.server(func(b *vllmtest.Behaviour) {
			b.Control = func(context.Context, string) error { return status.Error(codes.PermissionDenied, "go away") }
		})
	}, word: "go away"},
	{name: "model folder missing", spoil: func(s *stage) {
		s.server(func(b *vllmtest.Behaviour) { b.Model.ModelId = "/no/such/model" })
	}, word: "/no/such/model"},
	{name: "tokenizer missing", spoil: func(s *stage) { _ = os.Remove(filepath.Join(s.model, "tokenizer.json")) }, word: ""},
	{name: "template missing", spoil: func(s *stage) { s.args = append(s.args, "--custom-jinja-template=/no/such.jinja") }, word: "/no/such.jinja"},
	{name: "zero connections", spoil: func(s *stage) { s.args = append(s.args, "--grpc-connections=0") }, word: ""},
	{name: "TLS", spoil: func(s *stage) { s.args = append(s.args, "--grpc-endpoint=https://127.0.0.1:1") }, word: ""},
	{name: "unknown mode", spoil: func(s *stage) { s.args = append(s.args, "--disaggregation-mode=both") }, word: ""},
	{name: "unknown flag", spoil: func(s *stage) { s.args = append(s.args, "--no-such-flag") }, word: ""},
	{name: "help", spoil: func(s *stage) { s.args = append(s.args, "--help") }, word: ""},
	{name: "request port taken", spoil: func(s *stage) {
		s.env = append(s.env, "DYN_TCP_RPC_PORT="+strconv.Itoa(takenPort(s.t)))
	}, word: ""},
	{name: "system port taken", spoil: func(s *stage) {
		s.env = append(s.env, "DYN_SYSTEM_PORT="+strconv.Itoa(takenPort(s.t)))
	}, word: ""},
}

// TestStartsThatFail compares exit codes, last words and what is left in discovery.
func TestStartsThatFail(t *testing.T) {
	if !*full {
		return // two processes a case
	}
	for _, c := range starts {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var seen [2]observation
			for i, kind := range []harness.Kind{harness.Rust, harness.Remora} {
				seen[i] = fail(t, kind, c.role, c.spoil, c.word)
			}
			judge(t, "agg/start/"+c.name, seen[0], seen[1])
		})
	}
}

func fail(t *testing.T, kind harness.Kind, role harness.Role, spoil func(s *stage), word string) observation {
	t.Helper()
	if role == "" {
		role = harness.Aggregated
	}
	s := &stage{t: t, engine: vllmtest.New(t), model: model(t), args: []string{"--grpc-startup-deadline-secs=2", "--grpc-connections=2"}}
	s.port = port(t, s.engine.Loopback(t))
	s.server(func(b *vllmtest.Behaviour) { b.Model.ModelId = s.model })
	spoil(s)
	cluster := harness.NewCluster(t)
	cluster.Setenv(s.env...)
	sidecar := cluster.StartSidecar(t, kind, role, s.port, s.args...)
	serves := &side{cluster: cluster}
	harness.Poll(t, sidecar.Name+" to serve or to give up", time.Minute, func() error {
		if sidecar.Exited() || serves.instances() > 0 {
			return nil
		}
		return errNoRecord
	})
	if !sidecar.Exited() {
		sidecar.Stop(harness.Politely)
		return observation{"start": "serves"}
	}
	code := sidecar.WaitExit(t, time.Second)
	last := lastWords(sidecar)
	t.Logf("%s: %d: %.400s", kind, code, last)
	left, err := filepath.Glob(filepath.Join(cluster.Discovery, "v1", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return observation{
		"start": "fails", "exit code": strconv.Itoa(code), "records left": strconv.Itoa(len(left)),
		"last line names the cause": strconv.FormatBool(strings.Contains(strings.ToLower(last), word)),
	}
}

// lastWords is the last line that is no log line: the Rust sidecar may log on after it.
func lastWords(s *harness.Sidecar) (last string) {
	for line := range strings.Lines(s.Log()) {
		line = strings.TrimSpace(line)
		if _, err := time.Parse(time.RFC3339Nano, strings.SplitN(line, " ", 2)[0]); err != nil && line != "" {
			last = line
		}
	}
	return last
}

func closedPort(t *testing.T) int { return harness.FreePort(t) }

// takenPort is one that somebody listens on until the test ends.
func takenPort(t *testing.T) int {
	t.Helper()
	n := harness.FreePort(t)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:"+strconv.Itoa(n))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return n
}
