package engine

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"remora/interop/harness"
)

// moment brings a number of requests to a point of their life, calls leave there, and lets everything go on. Its name begins with
// the leg that they are in.
type moment struct {
	name   string
	rounds int
	run    func(m *matrix, n int, leave func([]*leaver))
}

// holder is the sidecar that has the requests.
func (mo moment) holder(m *matrix) *harness.Sidecar {
	if strings.HasPrefix(mo.name, "prefill ") {
		return m.prefill
	}
	return m.decode
}

// burst sends n requests.
func (m *matrix) burst(n, tokens int) []*leaver {
	var all []*leaver
	for range n {
		all = append(all, m.send(m.request(tokens)))
	}
	return all
}

// behind brings n requests to the decode engine while that stands still, and does something then. So what fills the engine does
// not end meanwhile: its 450 tokens are a second and a half, and a prefill takes as long as it likes.
func (m *matrix) behind(n int, then func()) (all []*leaver) {
	m.t.Helper()
	m.stalled(m.d, func() {
		all = m.burst(n, 20)
		m.inflight(m.decode, n)
		then()
	})
	return all
}

// fetching calls leave while the decode engine fetches what n requests need, and can't, because the prefill engine stands still.
// Now and then it can all the same, when the transport reads the other process's memory without its help: then it is false, and
// the requests have come to their end.
func (m *matrix) fetching(n int, leave func([]*leaver)) bool {
	m.t.Helper()
	empty := m.fill(m.d) // so that the decode waits until the prefill engine can be stopped
	defer empty()
	all := m.behind(n, func() { m.halt(m.p, true) })
	going := sync.OnceFunc(func() { m.halt(m.p, false) })
	defer going()
	empty()
	through := false
	harness.Poll(m.t, "transfers that stand still", 30*time.Second, func() error {
		for _, l := range all {
			select {
			case <-l.over:
				through = true
				return nil
			default:
			}
		}
		now := m.d.Metrics(m.t)
		if now[harness.Running] != 0 || now[waiting] != float64(n) {
			return fmt.Errorf("%v run and %v wait", now[harness.Running], now[waiting])
		}
		return nil
	})
	if !through {
		leave(all)
		return true
	}
	going()
	for _, l := range all {
		<-l.over // by itself
	}
	return false
}

// stalled keeps an engine's worker still around body.
func (m *matrix) stalled(e *smallEngine, body func()) {
	m.t.Helper()
	m.halt(e, true)
	defer m.halt(e, false)
	body()
}

// halt stops an engine's worker, or lets it go on.
func (m *matrix) halt(e *smallEngine, on bool) {
	m.t.Helper()
	if err := e.stall(m.t, on); err != nil {
		m.t.Errorf("%s: %v", e.name, err)
	}
}

func moments() []moment {
	return []moment{
		{"prefill before its headers", 4, func(m *matrix, n int, leave func([]*leaver)) {
			m.p.Freeze()
			defer m.p.Thaw()
			all := m.burst(n, 20)
			m.inflight(m.prefill, n)
			leave(all)
		}},
		{"prefill queued", 4, func(m *matrix, n int, leave func([]*leaver)) {
			defer m.fill(m.p)()
			all := m.burst(n, 20)
			m.until(m.p.Client, waiting, float64(n))
			leave(all)
		}},
		{"prefill computing", 4, func(m *matrix, n int, leave func([]*leaver)) {
			m.stalled(m.p, func() {
				all := m.burst(n, 20)
				m.inflight(m.prefill, n)
				pause(m.t, 300*time.Millisecond)
				leave(all)
			})
		}},
		{"decode before its headers", 4, func(m *matrix, n int, leave func([]*leaver)) {
			var all []*leaver
			m.stalled(m.p, func() { // so that the decode engine's front end is frozen no longer than it must
				all = m.burst(n, 20)
				m.inflight(m.prefill, n)
				m.d.Freeze()
			})
			defer m.d.Thaw()
			m.inflight(m.decode, n)
			leave(all)
		}},
		{"decode queued", 4, func(m *matrix, n int, leave func([]*leaver)) {
			defer m.fill(m.d)()
			all := m.behind(n, func() {})
			m.until(m.d.Client, waiting, float64(n))
			leave(all)
		}},
		{"decode fetching", 4, func(m *matrix, n int, leave func([]*leaver)) {
			const tries = 6
			for range tries {
				if m.fetching(n, leave) {
					return
				}
				m.settle(released)
			}
			m.t.Errorf("of %d transfers none stood still with the engine that it reads from", tries)
		}},
		{"decode standing still", 4, func(m *matrix, n int, leave func([]*leaver)) {
			m.stalled(m.d, func() {
				all := m.burst(n, 20)
				m.inflight(m.decode, n)
				pause(m.t, 300*time.Millisecond)
				leave(all)
			})
		}},
		{"decode running", 4, func(m *matrix, n int, leave func([]*leaver)) {
			all := m.burst(n, 250)
			m.until(m.d.Client, harness.Running, float64(n))
			leave(all)
		}},
	}
}

func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
