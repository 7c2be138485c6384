package routing

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"remora/internal/dynamo/status"
)

// own begins the names that the Rust sidecar does not have.
const own = "remora_"

// all is everything that a worker can show, this room's numbers last of all.
func all(t *testing.T) string {
	t.Helper()
	m := status.NewMetrics()
	m.Register(newCollector(func() []rankCounts { return make([]rankCounts, 1) }))
	m.KVEventsUnusable("x", 1)
	m.Bind(status.Identity{})
	return exposed(m)
}

// The names of the Rust sidecar are as they are; ours keep to what Prometheus' linter asks for.
func TestOwnMetricsPassTheLinter(t *testing.T) {
	problems, err := promlint.New(strings.NewReader(all(t))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, own) {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// Operators write alerts from the documents: each metric of ours that these name exists, and each that exists is named.
func TestDocumentsNameOwnMetrics(t *testing.T) {
	names := regexp.MustCompile(`\bremora_[a-z0-9_]+`)
	shown := map[string]bool{}
	for line := range strings.Lines(all(t)) {
		if rest, ok := strings.CutPrefix(line, "# TYPE "+own); ok {
			name, _, _ := strings.Cut(rest, " ")
			shown[own+name] = true
		}
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d documents, %v", len(pages), err)
	}
	named := map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names.FindAllString(string(text), -1) {
			base := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if cut, ok := strings.CutSuffix(name, suffix); ok && shown[cut] {
					base = cut
				}
			}
			if !shown[base] {
				t.Errorf("%s names %s, which does not exist", filepath.Base(page), name)
			}
			named[base] = true
		}
	}
	for name := range shown {
		if !named[name] {
			t.Errorf("no document names %s", name)
		}
	}
}
