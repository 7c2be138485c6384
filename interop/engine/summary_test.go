package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"remora/interop/harness"
)

// part runs a part of the matrix and closes it with a line: how many went at which moment, how what they left behind was let
// go of, and how long that took.
func (m *matrix) part(name string, f func()) {
	m.on(name, func() {
		m.cancels, m.slowest = nil, 0
		before := m.outcomes()
		f()
		var causes []string
		after := m.outcomes()
		for _, what := range slices.Sorted(maps.Keys(after)) {
			if n := after[what] - before[what]; n > 0 {
				causes = append(causes, fmt.Sprintf("%g %s", n, what))
			}
		}
		verdict := "no violation"
		if m.t.Failed() {
			verdict = "VIOLATIONS, see below"
		}
		m.t.Logf("SUMMARY: gone: %s; let go by: %s; slowest return to base %v; %s",
			strings.Join(m.cancels, ", "), strings.Join(causes, ", "), m.slowest.Round(10*time.Millisecond), verdict)
	})
}

// cancelled notes for the line that n clients went.
func (m *matrix) cancelled(n int, when string) {
	m.cancels = append(m.cancels, fmt.Sprintf("%d %s", n, when))
}

// outcomes count what the sidecars say of requests whose clients went.
func (m *matrix) outcomes() map[string]float64 {
	m.t.Helper()
	all := map[string]float64{}
	for outcome, n := range m.decode.Status.Counts(m.t, "remora_drains_total", "outcome") {
		all["drain "+outcome] = n
	}
	for _, s := range []*harness.Sidecar{m.prefill, m.decode} {
		all["abort"] += s.Status.Metrics(m.t)["remora_aborts_sent_total"]
	}
	all["orphan"] = m.prefill.Status.Metrics(m.t)["remora_orphans_total"]
	return all
}
