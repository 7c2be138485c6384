package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"remora/bench/internal/load"
	"remora/bench/internal/proc"
)

// bench runs the parts of one round of one side.
type bench struct {
	ctx   context.Context
	side  *side
	tools string // folder of the engine and the client
	log   string
	// settle is how long a sidecar is left alone before its memory is read.
	settle time.Duration
	// metrics is the page of the sidecar that runs.
	metrics string
}

const (
	startTimeout = time.Minute
	stepTimeout  = 10 * time.Minute
	stopGrace    = 5 * time.Second
)

// run starts an engine and a sidecar, takes them through the part's steps, and ends them.
func (b *bench) run(p part) (err error) {
	dir, err := os.MkdirTemp("", "remora-bench-")
	if err != nil {
		return fmt.Errorf("folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	engine, address, err := b.startEngine(dir)
	if err != nil {
		return err
	}
	defer engine.Stop(0)
	sidecar, err := b.startSidecar(dir, address)
	if err != nil {
		return err
	}
	defer sidecar.Stop(stopGrace)
	b.sleep(b.settle)
	rss, _, err := proc.Memory(sidecar.PID())
	if err != nil {
		return err
	}
	b.side.add("rss idle", mega(rss))
	for _, s := range p.steps {
		if err = b.step(s, dir, engine, sidecar); err != nil {
			return fmt.Errorf("%s: %w; the sidecar's last words: %s", s.name, err, lastLines(filepath.Join(dir, "sidecar.log")))
		}
		b.sleep(b.settle / 4) // what was killed has ended by then
	}
	return nil
}

func mega(bytes int64) float64 { return float64(bytes) / 1e6 }

func (b *bench) startEngine(dir string) (p *proc.Process, address string, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, "", fmt.Errorf("pipe: %w", err)
	}
	defer read.Close()
	p, err = proc.Start("engine", environment(), write, os.Stderr, filepath.Join(b.tools, "engine"), "-model", filepath.Join(dir, "model"))
	_ = write.Close()
	if err != nil {
		return nil, "", err
	}
	_ = read.SetReadDeadline(time.Now().Add(startTimeout))
	address, err = bufio.NewReader(read).ReadString('\n')
	if err != nil {
		p.Stop(0)
		return nil, "", fmt.Errorf("the engine did not say its address: %w", err)
	}
	return p, strings.TrimSpace(address), nil
}

// environment is what every program gets of ours: no DYN_* of the caller's leaks in.
func environment() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "LANG", "TMPDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// startSidecar waits until the sidecar has registered, and notes how long that took.
func (b *bench) startSidecar(dir, engine string) (*proc.Process, error) {
	log, err := os.Create(filepath.Join(dir, "sidecar.log"))
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	defer log.Close() // the program holds its own descriptor
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	b.metrics = fmt.Sprintf("http://127.0.0.1:%d/metrics", port)
	folder := filepath.Join(dir, "discovery")
	env := append(environment(), "HF_HUB_OFFLINE=1", "DYN_SDK_DISABLE_ANSI_LOGGING=1", "DYN_LOG="+b.log,
		"DYN_DISCOVERY_BACKEND=file", "DYN_FILE_KV="+folder, "DYN_REQUEST_PLANE=tcp", "DYN_EVENT_PLANE=zmq",
		"DYN_TCP_RPC_HOST=127.0.0.1", "DYN_TCP_RESPONSE_STREAM_HOST=127.0.0.1", "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS=0",
		"DYN_SYSTEM_HOST=127.0.0.1", "DYN_SYSTEM_PORT="+strconv.Itoa(port))
	argv := append(append([]string(nil), b.side.argv...), "--grpc-endpoint", "http://"+engine)
	p, err := proc.Start(b.side.name, env, log, log, argv...)
	if err != nil {
		return nil, err
	}
	for {
		if _, err = load.FindWorker(folder); !errors.Is(err, load.ErrNoWorker) {
			break
		}
		select {
		case <-p.Done():
			return nil, fmt.Errorf("the sidecar ended at its start: %w: %s", p.Err(), lastLines(log.Name()))
		case <-time.After(time.Millisecond):
		}
		if time.Since(p.Started) > startTimeout || b.ctx.Err() != nil {
			p.Stop(0)
			return nil, fmt.Errorf("the sidecar has not registered: %s", lastLines(log.Name()))
		}
	}
	b.side.add("start", float64(time.Since(p.Started).Microseconds())/1e3)
	return p, nil
}

// step runs the client once and books what it measured.
func (b *bench) step(s step, dir string, engine, sidecar *proc.Process) error {
	out, err := os.Create(filepath.Join(dir, "result.json"))
	if err != nil {
		return fmt.Errorf("result: %w", err)
	}
	defer out.Close()
	argv := append([]string{
		filepath.Join(b.tools, "client"), "-discovery", filepath.Join(dir, "discovery"),
		"-watch", fmt.Sprintf("sidecar=%d", sidecar.PID()), "-watch", fmt.Sprintf("engine=%d", engine.PID()), "-metrics", b.metrics,
	}, s.args...)
	client, err := proc.Start("client", environment(), out, os.Stderr, argv...)
	if err != nil {
		return err
	}
	defer client.Stop(0)
	select {
	case <-client.Done():
	case <-sidecar.Done():
		return fmt.Errorf("the sidecar ended: %w", sidecar.Err())
	case <-time.After(stepTimeout):
		return errors.New("the client takes too long")
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		return fmt.Errorf("result: %w", err)
	}
	var result load.Result
	if err = json.Unmarshal(text, &result); err != nil {
		return errors.Join(client.Err(), fmt.Errorf("result: %w", err))
	}
	b.side.failed(s.name, result.Errors, result.Samples)
	if err = client.Err(); err != nil {
		return err
	}
	return b.book(s, result, sidecar)
}

// book turns a result into samples.
func (b *bench) book(s step, r load.Result, sidecar *proc.Process) error {
	unit := float64(r.Tokens)
	if s.kind == perRequest {
		unit = float64(r.Requests)
	}
	switch s.kind {
	case perToken, perRequest:
		if unit == 0 {
			return errors.New("nothing was measured")
		}
		for name, used := range r.CPU {
			b.side.add(s.name+" cpu "+name, used/unit)
		}
		if r.Mallocs != nil {
			b.side.add(s.name+" mallocs", *r.Mallocs/unit)
		}
		b.side.add(s.name+" rss", mega(r.RSS["sidecar"]))
		b.side.add(s.name+" rate", unit/r.Seconds)
		if r.First.Count > 0 {
			b.side.add(s.name+" first p50", float64(r.First.P50))
			b.side.add(s.name+" first p99", float64(r.First.P99))
		}
		if r.Later.Count > 0 {
			b.side.add(s.name+" later p50", float64(r.Later.P50))
			b.side.add(s.name+" later p99", float64(r.Later.P99))
		}
	case burst:
		b.sleep(b.settle)
		rss, threads, err := proc.Memory(sidecar.PID())
		if err != nil {
			return err
		}
		b.side.add(s.name+" rss", mega(rss))
		b.side.add(s.name+" threads", float64(threads))
		runtime, err := load.ReadRuntime(b.ctx, b.metrics)
		if err != nil {
			return err
		}
		if runtime != nil {
			b.side.add(s.name+" goroutines", runtime.Goroutines)
		}
	}
	return nil
}

// freePort is one below 32768: the Rust runtime reads the number with a sign.
func freePort() (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(10000)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no free port for the sidecar's metrics")
}

func (b *bench) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-b.ctx.Done():
	}
}

// lastLines is the end of a log.
func lastLines(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	const last = 3
	return strings.Join(lines[max(len(lines)-last, 0):], "\n")
}
