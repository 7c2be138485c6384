package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"remora/internal/sim/core"
	pb "remora/proto/vllm"
)

func ranks(n int) func(*Config) { return func(c *Config) { c.DataParallelSize = n } }

// at asks for a rank.
func at(ctx context.Context, rank string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-data-parallel-rank", rank)
}

// on runs a request on a rank.
func (e *engine) on(t *testing.T, rank string, req *pb.GenerateRequest) reply {
	t.Helper()
	return readAll(e.open(at(t.Context(), rank), t, req))
}

// perRank takes one number of each rank.
func (e *engine) perRank(n func(core.Stats) int) []int {
	var all []int
	for _, st := range e.RankStats() {
		all = append(all, n(st))
	}
	return all
}

func ended(st core.Stats) int { return st.Finished[core.Length] }

// Rules: rank-info.
func TestServerInfoOfRanks(t *testing.T) {
	for name, tt := range map[string]struct {
		size, first, local int
		want               string
	}{
		"one":    {0, 0, 0, "size 1, from 0, local 1, blocks 65"},
		"all":    {2, 0, 0, "size 2, from 0, local 2, blocks 130"},
		"hybrid": {8, 4, 4, "size 8, from 4, local 4, blocks 260"},
		"rest":   {8, 6, 0, "size 8, from 6, local 2, blocks 130"},
		"last":   {8, 7, 1, "size 8, from 7, local 1, blocks 65"},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := start(t, network{}, "e", func(c *Config) {
				c.DataParallelSize, c.DataParallelStartRank, c.DataParallelSizeLocal = tt.size, tt.first, tt.local
			})
			info, err := e.ctrl.GetServerInfo(t.Context(), &pb.GetServerInfoRequest{})
			if err != nil {
				t.Fatal(err)
			}
			p := info.GetParallelism()
			got := fmt.Sprintf("size %d, from %d, local %d, blocks %d", p.GetDataParallelSize(), p.GetDataParallelRank(), p.GetDataParallelSizeLocal(), info.GetTotalKvBlocks())
			if got != tt.want || p.GetWorldSize() != 1 || info.GetMaxRunningRequests() != 4 {
				t.Errorf("%s: %s, want %s; %v", name, got, tt.want, info)
			}
		})
	}
	for name, cfg := range map[string]Config{
		"beyond": {Model: "m", DataParallelSize: 8, DataParallelStartRank: 4, DataParallelSizeLocal: 5},
		"after":  {Model: "m", DataParallelSize: 2, DataParallelStartRank: 2},
		"huge":   {Model: "m", DataParallelSize: 1 << 20},
		"memory": {Model: "m", DataParallelSize: 1 << 16, BlockSize: 64},
	} {
		if _, err := New(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRankMetadata: a rank is asked for by its global number; what is no local rank is refused, after everything else.
//
// Rules: rank-metadata.
func TestRankMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", func(c *Config) { c.DataParallelSize, c.DataParallelStartRank, c.DataParallelSizeLocal = 8, 4, 3 })
		for _, rank := range []string{"4", " 5 ", "+6", "06"} {
			if r := e.on(t, rank, request("r", words(9, 1), 2)); r.err != nil {
				t.Errorf("rank %q: %v", rank, r.err)
			}
		}
		if got := e.perRank(ended); !slices.Equal(got, []int{1, 1, 2}) {
			t.Errorf("%v", got)
		}
		const noNumber = "InvalidArgument: x-data-parallel-rank metadata must be an unsigned 32-bit integer"
		for _, rank := range []string{"", "-1", "4.0", "x", "4294967296", "0x4", "4 5", "4,5", "++4"} {
			wantStatus(t, e.on(t, rank, request("r", words(9, 1), 2)).err, noNumber)
		}
		for _, rank := range []string{"0", "3", "7", "65540", "4294967295"} {
			wantStatus(t, e.on(t, rank, request("r", words(9, 1), 2)).err, "InvalidArgument: engine-core error: data parallel rank "+rank+
				" is not connected to this frontend; connected ranks: [4, 5, 6]")
		}
		bad := request("r", words(9, 1), 2)
		bad.Model = "other"
		wantStatus(t, e.on(t, "7", bad).err, "NotFound: model `other` not found")
		wantStatus(t, e.on(t, "x", bad).err, noNumber)
	})
}

// TestRankBalance: without a rank, a request goes to the rank with the fewest live ones, those that named their rank included.
//
// Rules: rank-balance.
func TestRankBalance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", ranks(3))
		running := func() []int { return e.perRank(func(st core.Stats) int { return st.Running + st.Waiting }) }
		ctx, leave := context.WithCancel(t.Context())
		e.submit(at(ctx, "0"), t, request("a", words(9, 1), 100))
		for range 5 {
			e.submit(t.Context(), t, request("b", words(9, 1), 100))
		}
		synctest.Wait()
		if got := running(); !slices.Equal(got, []int{2, 2, 2}) {
			t.Errorf("%v", got)
		}
		leave()
		time.Sleep(20 * time.Millisecond)
		if got := running(); !slices.Equal(got, []int{1, 2, 2}) {
			t.Errorf("%v", got)
		}
		e.submit(t.Context(), t, request("c", words(9, 1), 100))
		synctest.Wait()
		if got := running(); !slices.Equal(got, []int{2, 2, 2}) {
			t.Errorf("%v", got)
		}
		e.abort(t, "b", "c") // on whatever rank
		time.Sleep(20 * time.Millisecond)
		if got := running(); !slices.Equal(got, []int{0, 0, 0}) {
			t.Errorf("%v", got)
		}
		for range 3 { // one after the other: always the first
			e.tokens(t, request("d", words(9, 1), 1))
		}
		if got := e.perRank(ended); !slices.Equal(got, []int{3, 0, 0}) {
			t.Errorf("%v", got)
		}
	})
}

// TestRankCaches: what one rank has cached, the others have not; the counters say so.
//
// Rules: rank-pools, cache-metrics.
func TestRankCaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", ranks(2))
		for _, rank := range []string{"0", "1", "1"} {
			e.on(t, rank, request("r", words(9, 1), 1))
		}
		w := httptest.NewRecorder()
		e.httpHandler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		for _, line := range []string{
			`vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 9`, `vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 0`,
			`vllm:prefix_cache_queries_total{engine="1",model_name="tiny"} 18`, `vllm:prefix_cache_hits_total{engine="1",model_name="tiny"} 8`,
		} {
			if !strings.Contains(w.Body.String(), line+"\n") {
				t.Errorf("no %s in\n%s", line, w.Body)
			}
		}
		if n := strings.Count(w.Body.String(), "# TYPE vllm:prefix_cache_hits_total"); n != 1 {
			t.Errorf("%d families of one name", n)
		}
	})
}

// TestHandOffBetweenRanks: each rank of P hands off under an engine id and at a port of its own, to any rank of D.
//
// Rules: rank-pools.
func TestHandOffBetweenRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := network{}
		p := start(t, nw, "p", func(c *Config) { c.EngineID, c.DataParallelSize, c.DataParallelStartRank = "engine", 4, 2 })
		d, agg := start(t, nw, "d", ranks(2)), start(t, nw, "agg", nil)
		seen := map[string]bool{}
		for i, from := range []string{"2", "3", "3", "2"} {
			prompt := words(30, uint32(i))
			want := agg.tokens(t, request("r", prompt, 6))
			h := p.on(t, from, prefillRequest(t, "p", prompt)).handOff(t)
			fields := h.GetFields()
			seen[fmt.Sprint(fields["remote_engine_id"].GetStringValue(), " ", fields["remote_port"].GetNumberValue())] = true
			if got := d.on(t, fmt.Sprint(i%2), decodeRequest("d", prompt, 6, h)).tokens(); !slices.Equal(got, want) {
				t.Errorf("from %s: %v, want %v", from, got, want)
			}
		}
		if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, []string{"engine_dp0 3", "engine_dp1 4"}) {
			t.Errorf("%v", got)
		}
		time.Sleep(20 * time.Millisecond)
		for _, e := range []*engine{p, d} {
			if got := e.perRank(func(st core.Stats) int { return st.UsedBlocks + st.Held }); !slices.Equal(got, []int{0, 0}) {
				t.Errorf("%v", got)
			}
		}
		if got := p.perRank(func(st core.Stats) int { return st.Completed }); !slices.Equal(got, []int{2, 2}) {
			t.Errorf("%v", got)
		}
	})
}

// TestOneRankDies and takes the others with it.
func TestOneRankDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", ranks(2))
		other := e.submit(at(t.Context(), "0"), t, request("r", words(9, 1), 100))
		h := decodeRequest("d", words(30, 1), 2, nil)
		h.Kv = prefillRequest(t, "x", words(30, 1)).GetKv()
		h.Kv.KvTransferParams.Fields["do_remote_prefill"] = h.GetKv().GetKvTransferParams().GetFields()["do_remote_decode"]
		if r := e.on(t, "1", h); status.Code(r.err) != codes.Internal {
			t.Errorf("%v", r.err)
		}
		if r := readAll(other); status.Code(r.err) != codes.Internal {
			t.Errorf("%v", r.err)
		}
		for _, rank := range []string{"0", "1"} {
			if r := e.on(t, rank, request("r", words(9, 1), 1)); status.Code(r.err) != codes.Internal {
				t.Errorf("%v", r.err)
			}
		}
		if err := <-e.done; !errors.Is(err, ErrEngineDead) {
			t.Error(err)
		}
	})
}

// TestPauseOfRanks: all of them stand still, and all forget their caches.
func TestPauseOfRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", ranks(2))
		for _, rank := range []string{"0", "1"} {
			e.on(t, rank, request("r", words(9, 1), 1))
		}
		running := e.submit(at(t.Context(), "1"), t, request("r", words(9, 2), 20))
		if _, err := e.ctrl.PauseGeneration(t.Context(), &pb.PauseGenerationRequest{Mode: pb.PauseMode_PAUSE_MODE_WAIT}); err != nil {
			t.Fatal(err)
		}
		if r := readAll(running); r.err != nil || len(r.tokens()) != 20 {
			t.Errorf("%v %v", r.err, r.tokens())
		}
		if _, err := e.ctrl.ResumeGeneration(t.Context(), &pb.ResumeGenerationRequest{}); err != nil {
			t.Fatal(err)
		}
		for _, rank := range []string{"0", "1"} {
			e.on(t, rank, request("r", words(9, 1), 1))
		}
		if got := e.perRank(func(st core.Stats) int { return st.CacheHits }); !slices.Equal(got, []int{0, 0}) {
			t.Errorf("%v", got)
		}
	})
}
