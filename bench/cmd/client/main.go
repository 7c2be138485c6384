// Command client is the Dynamo side of one measurement: it finds the worker in a file discovery folder, puts the load on it
// that the flags describe, and prints what it measured as one JSON object. It exits with status 1 where it could not measure;
// answers that went wrong are in the result.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"remora/bench/internal/load"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	result, err := run(ctx)
	if encodeErr := json.NewEncoder(os.Stdout).Encode(result); encodeErr != nil {
		err = errors.Join(err, encodeErr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}

func run(ctx context.Context) (result load.Result, err error) {
	var (
		hold    load.HoldConfig
		loop    load.LoopConfig
		watched = load.Watched{}
	)
	folder := flag.String("discovery", "", "folder of the file discovery")
	connections := flag.Int("connections", 4, "request connections")
	flag.Var(watched, "watch", "name=pid of a process whose cost is read; may be repeated")
	metrics := flag.String("metrics", "", "URL of the sidecar's metrics, whose allocations are counted; empty: they are not")
	prompt := flag.Int("prompt", 128, "tokens of a prompt")
	interval := flag.Duration("interval", 0, "between the tokens of a stream; 0: as fast as can be")
	flag.IntVar(&hold.Streams, "hold", 0, "streams to hold; 0: short requests instead")
	flag.DurationVar(&hold.Warm, "warm", time.Second, "before the window")
	flag.DurationVar(&hold.Window, "window", 10*time.Second, "that is measured")
	flag.IntVar(&hold.Probes, "probes", 0, "first tokens to measure after the window")
	flag.IntVar(&loop.Requests, "requests", 0, "short requests to send")
	flag.IntVar(&loop.Warm, "warm-requests", 0, "short requests to send before")
	flag.IntVar(&loop.AtOnce, "at-once", 1, "short requests under way at a time")
	flag.IntVar(&loop.Killed, "killed", 0, "of ten short requests, so many are killed")
	flag.IntVar(&loop.Tokens, "tokens", 2, "of the answer to a short request")
	flag.Parse()
	runtime.GOMAXPROCS(2) // the loop and the rest
	debug.SetGCPercent(400)
	hold.Prompt, loop.Prompt = *prompt, *prompt
	hold.Metrics, loop.Metrics = *metrics, *metrics
	hold.Interval, loop.Interval = *interval, *interval

	worker, err := load.FindWorker(*folder)
	if err != nil {
		return result, err
	}
	client, err := load.New(ctx, worker, *connections)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	if hold.Streams > 0 {
		result, err = client.Hold(ctx, hold, watched)
	} else {
		result, err = client.Loop(ctx, loop, watched)
	}
	result.Codec = worker.Codec.String()
	return result, err
}
