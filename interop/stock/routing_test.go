package stock

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"remora/interop/harness"
)

// kvEvents has a simulated engine publish its KV events, and replay them, at ports of its choice: after a restart at others.
var kvEvents = []string{"--kv-events-config", `{"enable_kv_cache_events":true,"endpoint":"tcp://*:0","replay_endpoint":"tcp://*:0"}`}

// document is a prompt of n tokens that no other test has.
func document(random *rand.Rand, n int) harness.Request {
	tokens := make([]int, n)
	for i := range tokens {
		tokens[i] = 10 + random.IntN(400)
	}
	return harness.Request{Model: model, Prompt: tokens, MaxTokens: 2, NvExt: harness.TellRouting()}
}

func documents(seed uint64, count, n int) []harness.Request {
	random := rand.New(rand.NewPCG(seed, 1))
	out := make([]harness.Request, count)
	for i := range out {
		out[i] = document(random, n)
	}
	return out
}

func hits(t *testing.T, engines []*harness.Sim) (n float64) {
	t.Helper()
	for _, e := range engines {
		n += e.Metrics(t)["vllm:prefix_cache_hits_total"]
	}
	return n
}

// askAll sends requests one after the other and gives the answers.
func askAll(t *testing.T, f *harness.Frontend, requests []harness.Request) []harness.Answer {
	t.Helper()
	out := make([]harness.Answer, 0, len(requests))
	for _, r := range requests {
		a := f.Ask(t, r)
		if a.Status != 200 || a.Finish != "length" {
			t.Fatalf("status %d, finish %q: %s", a.Status, a.Finish, a.Body)
		}
		out = append(out, a)
	}
	return out
}

// spread asks new prompts until each of two places, as place tells them, was used; a router draws lots among the equally loaded.
func spread(t *testing.T, f *harness.Frontend, seed uint64, place func(a harness.Answer) uint64) (prompts []harness.Request, first []harness.Answer) {
	t.Helper()
	const least, most = 5, 60
	used := map[uint64]bool{}
	for _, r := range documents(seed, most, promptTokens) {
		if len(prompts) >= least && len(used) == 2 {
			return prompts, first
		}
		a := askAll(t, f, []harness.Request{r})[0]
		prompts, first = append(prompts, r), append(first, a)
		used[place(a)] = true
		if a.Routing.Timing.KVHitRate != 0 {
			t.Errorf("prompt %d is new and said to be a hit of %g", len(prompts)-1, a.Routing.Timing.KVHitRate)
		}
	}
	t.Fatalf("%d prompts went to one place", most)
	return nil, nil
}

func decodedBy(a harness.Answer) uint64   { return a.Routing.WorkerID.Decode }
func prefilledBy(a harness.Answer) uint64 { return a.Routing.WorkerID.Prefill }
func decodeRank(a harness.Answer) uint64  { return uint64(a.Routing.WorkerID.DecodeRank) }

// A prompt of 100 tokens has six full blocks of 16, which can be hit: 6/7 of all.
const (
	promptTokens = 100
	promptBlocks = 6
)

// stays asks the prompts again and wants each to go to where it was first, and to be found there by all engines together.
//
// What a worker has published takes a moment to the router, which does not tell how far it is. The events of a rank arrive in
// order, so the last prompt at each place is asked until it is known there; it may have gone astray by then.
func stays(t *testing.T, f *harness.Frontend, engines []*harness.Sim, prompts []harness.Request, first []harness.Answer, place func(a harness.Answer) uint64) {
	t.Helper()
	last := map[uint64]int{}
	for i := range first {
		last[place(first[i])] = i
	}
	for _, i := range last {
		harness.Poll(t, "the router to know of the last prompt", 20*time.Second, func() error {
			if a := askAll(t, f, prompts[i:i+1])[0]; a.Routing.Timing.KVHitRate < 0.8 {
				return fmt.Errorf("prompt %d: %g believed there", i, a.Routing.Timing.KVHitRate)
			}
			return nil
		})
	}
	before := hits(t, engines)
	for i, a := range askAll(t, f, prompts) {
		if astray := place(a) != place(first[i]) && last[place(first[i])] != i; astray || a.Routing.Timing.KVHitRate < 0.8 {
			t.Errorf("prompt %d went to %x (%g believed there), at first to %x", i, place(a), a.Routing.Timing.KVHitRate, place(first[i]))
		}
	}
	if n := hits(t, engines) - before; n < float64(len(prompts)*promptBlocks*16) {
		t.Errorf("%g tokens of %d prompts found in the caches", n, len(prompts))
	}
}

// told waits until the workers have told routers that many blocks.
func told(t *testing.T, workers []*harness.Sidecar, blocks float64) {
	t.Helper()
	harness.Poll(t, "the KV events to arrive", 20*time.Second, func() error {
		n := 0.0
		for _, w := range workers {
			n += w.Status.Metrics(t)["remora_kv_blocks"]
		}
		if n < blocks {
			return fmt.Errorf("%g of %g blocks", n, blocks)
		}
		return nil
	})
}

// TestRoutingByCache: two engines behind two workers, under stock routers.
func TestRoutingByCache(t *testing.T) {
	c := harness.NewCluster(t)
	var engines []*harness.Sim
	var workers []*harness.Sidecar
	for range 2 {
		sim := harness.StartSim(t, kvEvents...)
		engines = append(engines, sim)
		workers = append(workers, c.Sidecar(t, harness.Remora, harness.Aggregated, sim))
	}
	byCache := c.Frontend(t, "--router-mode", "kv")
	byCache.WaitServing(t, model)
	inTurn := c.Frontend(t)
	inTurn.WaitServing(t, model)

	// Round-robin with an odd number of prompts sends each to the other engine the second time.
	control := documents(1, 7, promptTokens)
	askAll(t, inTurn, control)
	before := hits(t, engines)
	askAll(t, inTurn, control)
	inTurnHits := hits(t, engines) - before

	told(t, workers, float64(2*len(control)*promptBlocks))
	prompts, first := spread(t, byCache, 2, decodedBy)
	told(t, workers, float64((2*len(control)+len(prompts))*promptBlocks))
	stays(t, byCache, engines, prompts, first, decodedBy) // all of them are hits
	t.Logf("in turn, %g of %d tokens were found in a cache at the second time", inTurnHits, len(control)*promptBlocks*16)
	if inTurnHits > 0 {
		t.Errorf("%g hits in turn: the comparison is worth nothing", inTurnHits)
	}

	t.Run("a router that comes late", func(t *testing.T) {
		late := c.Frontend(t, "--router-mode", "kv")
		late.WaitServing(t, model)
		stays(t, late, engines, prompts, first, decodedBy)
	})

	t.Run("an engine that is restarted", func(t *testing.T) {
		engines[1].Stop(harness.AtOnce)
		harness.Poll(t, "the worker to leave", 20*time.Second, func() error {
			if up := workers[1].Status.Metrics(t)["remora_engine_up"]; up != 0 {
				return fmt.Errorf("engine up: %g", up)
			}
			return nil
		})
		engines[1].Restart(t, kvEvents...)
		workers[1].WaitReady(t)
		if n := workers[1].Status.Metrics(t)["remora_kv_blocks"]; n != 0 {
			t.Errorf("the worker still tells of %g blocks", n)
		}
		back := workers[1].Instance(t)
		seed := uint64(100)
		harness.Poll(t, "the frontend to use the worker again", 20*time.Second, func() error {
			seed++
			if at := decodedBy(askAll(t, byCache, documents(seed, 1, promptTokens))[0]); at != back {
				return fmt.Errorf("used: %x", at)
			}
			return nil
		})
		before, believed := hits(t, engines), 0.0
		for _, a := range askAll(t, byCache, prompts) {
			believed += a.Routing.Timing.KVHitRate
		}
		found := (hits(t, engines) - before) / (promptBlocks * 16)
		t.Logf("prompts found in the caches: %g believed, %g true", believed, found)
		if believed > found+0.1 {
			t.Errorf("the router believed that %g prompts' blocks were there, and %g were", believed, found)
		}
	})
}

// TestRanksAreRoutedByCache: one engine with two data-parallel ranks; each has a cache of its own.
func TestRanksAreRoutedByCache(t *testing.T) {
	c := harness.NewCluster(t)
	sim := harness.StartSim(t, append([]string{"--data-parallel-size", "2"}, kvEvents...)...)
	worker := c.Sidecar(t, harness.Remora, harness.Aggregated, sim)
	f := c.Frontend(t, "--router-mode", "kv")
	f.WaitServing(t, model)
	prompts, first := spread(t, f, 3, decodeRank)
	told(t, []*harness.Sidecar{worker}, float64(len(prompts)*promptBlocks))
	stays(t, f, []*harness.Sim{sim}, prompts, first, decodeRank)
}

// TestBothKindsAreRoutedByCache: a Rust sidecar and a Remora in one set.
func TestBothKindsAreRoutedByCache(t *testing.T) {
	c := harness.NewCluster(t)
	var engines []*harness.Sim
	for _, kind := range []harness.Kind{harness.Rust, harness.Remora} {
		sim := harness.StartSim(t, kvEvents...)
		engines = append(engines, sim)
		c.Sidecar(t, kind, harness.Aggregated, sim)
	}
	f := c.Frontend(t, "--router-mode", "kv")
	f.WaitServing(t, model)
	prompts, first := spread(t, f, 4, decodedBy)
	stays(t, f, engines, prompts, first, decodedBy)
}

// TestPrefillsAreRoutedByCache: in a split deployment the prefill is sent to where its blocks are; the decode worker announces its
// own, too, and that disturbs nobody.
func TestPrefillsAreRoutedByCache(t *testing.T) {
	c := harness.NewCluster(t)
	var engines []*harness.Sim
	var workers []*harness.Sidecar
	for range 2 {
		sim := harness.StartSim(t, kvEvents...)
		engines = append(engines, sim)
		workers = append(workers, c.Sidecar(t, harness.Remora, harness.Prefill, sim))
	}
	decodes := c.Sidecar(t, harness.Remora, harness.Decode, harness.StartSim(t, kvEvents...))
	f := c.Frontend(t, "--router-mode", "kv")
	f.WaitServing(t, model)
	prompts, first := spread(t, f, 9, prefilledBy)
	told(t, workers, float64(len(prompts)*promptBlocks))
	told(t, []*harness.Sidecar{decodes}, float64(len(prompts)*promptBlocks))
	stays(t, f, engines, prompts, first, prefilledBy)
}

// TestLateRouter asks for everything in the other codec, and over the other planes.
func TestLateRouter(t *testing.T) {
	for name, cluster := range map[string]func(t *testing.T) *harness.Cluster{
		"JSON": func(t *testing.T) *harness.Cluster {
			t.Helper()
			c := harness.NewCluster(t)
			c.Setenv("DYN_REQUEST_PLANE_CODEC=json")
			return c
		},
		"etcd": func(t *testing.T) *harness.Cluster { t.Helper(); return withServices(t, false).Cluster },
		"NATS": func(t *testing.T) *harness.Cluster { t.Helper(); return withServices(t, true).Cluster },
	} {
		t.Run(name, func(t *testing.T) { lateRouter(t, cluster(t)) })
	}
}

func lateRouter(t *testing.T, c *harness.Cluster) {
	t.Helper()
	sim := harness.StartSim(t, kvEvents...)
	worker := c.Sidecar(t, harness.Remora, harness.Aggregated, sim)
	inTurn := c.Frontend(t)
	inTurn.WaitServing(t, model)
	prompts := documents(10, 3, promptTokens)
	askAll(t, inTurn, prompts)
	told(t, []*harness.Sidecar{worker}, float64(len(prompts)*promptBlocks))
	late := c.Frontend(t, "--router-mode", "kv")
	late.WaitServing(t, model)
	first := askAll(t, late, prompts)
	stays(t, late, []*harness.Sim{sim}, prompts, first, decodedBy)
	for i, a := range first {
		if a.Routing.Timing.KVHitRate < 0.8 {
			t.Errorf("prompt %d: %g believed there at the first request", i, a.Routing.Timing.KVHitRate)
		}
	}
	if n := worker.Status.Metrics(t)["remora_kv_queries_total"]; n != 1 {
		t.Errorf("%g queries", n)
	}
}

// TestLostEvents: messages of the engine that reached nobody are replayed, and a socket that begins anew means an empty cache.
func TestLostEvents(t *testing.T) {
	const tokens, blocks, count = promptTokens, promptBlocks, 4
	c := harness.NewCluster(t)
	sim := harness.StartSim(t, kvEvents...)
	worker := c.Sidecar(t, harness.Remora, harness.Aggregated, sim)
	f := c.Frontend(t, "--router-mode", "kv")
	f.WaitServing(t, model)
	prompts := documents(7, count+1, tokens)
	first := askAll(t, f, prompts[:1])
	told(t, []*harness.Sidecar{worker}, blocks)
	sim.Post(t, "/sim/fault?name=events-lost&times=3")
	first = append(first, askAll(t, f, prompts[1:])...) // each stores its blocks in one message
	told(t, []*harness.Sidecar{worker}, (count+1)*blocks)
	stays(t, f, []*harness.Sim{sim}, prompts, first, decodedBy)
	m := worker.Status.Metrics(t)
	if m["remora_kv_engine_replays_total"] == 0 || m["remora_kv_engine_batches_lost_total"] != 0 {
		t.Errorf("%g replays, %g lost", m["remora_kv_engine_replays_total"], m["remora_kv_engine_batches_lost_total"])
	}

	sim.Post(t, "/sim/restart?only=kv-events")
	harness.Poll(t, "the reset", 20*time.Second, func() error {
		if n := worker.Status.Metrics(t)["remora_kv_blocks"]; n != 0 {
			return fmt.Errorf("%g blocks are told of", n)
		}
		return nil
	})
	again := documents(8, 2, tokens)
	first = askAll(t, f, again)
	told(t, []*harness.Sidecar{worker}, 2*blocks)
	stays(t, f, []*harness.Sim{sim}, again, first, decodedBy)
}

// TestBusyWorkerIsSpared: the frontend believes what a worker says of its load. Without a threshold it would not ask.
func TestBusyWorkerIsSpared(t *testing.T) {
	c := harness.NewCluster(t)
	sim := harness.StartSim(t, "--num-blocks", "129", "--step-time", "50ms")
	c.Sidecar(t, harness.Remora, harness.Aggregated, sim)
	f := c.Frontend(t, "--active-decode-blocks-threshold", "0.5")
	f.WaitServing(t, model)
	long := documents(5, 1, 1100)[0] // 69 blocks of 128
	long.MaxTokens, long.Stream = 500, true
	short := documents(6, 1, 20)[0]
	stream := f.Open(t, long)
	stream.ReadChunks(t, 1)
	harness.Poll(t, "the worker to be busy", 10*time.Second, func() error {
		if a := f.Ask(t, short); a.Status != 529 {
			return fmt.Errorf("status %d", a.Status)
		}
		return nil
	})
	stream.Close()
	harness.Poll(t, "the worker to be free", 10*time.Second, func() error {
		if a := f.Ask(t, short); a.Status != http.StatusOK {
			return fmt.Errorf("status %d", a.Status)
		}
		return nil
	})
}
