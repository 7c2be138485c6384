package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"remora/interop/harness"
	pb "remora/proto/vllm"
)

// away is how long a worker may stay in routing when its engine says that it does not serve any more.
const away = 2 * time.Second

var errServes = errors.New("it says that it serves")

// testDeath has the core of the decode engine die under running answers, of a hand-off that Remora would not let through. The
// engine's front end lives on for a while, and says that it does not serve: the worker leaves routing, the answers end with an
// error, the prefill engine keeps nothing. When the engine is back, the same worker serves.
func (m *matrix) testDeath() {
	there := m.instances()
	if there == 0 {
		m.t.Fatal("the worker has no instance record")
	}
	var streams []*harness.Stream
	for range 2 {
		s := m.frontend.Open(m.t, m.request(450))
		s.ReadChunks(m.t, 3)
		streams = append(streams, s)
	}
	survived := make(chan error, 1)
	m.stalled(m.d, func() { // the answers must not end before the poison is there
		m.poison(survived)
		pause(m.t, time.Second)
	})
	begin := time.Now()
	if err := <-survived; status.Code(err) != codes.Internal {
		m.t.Fatalf("the engine has survived it: %v", err)
	}
	harness.Poll(m.t, "the engine to notice", 30*time.Second, func() error {
		if _, err := m.d.Get(m.t.Context(), "/health"); err == nil {
			return errServes
		}
		return nil
	})
	noticed := time.Since(begin)
	harness.Poll(m.t, "the instance record to go", away, func() error {
		if n := m.instances(); n != 0 {
			return fmt.Errorf("%d of %d records", n, there)
		}
		return nil
	})
	left := time.Since(begin)
	if _, err := m.decode.Status.Get(m.t.Context(), "/health"); err == nil {
		m.t.Error("the worker of a dead engine says that it is healthy")
	}
	told := map[string]bool{}
	for _, s := range streams {
		s.ReadAll(m.t)
		if s.Error == "" || s.Finish != "" {
			m.t.Errorf("after %d chunks an answer of the dead engine ended with finish %q, error %q", s.Chunks, s.Finish, s.Error)
		}
		told[s.Error] = true
	}
	m.d.Stop(harness.AtOnce) // it would go by itself half a minute later
	harness.Poll(m.t, "the prefill engine to have nothing in use", released, func() error {
		if n := m.p.Metrics(m.t)[harness.KVUsage]; n != 0 {
			return fmt.Errorf("share of blocks in use %v", n)
		}
		return nil
	})

	m.d.start(m.t)
	m.d.waitReady(m.t)
	m.decode.WaitReady(m.t)
	m.frontend.WaitServing(m.t, harness.RealModel)
	if n := m.instances(); n != there {
		m.t.Errorf("%d instance records, %d before", n, there)
	}
	m.goesOn()
	m.settle(released)
	m.t.Logf("SUMMARY: engine core killed under %d answers: it said so after %v, out of routing after %v, clients told %q; back, and the next text right",
		len(streams), noticed.Round(time.Millisecond), left.Round(time.Millisecond), slices.Sorted(maps.Keys(told)))
}

// poison sends the decode engine a hand-off without blocks, of which its core dies, and tells how that ended.
func (m *matrix) poison(ended chan<- error) {
	m.t.Helper()
	params, err := structpb.NewStruct(map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": []any{}, "remote_engine_id": "nobody",
		"remote_request_id": "nobody-0", "remote_host": "127.0.0.1", "remote_port": m.p.nixl, "tp_size": 1,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	ids := make([]uint32, 60)
	for i := range ids {
		ids[i] = uint32('a' + i%26)
	}
	engine, ctx := pb.NewInferenceClient(m.d.client(m.t).Conn), m.t.Context()
	go func() {
		_, err := engine.Generate(ctx, &pb.GenerateRequest{
			RequestId: "poison", Prompt: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}},
			Kv: &pb.KVCacheParameters{KvTransferParams: params},
		})
		ended <- err
	}()
}

// instances counts the records by which routers find the decode worker.
func (m *matrix) instances() (n int) {
	m.t.Helper()
	id := strconv.FormatUint(m.decode.Instance(m.t), 16)
	err := fs.WalkDir(os.DirFS(m.cluster.Discovery), ".", func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // it went while it was listed
			return nil
		}
		if err == nil && !e.IsDir() && strings.HasPrefix(path, "v1/instances/") && strings.Contains(path, id) {
			n++
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}
