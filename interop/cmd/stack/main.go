// Command stack runs the real thing on one machine until it is interrupted: a stock Dynamo frontend above a vLLM prefill
// engine and a vLLM decode engine, each behind a Remora sidecar, hand-offs over NIXL.
//
// It writes the tiny model, shows what starts, prints a curl line that works, and on Ctrl-C, SIGTERM or the end of any of
// its programs ends all of them and waits for that; on a second Ctrl-C it kills them. Everything it wrote is removed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"remora/interop/harness"
)

func main() {
	rust := flag.Bool("rust", false, "use the stock Rust sidecars instead of Remora's")
	flag.Parse()
	kind := harness.Remora
	if *rust {
		kind = harness.Rust
	}
	ctx, end := context.WithCancel(context.Background())
	defer end()
	told := make(chan os.Signal, 2)
	signal.Notify(told, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() { // until the process ends
		<-told
		fmt.Fprintln(os.Stderr, "ending; once more to end at once")
		end()
		<-told
		harness.EndAll()
	}()
	ok := harness.Run(ctx, os.Stderr, func(t *harness.Console) {
		p := harness.StartPair(t, kind)
		t.Logf(`
Try it:

  curl -N %s/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"%s","stream":true,"max_tokens":40,"temperature":0,"messages":[{"role":"user","content":"Hello, who are you?"}]}'

The model has random weights: it babbles, always in the same way. Ctrl-C ends everything.
`, p.Frontend.URL, p.Model)
		waitEnd(t, p)
	})
	if !ok {
		end()
		os.Exit(1) //nolint:gocritic // what is deferred was done
	}
}

// waitEnd waits for the interrupt; a program that ends before it is an error.
func waitEnd(t *harness.Console, p *harness.Pair) {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-t.Context().Done():
			return
		case <-look.C:
		}
		for _, process := range p.Processes() {
			if process.Exited() {
				t.Fatalf("%s has ended by itself:\n%s", process.Name, process.LogTail(20))
			}
		}
	}
}
