// Package engine tests the whole real thing: stock frontend, sidecars, two real vLLM engines with hand-offs over NIXL.
// One pair serves all tests, since it takes minutes to start.
package engine

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"remora/interop/harness"
)

func TestMain(m *testing.M) { harness.Main(m.Run) }

// text is long enough for many blocks; prompts are its beginnings.
var text = strings.Repeat("The first people who came down the river had no word for it, and when they were asked what they had seen "+
	"they said that it was water which had been told to wait. ", 8)

// prompts are of all kinds of lengths: below one block, on and around the border of blocks, many blocks.
func prompts() []harness.Request {
	var all []harness.Request
	for i, n := range []int{4, 40, 90, 150, 260, 400, 700, 1000} {
		all = append(all, harness.Request{Prompt: fmt.Sprintf("%d: %s", i, text[:n])})
	}
	for _, turn := range []string{"Hello, who are you?", text[:300]} {
		all = append(all, harness.Request{Messages: []harness.Message{{Role: "user", Content: turn}}})
	}
	for i := range all {
		all[i].Model, all[i].MaxTokens = harness.RealModel, 40
	}
	return all
}

func TestRealEngines(t *testing.T) {
	kind := harness.Remora
	if os.Getenv("REMORA_SIDECAR") == string(harness.Rust) { // to tell a fault of ours from one of the stack
		kind = harness.Rust
	}
	p := harness.StartPair(t, kind)
	for _, step := range []struct {
		name string
		run  func(t *testing.T, p *harness.Pair)
	}{
		{"the text depends on every block", testTextDependsOnEveryBlock},
		{"greedy text is that of one engine alone", testSameText},
		{"a client that leaves before the first token", testLeaveBeforeFirstToken},
		{"a client that leaves during the prefill", testLeaveDuringPrefill},
		{"a client that leaves in mid-stream", testLeaveMidStream},
		{"a Rust prefill worker, which writes no stamp", func(t *testing.T, p *harness.Pair) { testMixed(t, p, harness.Rust, harness.Remora) }},
		{"a Rust decode worker, which passes our stamp on to the engine", func(t *testing.T, p *harness.Pair) { testMixed(t, p, harness.Remora, harness.Rust) }},
	} {
		t.Run(step.name, func(t *testing.T) { step.run(t, p) })
	}
}

// testTextDependsOnEveryBlock replaces one block of a prompt at a time, for one engine alone. Without this, equal texts
// would not show that the blocks behind them are equal.
func testTextDependsOnEveryBlock(t *testing.T, p *harness.Pair) {
	const blockSize, blocks = 32, 8
	ids := make([]int, blockSize*blocks)
	for i := range ids {
		ids[i] = 'a' + i*7%26
	}
	ask := func() string {
		a := p.PrefillEngine.Ask(t, harness.Request{Model: harness.RealModel, Prompt: ids, MaxTokens: 40})
		if a.Status != 200 {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		return a.Text
	}
	want := ask()
	for block := range blocks {
		own := slices.Clone(ids)
		for i := block * blockSize; i < (block+1)*blockSize; i++ {
			ids[i] = '0' + i%10
		}
		if got := ask(); got == want {
			t.Errorf("block %d may be anything: still %q", block, got)
		}
		ids = own
	}
}

func testSameText(t *testing.T, p *harness.Pair) {
	for i, r := range prompts() {
		pulled := p.DecodeEngine.Metrics(t)[harness.KVPulled]
		sameAsAlone(t, p, r)
		if now := p.DecodeEngine.Metrics(t)[harness.KVPulled]; now <= pulled {
			t.Errorf("prompt %d: %s stayed at %v: the KV was computed again instead of pulled", i, harness.KVPulled, now)
		}
	}
}

// testMixed puts one worker of each kind before the engines.
func testMixed(t *testing.T, p *harness.Pair, prefill, decode harness.Kind) {
	mixed := p.Behind(t, prefill, decode)
	for _, r := range prompts()[2:6] {
		pulled := p.DecodeEngine.Metrics(t)[harness.KVPulled]
		r.Prompt = fmt.Sprintf("%s, %s: %v", prefill, decode, r.Prompt) // nothing of it is cached
		sameAsAlone(t, mixed, r)
		if now := p.DecodeEngine.Metrics(t)[harness.KVPulled]; now <= pulled {
			t.Errorf("%s stayed at %v: the KV was computed again instead of pulled", harness.KVPulled, now)
		}
	}
	if decode == harness.Remora {
		if n := mixed.DecodeSidecar.Status.Metrics(t)["remora_handoffs_unstamped_total"]; n < 4 {
			t.Errorf("%v hand-offs without a stamp, want 4 at least", n)
		}
	}
}

// sameAsAlone asks through the pair, then the prefill engine by itself.
func sameAsAlone(t *testing.T, p *harness.Pair, r harness.Request) {
	t.Helper()
	through := p.Ask(t, r)
	alone := p.PrefillEngine.Ask(t, r)
	if through.Status != 200 || alone.Status != 200 {
		t.Fatalf("through the pair: %d %s\nalone: %d %s", through.Status, through.Body, alone.Status, alone.Body)
	}
	if through.Text != alone.Text || through.Text == "" {
		t.Errorf("%+v\nthrough the pair %q\nalone            %q", r, through.Text, alone.Text)
	}
	if through.Usage.Completion != r.MaxTokens || through.Finish != "length" {
		t.Errorf("%d tokens, finish %q; asked for %d", through.Usage.Completion, through.Finish, r.MaxTokens)
	}
}

// leaving is a request whose client will go away. Each use has a prompt of its own, so that nothing of it is cached.
func leaving(mark string) harness.Request {
	return harness.Request{Model: harness.RealModel, Prompt: mark + " " + text[:900], MaxTokens: 600}
}

func testLeaveBeforeFirstToken(t *testing.T, p *harness.Pair) {
	settlesAndGoesOn(t, p, prompts()[5], func() {
		harness.LeaveWhileFrozen(t, p.Frontend, p.DecodeEngine.Process, p.DecodeSidecar, leaving("before the first token"))
	})
}

func testLeaveDuringPrefill(t *testing.T, p *harness.Pair) {
	settlesAndGoesOn(t, p, prompts()[6], func() {
		harness.LeaveWhileFrozen(t, p.Frontend, p.PrefillEngine.Process, p.PrefillSidecar, leaving("during the prefill"))
	})
}

func testLeaveMidStream(t *testing.T, p *harness.Pair) {
	settlesAndGoesOn(t, p, prompts()[7], func() {
		s := p.Open(t, leaving("in mid-stream"))
		s.ReadChunks(t, 3)
		s.Close()
	})
}

// settlesAndGoesOn checks that after leave both engines are at rest as they were before, and that the next answer is right.
func settlesAndGoesOn(t *testing.T, p *harness.Pair, next harness.Request, leave func()) {
	t.Helper()
	engines := []harness.Engine{p.PrefillEngine, p.DecodeEngine}
	harness.WaitSettled(t, engines, p.PrefillSidecar, p.DecodeSidecar)
	leave()
	harness.WaitSettled(t, engines, p.PrefillSidecar, p.DecodeSidecar)
	sameAsAlone(t, p, next)
}
