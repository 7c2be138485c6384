// Command bench measures a sidecar, or two side by side, in front of the scripted engine and behind the Dynamo-side client of
// this module, and prints a Markdown table. Rounds alternate between the sidecars; what the table shows is the median of the
// rounds, and the ratio of the medians.
//
// Engine, sidecar and client are processes of their own, started afresh for each part of a round and ended after it, also when
// the bench is interrupted. Progress goes to standard error, the table to standard output. The exit status is 1 where something
// could not be measured; answers that went wrong are counted in the table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	remora string // binary
	rust   string // venv; empty: Remora alone
	engine string // --engine-transport of Remora; empty: its default
	rounds int
	quick  bool
	churn  int
	only   string
	log    string
	tools  string // folder of engine and client
}

func main() {
	var o options
	flag.StringVar(&o.remora, "remora", os.Getenv("REMORA_BIN"), "Remora's binary")
	flag.StringVar(&o.rust, "rust", "", "venv of the stock Dynamo, whose sidecar is measured beside Remora's")
	flag.StringVar(&o.engine, "transport", "", "Remora's --engine-transport; empty: its default")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds, of which the table shows the median")
	flag.BoolVar(&o.quick, "quick", false, "one round of short windows and few streams: shows that the bench works, measures nothing")
	flag.IntVar(&o.churn, "churn", 100_000, "requests of the churn in the first round; 0: none")
	flag.StringVar(&o.only, "only", "", "parts to run, separated by commas (paced, flat, short, bursts, churn); empty: all")
	flag.StringVar(&o.log, "log", "warn", "DYN_LOG of the sidecars")
	flag.Parse()
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: own path:", err)
		os.Exit(1)
	}
	o.tools = filepath.Dir(self)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}

func run(ctx context.Context, o options, out io.Writer) error {
	sides, err := o.sides()
	if err != nil {
		return err
	}
	plan, settle := fullPlan(o.churn), 2*time.Second
	if o.quick {
		plan, settle, o.rounds = quickPlan(), 200*time.Millisecond, 1
	}
	begun := time.Now()
	var failures []error
	for round := range o.rounds {
		for _, side := range sides {
			b := &bench{ctx: ctx, side: side, tools: o.tools, log: o.log, settle: settle}
			for _, part := range plan {
				if o.only != "" && !strings.Contains(","+o.only+",", ","+part.name+",") || part.once && round > 0 {
					continue
				}
				fmt.Fprintf(os.Stderr, "%4.0f s: round %d, %s, %s\n", time.Since(begun).Seconds(), round+1, side.name, part.name)
				if err := b.run(part); err != nil {
					failures = append(failures, fmt.Errorf("round %d, %s, %s: %w", round+1, side.name, part.name, err))
					fmt.Fprintln(os.Stderr, failures[len(failures)-1])
				}
				if ctx.Err() != nil {
					return errors.Join(append(failures, ctx.Err())...)
				}
			}
		}
	}
	fmt.Fprintf(out, "%d rounds, %s, %s/%s, %d cores, %s\n\n", o.rounds, time.Now().Format(time.DateOnly),
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), cpuModel())
	printTable(out, sides)
	for _, s := range sides {
		if n := s.wrong(); o.quick && n > 0 {
			failures = append(failures, fmt.Errorf("%s: %d answers went wrong", s.name, n))
		}
	}
	return errors.Join(failures...)
}

// cpuModel is what /proc/cpuinfo calls the processor.
func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}
