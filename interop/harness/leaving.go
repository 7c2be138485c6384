package harness

import (
	"fmt"
	"sync"
	"time"
)

// Names of metrics that the tests look at: an engine's, and a sidecar's.
const (
	KVUsage   = "vllm:kv_cache_usage_perc"              // share of blocks in use, held ones included
	KVPulled  = "vllm:external_prefix_cache_hits_total" // tokens that came from another engine
	Generated = "vllm:generation_tokens_total"          // tokens that the engine made
	Inflight  = "dynamo_component_inflight_requests"    // requests that the sidecar has
	Requests  = "dynamo_component_requests_total"       // requests that the sidecar ever had
	Cancels   = "dynamo_component_cancellation_total"   // of those, whose client went
	Running   = "vllm:num_requests_running"             // requests in the engine's batch
)

// Settle bounds how long anything may be held after a client went away. A drain ends with the first token, which even two
// engines on two busy cores give within seconds; it is well below the lease, after which blocks are free in any case.
const Settle = 20 * time.Second

// LeaveWhileFrozen stops an engine, sends a request, leaves once that engine's sidecar has it, waits until the sidecar knows, and
// lets the engine go on. So the cancel is there before the engine's first answer, whatever the machine is doing. A prefill
// worker is never told by a stock frontend: there the frontend knows, and tells the decode worker when its turn has come.
func LeaveWhileFrozen(t T, f *Frontend, engine *Process, s *Sidecar, r Request) {
	t.Helper()
	engine.Freeze()
	defer engine.Thaw()
	cancels := s.Status.Metrics(t)[Cancels]
	gone, over := make(chan struct{}), make(chan struct{})
	leave := sync.OnceFunc(func() {
		close(gone)
		<-over
	})
	var ended error // by itself; written before over is closed
	go func() {
		defer close(over)
		ended = f.Abandon(t, r, gone)
	}()
	defer leave() // also when a poll fails
	Poll(t, "the request to reach "+s.Name, Settle, func() error {
		select {
		case <-over:
			return Final(ended)
		default:
		}
		if n := s.Status.Metrics(t)[Inflight]; n != 1 {
			return fmt.Errorf("%s = %v", Inflight, n)
		}
		return nil
	})
	leave()
	if s.Role != Prefill {
		s.WaitCancels(t, cancels+1)
	}
}

// WaitCancels waits until the sidecar knows of so many clients in all that went.
func (s *Sidecar) WaitCancels(t T, n float64) {
	t.Helper()
	Poll(t, s.Name+" to know that its client is gone", Settle, func() error {
		if got := s.Status.Metrics(t)[Cancels]; got < n {
			return fmt.Errorf("%s = %v", Cancels, got)
		}
		return nil
	})
}

// WaitSettled waits until the engines hold no block (an engine at rest has 0 in use: what is cached is free) and the sidecars
// have nothing left to do.
func WaitSettled(t T, engines []Engine, sidecars ...*Sidecar) {
	t.Helper()
	Poll(t, "everything to be given back", Settle, func() error {
		for i, e := range engines {
			if n := e.Metrics(t)[KVUsage]; n != 0 {
				return fmt.Errorf("engine %d: %s = %v", i, KVUsage, n)
			}
		}
		for _, s := range sidecars {
			if n := s.Status.Metrics(t)[Inflight]; n != 0 {
				return fmt.Errorf("%s: %s = %v", s.Name, Inflight, n)
			}
		}
		return nil
	})
}
