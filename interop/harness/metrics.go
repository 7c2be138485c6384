package harness

import (
	"fmt"
	"strconv"
	"strings"
)

// Metrics are the samples of one scrape, by name; samples that differ only in labels are added up.
type Metrics map[string]float64

// Metrics scrapes /metrics.
func (c *Client) Metrics(t T) Metrics {
	t.Helper()
	return parseMetrics(c.scrape(t))
}

func (c *Client) scrape(t T) string {
	t.Helper()
	text, err := c.Get(t.Context(), "/metrics")
	if err != nil {
		t.Fatalf("%v", err)
	}
	return text
}

// Counts scrapes the samples of one metric, by the value of a label.
func (c *Client) Counts(t T, name, label string) map[string]float64 {
	t.Helper()
	return counts(c.scrape(t), name, label)
}

func counts(text, name, label string) map[string]float64 {
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name+"{") {
			continue
		}
		_, rest, ok := strings.Cut(line, label+`="`)
		if !ok {
			continue
		}
		value, _, _ := strings.Cut(rest, `"`)
		all[value] += parseMetrics(line)[name]
	}
	return all
}

// RankMetrics scrapes /metrics for the samples of one data-parallel rank.
func (c *Client) RankMetrics(t T, rank uint32) Metrics {
	t.Helper()
	label := fmt.Sprintf("engine=%q", strconv.FormatUint(uint64(rank), 10))
	var own strings.Builder
	for line := range strings.Lines(c.scrape(t)) {
		if strings.Contains(line, label) {
			own.WriteString(line)
		}
	}
	return parseMetrics(own.String())
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
