// Package engine tests the whole real thing: stock frontend, sidecars, two real vLLM engines with hand-offs over NIXL.
// One pair serves all tests, since it takes minutes to start.
package engine

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"remora/interop/harness"
)

const (
	kvUsage  = "vllm:kv_cache_usage_perc"
	kvPulled = "vllm:external_prefix_cache_hits_total" // tokens that came from another engine
	inflight = "dynamo_component_inflight_requests"

	// settle bounds how long blocks may be held after a client went away: a drain ends with the first token, which two
	// engines on two cores give within seconds. It is well below the lease, after which they would be free in any case.
	settle = 20 * time.Second
)

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
	steps := []struct {
		name string
		run  func(t *testing.T, p *harness.Pair)
	}{
		{"greedy text is that of one engine alone", testSameText},
		{"a client that leaves before the first token", testLeaveBeforeFirstToken},
		{"a client that leaves during the prefill", testLeaveDuringPrefill},
		{"a client that leaves in mid-stream", testLeaveMidStream},
	}
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) { s.run(t, p) })
	}
}

func testSameText(t *testing.T, p *harness.Pair) {
	for i, r := range prompts() {
		pulled := p.DecodeEngine.Metrics(t)[kvPulled]
		sameAsAlone(t, p, r)
		if now := p.DecodeEngine.Metrics(t)[kvPulled]; now <= pulled {
			t.Errorf("prompt %d: %s stayed at %v: the KV was computed again instead of pulled", i, kvPulled, now)
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
	base := usage(t, p)
	leaveWhileFrozen(t, p, p.DecodeEngine, p.DecodeSidecar, leaving("before the first token"))
	settled(t, p, base)
	sameAsAlone(t, p, prompts()[5])
}

func testLeaveDuringPrefill(t *testing.T, p *harness.Pair) {
	base := usage(t, p)
	leaveWhileFrozen(t, p, p.PrefillEngine, p.PrefillSidecar, leaving("during the prefill"))
	settled(t, p, base)
	sameAsAlone(t, p, prompts()[6])
}

// leaveWhileFrozen stops an engine, sends a request, leaves once the engine's sidecar has it, and lets the engine go on.
// So the client is gone before that engine's first answer whatever the machine is doing.
func leaveWhileFrozen(t *testing.T, p *harness.Pair, e *harness.VLLM, s *harness.Sidecar, r harness.Request) {
	t.Helper()
	e.Freeze()
	defer e.Thaw()
	gone, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		p.Abandon(t, r, gone)
	}()
	harness.Poll(t, "the request to reach "+s.Name, settle, func() error {
		if n := s.Status.Metrics(t)[inflight]; n != 1 {
			return fmt.Errorf("%s = %v", inflight, n)
		}
		return nil
	})
	close(gone)
	<-over
}

func testLeaveMidStream(t *testing.T, p *harness.Pair) {
	base := usage(t, p)
	s := p.Open(t, leaving("in mid-stream"))
	s.ReadChunks(t, 3)
	s.Close()
	settled(t, p, base)
	sameAsAlone(t, p, prompts()[7])
}

// usage is the share of KV blocks in use on both engines.
func usage(t *testing.T, p *harness.Pair) [2]float64 {
	t.Helper()
	return [2]float64{p.PrefillEngine.Metrics(t)[kvUsage], p.DecodeEngine.Metrics(t)[kvUsage]}
}

// settled waits until both engines use no more than they did and the sidecars have nothing left to do.
func settled(t *testing.T, p *harness.Pair, base [2]float64) {
	t.Helper()
	harness.Poll(t, "everything to be given back", settle, func() error {
		if now := usage(t, p); now != base {
			return fmt.Errorf("KV usage of prefill and decode %v, at the start %v", now, base)
		}
		for _, s := range []*harness.Sidecar{p.PrefillSidecar, p.DecodeSidecar} {
			if n := s.Status.Metrics(t)[inflight]; n != 0 {
				return fmt.Errorf("%s: %s = %v", s.Name, inflight, n)
			}
		}
		return nil
	})
}
