package load

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Runtime is what a Go program tells of its runtime.
type Runtime struct {
	Mallocs    float64 // objects that were allocated since its start
	Goroutines float64
}

// ReadRuntime reads the metrics page of a program. It is nil for a program that is not written in Go.
func ReadRuntime(ctx context.Context, url string) (*Runtime, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	defer response.Body.Close()
	var r Runtime
	found := 0
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		field := map[string]*float64{"go_memstats_mallocs_total": &r.Mallocs, "go_goroutines": &r.Goroutines}[name]
		if field == nil {
			continue
		}
		if *field, err = strconv.ParseFloat(value, 64); err != nil {
			return nil, fmt.Errorf("metrics: %s: %w", name, err)
		}
		found++
	}
	if err = lines.Err(); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	if found < 2 {
		return nil, nil //nolint:nilnil // as documented
	}
	return &r, nil
}

// mallocs counts allocations over a span. What reading them allocates is not the load's.
type mallocs struct {
	url    string // empty: nothing is counted
	before float64
	own    float64 // of one reading
}

func (m *mallocs) begin(ctx context.Context) error {
	if m.url == "" {
		return nil
	}
	first, err := ReadRuntime(ctx, m.url)
	if err != nil || first == nil {
		m.url = ""
		return err
	}
	second, err := ReadRuntime(ctx, m.url)
	if err != nil {
		return err
	}
	m.before, m.own = second.Mallocs, second.Mallocs-first.Mallocs
	return nil
}

// end returns nil where nothing was counted.
func (m *mallocs) end(ctx context.Context) (*float64, error) {
	if m.url == "" {
		return nil, nil //nolint:nilnil // as documented
	}
	last, err := ReadRuntime(ctx, m.url)
	if err != nil {
		return nil, err
	}
	n := max(last.Mallocs-m.before-m.own, 0)
	return &n, nil
}
