package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// row is one line of the table.
type row struct {
	title  string
	metric string
	over   string  // metric by which it is divided; empty: none
	target float64 // of the ratio to Rust; of the value itself where own is set; 0: none
	own    bool
	format string
}

const (
	micros = "%.1f µs"
	millis = "%.0f ms"
	megas  = "%.1f MB"
	plain  = "%.2f"
)

func rows() []row {
	all := []row{}
	for _, r := range []row{
		{title: "1 stream, a token each 20 ms", metric: "paced1", target: 0.9},
		{title: "64 streams, 20 ms", metric: "paced64", target: 0.5},
		{title: "256 streams, 20 ms", metric: "paced256", target: 0.5},
		{title: "1000 streams, 100 ms", metric: "paced1000", target: 0.5},
		{title: "64 streams, flat out", metric: "flat64", target: 0.4},
		{title: "256 streams, flat out", metric: "flat256", target: 0.4},
		{title: "1000 streams, flat out", metric: "flat1000", target: 0.4},
		{title: "short request, prompt of 128", metric: "short128", target: 0.5},
		{title: "short request, prompt of 8,000", metric: "short8000", target: 0.5},
		{title: "request with a prompt of 128,000", metric: "short128000"},
	} {
		what := "CPU a token: "
		if strings.HasPrefix(r.metric, "short") {
			what = "CPU: "
		}
		all = append(all, row{title: what + r.title, metric: r.metric + " cpu sidecar", target: r.target, format: micros})
	}
	all = append(all,
		row{title: "memory idle", metric: "rss idle", target: 0.3, format: megas},
		row{title: "memory at 64 streams", metric: "paced64 rss", target: 0.4, format: megas},
		row{title: "memory at 1000 streams", metric: "paced1000 rss", target: 0.65, format: megas},
		row{title: "memory after the first burst of 1000", metric: "burst1 rss", format: megas},
		row{title: "memory after the eighth, to that", metric: "burst8 rss", over: "burst1 rss", target: 1.05, own: true, format: plain},
		row{title: "memory after the churn, to its beginning", metric: "churn2 rss", over: "churn1 rss", format: plain},
		row{title: "threads after the churn", metric: "churn2 threads", format: "%.0f"},
		row{title: "goroutines after the churn, to its beginning", metric: "churn2 goroutines", over: "churn1 goroutines", format: plain},
		row{title: "allocations a token: 64 streams, 20 ms", metric: "paced64 mallocs", format: plain},
		row{title: "allocations a token: 64 streams, flat out", metric: "flat64 mallocs", format: plain},
		row{title: "allocations: short request, prompt of 128", metric: "short128 mallocs", format: "%.0f"},
	)
	for _, at := range []string{"1", "64", "256", "1000"} {
		for _, which := range []string{"first", "later"} {
			token := map[string]string{"first": "first token", "later": "later tokens"}[which]
			all = append(all,
				row{title: "latency of " + token + ", p50, at " + at, metric: "paced" + at + " " + which + " p50", target: 1, format: "%.0f µs"},
				row{title: "latency of " + token + ", p99, at " + at, metric: "paced" + at + " " + which + " p99", format: "%.0f µs"})
		}
	}
	for _, at := range []string{"64", "256", "1000"} {
		all = append(all, row{title: "tokens a second, flat out, at " + at, metric: "flat" + at + " rate", format: "%.0f"})
	}
	all = append(all,
		row{title: "start, from spawn to instance record", metric: "start", target: 0.4, format: millis},
		row{title: "size of the program (Rust: its library)", metric: "size", target: 25, own: true, format: megas})
	return all
}

func printTable(out io.Writer, sides []*side) {
	head, rule := "| |", "|---|"
	for _, s := range sides {
		head, rule = head+" "+s.name+" |", rule+"---|"
	}
	if len(sides) > 1 {
		head, rule = head+" ratio | at most |", rule+"---|---|"
	}
	fmt.Fprintln(out, head+"\n"+rule)
	for _, r := range rows() {
		values := make([]float64, len(sides))
		line, known := "| "+r.title+" |", false
		for i, s := range sides {
			value, ok := s.value(r)
			values[i] = value
			cell := " |"
			if ok {
				known = true
				cell = fmt.Sprintf(" "+r.format+" |", value)
			}
			line += cell
		}
		if !known {
			continue
		}
		if len(sides) > 1 {
			line += r.ratio(values)
		}
		fmt.Fprintln(out, line)
	}
	fmt.Fprintln(out, "\nWhat the bench itself takes, CPU a token or request, engine / client:")
	for _, s := range sides {
		fmt.Fprintf(out, "- %s:%s\n", s.name, s.ownCost())
	}
	fmt.Fprintln(out, "\nAnswers that went wrong:")
	for _, s := range sides {
		fmt.Fprintf(out, "- %s: %s\n", s.name, s.errorText())
		for _, text := range s.texts {
			fmt.Fprintf(out, "  - %s\n", text)
		}
	}
}

func (r row) ratio(values []float64) string {
	target := ""
	switch {
	case r.own:
		target = fmt.Sprintf("%g by itself", r.target)
	case r.target > 0:
		target = fmt.Sprintf("%g", r.target)
	}
	if values[0] == 0 || values[1] == 0 {
		return " | " + target + " |"
	}
	return fmt.Sprintf(" %.2f | %s |", values[0]/values[1], target)
}

// value is the median of a row's metric.
func (s *side) value(r row) (float64, bool) {
	value, ok := median(s.samples[r.metric])
	if !ok || r.over == "" {
		return value, ok
	}
	over, ok := median(s.samples[r.over])
	return value / over, ok
}

func median(samples []float64) (float64, bool) {
	n := len(samples)
	if n == 0 {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(samples))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2, true
}

func (s *side) ownCost() string {
	var text strings.Builder
	for _, scenario := range []string{
		"paced1", "paced64", "paced256", "paced1000", "flat64", "flat256", "flat1000", "short128", "short8000", "short128000",
	} {
		engine, ok := median(s.samples[scenario+" cpu engine"])
		client, _ := median(s.samples[scenario+" cpu client"])
		if ok {
			fmt.Fprintf(&text, " %s %.1f / %.1f µs;", scenario, engine, client)
		}
	}
	return strings.TrimSuffix(text.String(), ";")
}

func (s *side) errorText() string {
	var parts []string
	for scenario, n := range s.errors {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d in %s", n, scenario))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
