package engine

import (
	"strings"
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

// stalled keeps an engine's worker still around body. The wait gives the engine time to begin a step that cannot end.
func (m *matrix) stalled(e *smallEngine, body func()) {
	m.t.Helper()
	if err := e.stall(m.t, true); err != nil {
		m.t.Fatal(err)
	}
	defer func() {
		if err := e.stall(m.t, false); err != nil {
			m.t.Error(err)
		}
	}()
	body()
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
			all := m.burst(n, 20)
			m.until(m.d.Client, waiting, float64(n))
			leave(all)
		}},
		{"decode fetching", 4, func(m *matrix, n int, leave func([]*leaver)) {
			empty := m.fill(m.d) // so that the decode waits until the prefill engine can be stopped
			defer empty()
			all := m.burst(n, 20)
			m.until(m.d.Client, waiting, float64(n))
			m.stalled(m.p, func() {
				empty()
				m.until(m.d.Client, harness.Running, 0)
				m.until(m.d.Client, waiting, float64(n))
				leave(all)
			})
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
