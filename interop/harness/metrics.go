package harness

import (
	"strconv"
	"strings"
)

// Metrics are the samples of one scrape, by name; samples that differ only in labels are added up.
type Metrics map[string]float64

// Metrics scrapes /metrics.
func (c *Client) Metrics(t T) Metrics {
	t.Helper()
	text, err := c.Get(t.Context(), "/metrics")
	if err != nil {
		t.Fatalf("%v", err)
	}
	return parseMetrics(text)
}

// parseMetrics reads the Prometheus text format as far as it is used here: no timestamps, no exemplars.
func parseMetrics(text string) Metrics {
	m := Metrics{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		end := strings.LastIndexByte(line, ' ')
		if end < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		value, err := strconv.ParseFloat(line[end+1:], 64)
		if err != nil {
			continue
		}
		name, _, _ := strings.Cut(line[:end], "{")
		m[strings.TrimSpace(name)] += value
	}
	return m
}
