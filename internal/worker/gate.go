package worker

import (
	"sync"
	"time"

	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
)

// gate limits the requests of a worker: up to running at the engine at once, up to waiting more in line, the rest refused by
// the overloaded ack. A worker that drains refuses all.
type gate struct {
	places  chan struct{}   // one token a running request; set once
	metrics *status.Metrics // set once

	mu       sync.Mutex
	limit    int    // running + waiting; set once
	admitted int    // guarded by mu
	draining bool   // guarded by mu
	paused   string // guarded by mu; why nothing is taken for now, empty: it is
}

func newGate(running, waiting int, metrics *status.Metrics) *gate {
	metrics.SetCapacity(running, waiting)
	return &gate{places: make(chan struct{}, running), limit: running + waiting, metrics: metrics}
}

// admit decides before the ack; each nil answer needs a leave.
func (g *gate) admit() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.draining:
		return requestplane.Unavailable("draining")
	case g.paused != "":
		return requestplane.Unavailable(g.paused)
	case g.admitted >= g.limit:
		g.metrics.RequestRejected(true)
		return requestplane.Overloaded()
	}
	g.admitted++
	return nil
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.admitted--
}

// inside counts the requests that were admitted and have not left, drains included.
func (g *gate) inside() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.admitted
}

// close refuses everything from now on.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.draining = true
}

// pause refuses everything until resume.
func (g *gate) pause(why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused = why
}

func (g *gate) resume() { g.pause("") }

// enter waits for a place; true: exit must give it back. A request whose end is decided, because its client left or the worker
// shuts down, does not wait any longer: the machine then knows whether it still has to reach the engine, and a hand-off that
// must be fetched goes without a place, since holding P's blocks costs more than one short request above the limit.
func (g *gate) enter(r *request) bool {
	select {
	case g.places <- struct{}{}:
		g.entered(0)
		return true
	default:
	}
	began := time.Now()
	g.metrics.Queued(1)
	defer g.metrics.Queued(-1)
	select {
	case g.places <- struct{}{}:
		g.entered(time.Since(began))
		return true
	case <-r.leaving:
		return false
	case <-r.decided:
		return false
	}
}

func (g *gate) entered(waited time.Duration) {
	g.metrics.PermitWait(waited)
	g.metrics.PoolActive(1)
	g.metrics.EngineRequests(1)
}

// exit gives a place back.
func (g *gate) exit() {
	g.metrics.PoolActive(-1)
	g.metrics.EngineRequests(-1)
	<-g.places
}
