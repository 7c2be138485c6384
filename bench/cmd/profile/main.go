// Command profile shows where a worker's CPU time goes: it runs one in its own process, behind the scripted engine and before
// the client, each a process of its own, and writes a CPU profile of the measured span for `go tool pprof`. The client's flags
// follow the profile's own after "--".
//
// The worker is the same as the sidecar's, without its command line. It is stopped, and engine and client are ended, when the
// client has done its work or a signal comes.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"remora/bench/internal/proc"
	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/modelcard"
	"remora/internal/dynamo/protocol"
	"remora/internal/vllm"
	"remora/internal/worker"
)

func main() {
	out := flag.String("o", "cpu.prof", "file of the CPU profile")
	heap := flag.String("heap", "", "file of a heap profile, taken at the end of the span")
	after := flag.Duration("after", 3*time.Second, "from the client's start to the profile's")
	span := flag.Duration("for", 5*time.Second, "how long the profile runs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *out, *heap, *after, *span, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "profile:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}

func run(ctx context.Context, out, heap string, after, span time.Duration, load []string) (err error) {
	dir, err := os.MkdirTemp("", "remora-profile-")
	if err != nil {
		return fmt.Errorf("folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("own path: %w", err)
	}
	tools := filepath.Dir(self)
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("pipe: %w", err)
	}
	defer read.Close()
	engine, err := proc.Start("engine", os.Environ(), write, os.Stderr, filepath.Join(tools, "engine"), "-model", filepath.Join(dir, "model"))
	_ = write.Close()
	if err != nil {
		return err
	}
	defer engine.Stop(0)
	address, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the engine did not say its address: %w", err)
	}

	stopWorker, ready, ended := startWorker(strings.TrimSpace(address), filepath.Join(dir, "discovery"))
	defer func() {
		stopWorker()
		err = errors.Join(err, <-ended)
	}()
	select {
	case <-ready:
	case early := <-ended:
		ended <- nil // for the deferred wait
		return early
	case <-ctx.Done():
		return ctx.Err()
	}
	argv := append([]string{
		filepath.Join(tools, "client"), "-discovery", filepath.Join(dir, "discovery"), "-watch", fmt.Sprintf("sidecar=%d", os.Getpid()),
	}, load...)
	client, err := proc.Start("client", os.Environ(), os.Stdout, os.Stderr, argv...)
	if err != nil {
		return err
	}
	defer client.Stop(0)
	if err = profile(ctx, out, after, span); err != nil {
		return err
	}
	if heap != "" {
		if err = toFile(heap, func(w io.Writer) error { return pprof.Lookup("heap").WriteTo(w, 0) }); err != nil {
			return err
		}
	}
	select {
	case <-client.Done():
		return client.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// startWorker runs a worker until stop is called; ended gets its end.
func startWorker(engine, folder string) (stop func(), ready chan struct{}, ended chan error) {
	ready, ended = make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		ended <- func() error {
			endpoint, err := vllm.ParseEndpoint(engine)
			if err != nil {
				return err
			}
			store, err := discovery.OpenFile(folder, slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			return worker.Run(ctx, context.Background(), worker.Config{
				Role:          protocol.Aggregated,
				Address:       discovery.Address{Namespace: "dynamo", Component: "backend", Endpoint: "generate"},
				EndpointTypes: modelcard.Chat | modelcard.Completions, Codec: protocol.MsgPack, DeviceType: discovery.DeviceCPU,
				Engine: vllm.Config{Endpoint: endpoint, Connections: 8}, Store: store, Host: "127.0.0.1",
				ShutdownTimeout: time.Second,
				OnReady:         func(worker.Ready) { close(ready) },
			})
		}()
	}()
	return stop, ready, ended
}

func profile(ctx context.Context, out string, after, span time.Duration) error {
	wait := func(d time.Duration) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := wait(after); err != nil {
		return err
	}
	return toFile(out, func(w io.Writer) error {
		if err := pprof.StartCPUProfile(w); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
		return wait(span)
	})
}

func toFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return errors.Join(write(f), f.Close())
}
