package engine

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"remora/internal/sim/calibration"
	"remora/internal/zmq"
	"remora/interop/harness"
	"remora/interop/tinyllama"
	pb "remora/proto/vllm"
)

// A prompt of the routing test has six full blocks and a bit. It is never found as a whole: the last token is always computed.
const (
	routedTokens = 200
	routedBlocks = routedTokens / calibration.BlockSize
	routedRate   = float64(routedBlocks) / (routedBlocks + 1) // as routers count
	routedPool   = 256                                        // blocks of an engine; one of them is never used
)

// routed are two real engines that publish their KV events, each behind a worker.
type routed struct {
	engines [2]*smallEngine
	workers [2]*harness.Sidecar
	ids     [2]uint64 // the workers', as routers tell them
	random  *rand.Rand
}

// prompt is one that nobody has seen. The step of its first token counts what was found of it, and the second token comes later.
func (d *routed) prompt(tokens int) harness.Request {
	ids := make([]int, tokens)
	for i := range ids {
		ids[i] = 10 + d.random.IntN(400)
	}
	return harness.Request{Model: harness.RealModel, Prompt: ids, MaxTokens: 2}
}

func ask(t *testing.T, c *harness.Client, r harness.Request) harness.Answer {
	t.Helper()
	a := c.Ask(t, r)
	if a.Status != 200 {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	return a
}

// ask asks a frontend, and tells which engine it chose and which part of the prompt it believed to be there.
func (d *routed) ask(t *testing.T, f *harness.Frontend, r harness.Request) (engine int, believed float64) {
	t.Helper()
	r.NvExt = harness.TellRouting()
	told := ask(t, f.Client, r).Routing
	for i, id := range d.ids {
		if told.WorkerID.Decode == id {
			return i, told.Timing.KVHitRate
		}
	}
	t.Fatalf("%x is none of the workers", told.WorkerID.Decode)
	return 0, 0
}

// counted does something, and wants each engine to look for so many tokens in its cache meanwhile, and to find so many.
func (d *routed) counted(t *testing.T, do func() (asked, found [2]int)) {
	t.Helper()
	read := func(e *smallEngine) [2]int {
		m := e.Metrics(t)
		return [2]int{int(m["vllm:prefix_cache_queries_total"]), int(m["vllm:prefix_cache_hits_total"])}
	}
	var before [2][2]int
	for i, e := range d.engines {
		before[i] = read(e)
	}
	asked, found := do()
	for i, e := range d.engines {
		harness.Poll(t, e.name+" to count", 10*time.Second, func() error {
			now := read(e)
			if q, h := now[0]-before[i][0], now[1]-before[i][1]; q != asked[i] || h != found[i] {
				return fmt.Errorf("it found %d of %d tokens, want %d of %d", h, q, found[i], asked[i])
			}
			return nil
		})
	}
}

// learns has each engine asked, past the router, for new short prompts, until the router believes one to be there that it is asked
// for the first time. Events of an engine arrive in order, so it then knows of everything before. The results are such prompts.
func (d *routed) learns(t *testing.T, f *harness.Frontend) (marks [2]harness.Request) {
	t.Helper()
	for i, e := range d.engines {
		var made []harness.Request
		next := 0
		harness.Poll(t, "the router to learn of "+e.name, 20*time.Second, func() error {
			for range 2 { // so that the next one is older each time: the router hears of it a moment later
				made = append(made, d.prompt(calibration.BlockSize+8))
				ask(t, e.Client, made[len(made)-1])
			}
			marks[i] = made[next]
			next++
			return d.at(t, f, marks[i], i)
		})
	}
	return marks
}

// knows waits until a router that was not there then knows of the marks. One that is asked for too early may be computed at the
// other engine, too, but where it was nothing is stored anew.
func (d *routed) knows(t *testing.T, f *harness.Frontend, marks [2]harness.Request) {
	t.Helper()
	for i, r := range marks {
		harness.Poll(t, "the router to know of "+d.engines[i].name, 20*time.Second, func() error { return d.at(t, f, r, i) })
	}
}

// at asks for a prompt, and wants the router to believe it at an engine.
func (d *routed) at(t *testing.T, f *harness.Frontend, r harness.Request, engine int) error {
	t.Helper()
	if at, believed := d.ask(t, f, r); at != engine || believed == 0 {
		return fmt.Errorf("sent to %s, %g believed there", d.engines[at].name, believed)
	}
	return nil
}

// again asks prompts once more, and wants each to go where it was and all of its full blocks to be found there.
func (d *routed) again(t *testing.T, f *harness.Frontend, prompts []harness.Request, first []int) {
	t.Helper()
	d.counted(t, func() (asked, found [2]int) {
		for k, r := range prompts {
			at, believed := d.ask(t, f, r)
			if at != first[k] || math.Abs(believed-routedRate) > 1e-6 {
				t.Errorf("prompt %d was at %s and went to %s, where %g of it was believed", k, d.engines[first[k]].name, d.engines[at].name, believed)
			}
			asked[at] += routedTokens
			found[at] += routedBlocks * calibration.BlockSize
		}
		t.Logf("%d prompts again: found %d of %d tokens at one engine, %d of %d at the other", len(prompts), found[0], asked[0], found[1], asked[1])
		return asked, found
	})
}

// source is where an engine says that its events are.
func (e *smallEngine) source(t *testing.T) *pb.KvEventSource {
	t.Helper()
	answer, err := pb.NewControlClient(e.client(t).Conn).GetKvEventSources(t.Context(), &pb.GetKvEventSourcesRequest{})
	if err != nil || len(answer.GetSources()) != 1 {
		t.Fatalf("%v, %v", answer, err)
	}
	return answer.GetSources()[0]
}

// hashes are the names of the blocks that an engine has told of since its start, once there are so many. All of them were stored.
func (e *smallEngine) hashes(t *testing.T, many int) (all map[uint64]bool) {
	t.Helper()
	at, err := zmq.ParseEndpoint(strings.Replace(e.source(t).GetReplayEndpoint(), "*", "127.0.0.1", 1))
	if err != nil {
		t.Fatal(err)
	}
	harness.Poll(t, e.name+" to tell of its blocks", 10*time.Second, func() error {
		messages, err := replayed(t.Context(), at, 0)
		if err != nil {
			return err
		}
		all = map[uint64]bool{}
		for _, m := range messages {
			if err := addHashes(all, m.Payload); err != nil {
				return harness.Final(err)
			}
		}
		if len(all) < many {
			return fmt.Errorf("%d of %d blocks", len(all), many)
		}
		return nil
	})
	return all
}

// addHashes takes what is named in a batch: [timestamp, events, rank]. Of a hash in bytes the last eight count.
func addHashes(all map[uint64]bool, payload []byte) error {
	value, _, err := msgp.ReadIntfBytes(payload)
	batch, ok := value.([]any)
	if err != nil || !ok || len(batch) != 3 {
		return fmt.Errorf("no batch: %x, %w", payload, err)
	}
	events, _ := batch[1].([]any)
	for _, event := range events {
		fields, _ := event.(map[string]any)
		hashes, _ := fields["block_hashes"].([]any)
		for _, hash := range hashes {
			switch h := hash.(type) {
			case uint64:
				all[h] = true
			case int64:
				all[uint64(h)] = true
			case []byte:
				all[binary.BigEndian.Uint64(h[len(h)-8:])] = true
			default:
				return fmt.Errorf("a hash of type %T", h)
			}
		}
	}
	return nil
}

func startRouted(t *testing.T) *routed {
	t.Helper()
	folder := filepath.Join(t.TempDir(), harness.RealModel)
	if err := tinyllama.Write(folder, 7); err != nil {
		t.Fatal(err)
	}
	d := &routed{random: rand.New(rand.NewPCG(1, 2))}
	const events = `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d"}`
	for i, settings := range []struct {
		env     []string
		at, rep int
	}{
		// As vLLM is by itself.
		{[]string{"ENGINE_HASH_SEED="}, harness.FreePort(t), harness.FreePort(t)},
		// Other hashes, in their other form, and ports of its choice.
		{[]string{"ENGINE_HASH_SEED=1", "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0", "VLLM_HOST_IP=127.0.0.1"}, 0, 0},
	} {
		e := newSmallEngine(t, "engine-"+strconv.Itoa(i), folder)
		e.nixl = 0
		e.run(t, settings.env, "--num-gpu-blocks-override", strconv.Itoa(routedPool), "--kv-events-config", fmt.Sprintf(events, settings.at, settings.rep))
		d.engines[i] = e
	}
	return d
}

// TestRealRouting has stock routers send requests to where real engines have them in their caches. The engines name equal blocks
// differently, because routers need no common seed.
func TestRealRouting(t *testing.T) {
	begin := time.Now()
	c, d := harness.NewCluster(t), startRouted(t)
	byCache, inTurn := c.Frontend(t, "--router-mode", "kv"), c.Frontend(t) // while the engines load
	for i, e := range d.engines {
		e.waitReady(t)
		d.workers[i] = c.Sidecar(t, harness.Remora, harness.Aggregated, e)
		d.ids[i] = d.workers[i].Instance(t)
		t.Logf("%s: %v", e.name, e.source(t))
	}
	byCache.WaitServing(t, harness.RealModel)
	inTurn.WaitServing(t, harness.RealModel)
	t.Logf("all serve after %v", time.Since(begin).Round(time.Second))

	control := make([]harness.Request, 7) // odd: each goes to the other engine the second time
	for k := range control {
		control[k] = d.prompt(routedTokens)
	}
	d.counted(t, func() (asked, found [2]int) {
		for range 2 {
			for _, r := range control {
				at, _ := d.ask(t, inTurn, r)
				asked[at] += routedTokens
			}
		}
		t.Logf("%d prompts twice in turn: found nothing of %d tokens", len(control), asked[0]+asked[1])
		return asked, found
	})

	one, other := d.engines[0].hashes(t, len(control)*routedBlocks), d.engines[1].hashes(t, len(control)*routedBlocks) // of the same prompts
	for hash := range one {
		if other[hash] {
			t.Fatalf("both engines have a block %x: they show nothing about seeds", hash)
		}
	}

	var prompts []harness.Request
	var first []int
	d.counted(t, func() (asked, found [2]int) {
		const least, most = 9, 24 // a router draws lots among the equally loaded
		for len(prompts) < least || asked[0] == 0 || asked[1] == 0 {
			if len(prompts) == most {
				t.Fatalf("%d prompts went to one engine", most)
			}
			r := d.prompt(routedTokens)
			at, believed := d.ask(t, byCache, r)
			if believed != 0 {
				t.Errorf("prompt %d is new, and %g of it was believed to be at %s", len(prompts), believed, d.engines[at].name)
			}
			asked[at] += routedTokens
			prompts, first = append(prompts, r), append(first, at)
		}
		return asked, found
	})
	marks := d.learns(t, byCache)
	d.again(t, byCache, prompts, first)

	t.Run("a router that comes late", func(t *testing.T) {
		queries := func(w *harness.Sidecar) float64 { return w.Status.Metrics(t)["remora_kv_queries_total"] }
		before := [2]float64{queries(d.workers[0]), queries(d.workers[1])}
		late := c.Frontend(t, "--router-mode", "kv")
		late.WaitServing(t, harness.RealModel)
		d.knows(t, late, marks)
		for i, w := range d.workers {
			if n := queries(w) - before[i]; n != 1 {
				t.Errorf("%s was asked %g times for what it has", w.Name, n)
			}
		}
		d.again(t, late, prompts, first)
	})

	t.Run("what was evicted", func(t *testing.T) {
		const long = calibration.MaxModelLen - calibration.BlockSize
		for _, e := range d.engines {
			for range routedPool/(long/calibration.BlockSize) + 1 {
				ask(t, e.Client, d.prompt(long))
			}
		}
		d.learns(t, byCache)
		d.counted(t, func() (asked, found [2]int) {
			for k, r := range prompts {
				at, believed := d.ask(t, byCache, r)
				if believed != 0 {
					t.Errorf("%g of prompt %d was believed to be at %s", believed, k, d.engines[at].name)
				}
				asked[at] += routedTokens
			}
			return asked, found
		})
	})
	t.Logf("all in %v", time.Since(begin).Round(time.Second))
}
