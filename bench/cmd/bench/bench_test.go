package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestQuick runs every kind of measurement for a moment, against the Remora that REMORA_BIN names.
func TestQuick(t *testing.T) {
	remora := os.Getenv("REMORA_BIN")
	if remora == "" {
		remora = "../../../bin/remora"
	}
	if _, err := os.Stat(remora); err != nil {
		t.Fatalf("%v: run `make build` first, or set REMORA_BIN", err)
	}
	tools := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", tools, "../engine", "../client")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	var table bytes.Buffer
	if err := run(t.Context(), options{remora: remora, tools: tools, quick: true, log: "warn"}, &table); err != nil {
		t.Errorf("%v\n%s", err, table.String())
	}
	for _, title := range []string{
		"| CPU a token: 1 stream, a token each 20 ms | ", "| CPU a token: 64 streams, flat out | ", "| CPU: request with a prompt of 128,000 | ",
		"| memory idle | ", "| memory at 64 streams | ", "| memory after the churn, to its beginning | ", "| latency of first token, p50, at 64 | ",
		"| latency of later tokens, p99, at 1 | ", "| start, from spawn to instance record | ", "| size of the program (Rust: its library) | ",
		"| allocations a token: 64 streams, 20 ms | ", "| goroutines after the churn, to its beginning | ",
	} {
		if !strings.Contains(table.String(), title) {
			t.Errorf("no row %q in\n%s", title, table.String())
		}
	}
}

func TestTable(t *testing.T) {
	ours, theirs := newSide("Remora", "a", "a"), newSide("Rust", "b", "b")
	for _, v := range []float64{30, 10, 20} {
		ours.add("paced64 cpu sidecar", v)
		theirs.add("paced64 cpu sidecar", 4*v)
	}
	ours.add("start", 10) // theirs has failed
	ours.add("burst1 rss", 40)
	ours.add("burst8 rss", 42)
	theirs.failed("flat64", 3, []string{"broken"})
	var out bytes.Buffer
	printTable(&out, []*side{ours, theirs})
	for _, line := range []string{
		"| | Remora | Rust | ratio | at most |",
		"| CPU a token: 64 streams, 20 ms | 20.0 µs | 80.0 µs | 0.25 | 0.5 |",
		"| start, from spawn to instance record | 10 ms | | | 0.4 |",
		"| memory after the eighth, to that | 1.05 | | | 1.05 by itself |",
		"- Remora: none", "- Rust: 3 in flat64", "  - Rust, flat64: broken",
	} {
		if !strings.Contains(out.String(), line+"\n") {
			t.Errorf("no line %q in\n%s", line, out.String())
		}
	}
	if strings.Contains(out.String(), "256 streams") {
		t.Error("a row without values is shown")
	}
	if _, ok := median(nil); ok {
		t.Error("the median of nothing is known")
	}
	if got, _ := median([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("median %v, want 2.5", got)
	}
}
