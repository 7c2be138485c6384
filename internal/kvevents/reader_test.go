package kvevents

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/zmq"
)

var soak = flag.Int("soak", 20, "how many restarts TestRestarts goes through, for each kind of engine")

// read runs a reader in the bubble until stop is called.
func read(t *testing.T, e *engine, x Consumer, replay bool, log *logged) (r *Reader, stop func()) {
	t.Helper()
	source := Source{Rank: 1, Topic: "kv"}
	if replay {
		source.Replay = zmq.Endpoint{Network: "tcp", Host: "replay", Port: 1}
	}
	if log == nil {
		log = &logged{}
	}
	r = NewReader(source, x, slog.New(slog.NewTextHandler(log, nil)))
	r.dialEvents, r.dialReplay = e.dialEvents, e.dialReplay
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return r, func() { cancel(); wg.Wait() }
}

// TestRestarts takes the engine's sockets away again and again while it goes on publishing, starts it anew, fills its queue,
// and leaves out parts of its answers. In the end the consumer knows exactly the blocks that the engine has, and nothing was
// lost on the way. For hours: go test -race -run TestRestarts ./internal/kvevents -soak 100000 -timeout 0.
func TestRestarts(t *testing.T) {
	for name, change := range map[string]func(e *engine){
		"vLLM 0.26 and later": func(*engine) {},
		"vLLM up to 0.25":     func(e *engine) { e.oldAnswers = true },
		"a short queue":       func(e *engine) { e.queue = 1 },
		"answers with holes":  func(e *engine) { e.drop = 10 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, x, log := newEngine(uint64(*soak)), newIndex(), &logged{}
				change(e)
				e.open()
				r, stop := read(t, e, x, true, log)
				lives := 0
				for round := range *soak {
					for range e.rng.IntN(200) {
						e.step()
						if e.rng.IntN(4) == 0 {
							time.Sleep(time.Duration(e.rng.IntN(int(100 * time.Millisecond))))
						}
					}
					if round%3 == 2 {
						e.restart()
						lives++
						continue
					}
					e.close()
					for range e.rng.IntN(20) {
						e.step() // nobody hears this
					}
					time.Sleep(time.Duration(e.rng.IntN(int(2 * time.Second))))
					e.open()
				}
				e.step()
				time.Sleep(10 * time.Minute)
				e.step()
				time.Sleep(time.Minute)
				stats := r.Stats()
				if !x.same(e) || len(x.odd) > 0 || x.lost > 0 {
					t.Errorf("the engine has %d blocks and the consumer %d; %d odd ones, %d batches lost", len(e.blocks), len(x.blocks), len(x.odd), x.lost)
				}
				if stats.Gaps+stats.Lost+stats.Skipped+stats.Malformed+stats.Undecodable != 0 || stats.Batches != uint64(x.count) || int(stats.Resets) > lives {
					t.Errorf("%+v, %d lives", stats, lives)
				}
				t.Logf("%+v", stats)
				stop()
				e.close()
				if t.Failed() {
					t.Log(log.String())
				}
			})
		})
	}
}

// TestSocketRestarts does the same in real time with sockets of the system.
func TestSocketRestarts(t *testing.T) {
	e, x, log := newEngine(1), newIndex(), &logged{}
	dir := t.TempDir()
	e.atEvents = zmq.Endpoint{Network: "unix", Path: filepath.Join(dir, "events")}
	e.atReplay = zmq.Endpoint{Network: "unix", Path: filepath.Join(dir, "replay")}
	r := NewReader(Source{Endpoint: e.atEvents, Topic: "kv", Replay: e.atReplay}, x, slog.New(slog.NewTextHandler(log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait(); e.close() })
	deadline := time.After(time.Minute)
	for round := range max(6, *soak/10) {
		if round%3 == 2 {
			e.restart()
		} else {
			e.close()
			e.step()
			e.open()
		}
		for range 200 {
			e.step()
		}
		for !x.same(e) {
			select {
			case <-x.news:
			case <-deadline:
				t.Fatalf("the engine has %d blocks and the consumer %d\n%s", len(e.blocks), len(x.blocks), log)
			}
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.lost > 0 || len(x.odd) > 0 {
		t.Errorf("%d lost, %d odd blocks\n%s", x.lost, len(x.odd), log)
	}
	t.Logf("%+v", r.Stats())
}

// TestNoReplay has an engine that keeps nothing: what is lost is told, and a new connection voids what is known.
func TestNoReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, x := newEngine(1), newIndex()
		e.step()
		e.step()
		e.open()
		r, stop := read(t, e, x, false, nil)
		time.Sleep(time.Second)
		e.step()
		synctest.Wait()
		if x.lost != 2 || x.count != 1 || x.resets != 0 {
			t.Errorf("a late start: %d lost, %d batches, %d resets", x.lost, x.count, x.resets)
		}
		e.restart()
		time.Sleep(10 * time.Second)
		e.step()
		synctest.Wait()
		if x.lost != 2 || x.count != 2 || x.resets != 1 || !x.same(e) {
			t.Errorf("after a restart: %d lost, %d batches, %d resets", x.lost, x.count, x.resets)
		}
		if got := r.Stats(); got.Replays != 0 || got.Connections != 2 || got.Lost != 2 || got.Gaps != 1 || got.Resets != 1 {
			t.Errorf("%+v", got)
		}
		stop()
		e.close()
	})
}

// TestReplayUnavailable has an engine whose replay socket nobody listens at.
func TestReplayUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, x, log := newEngine(1), newIndex(), &logged{}
		e.step()
		e.open()
		e.router.Close()
		_, stop := read(t, e, x, true, log)
		time.Sleep(10 * time.Second)
		e.step()
		time.Sleep(10 * time.Second)
		e.step()
		synctest.Wait()
		if x.lost != 1 || x.count != 2 || !strings.Contains(log.String(), "replay") {
			t.Errorf("%d lost, %d batches\n%s", x.lost, x.count, log)
		}
		stop()
		e.close()
	})
}

// TestOddPublisher sends what is none of ours, and batches that are none.
func TestOddPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, x, log := newEngine(1), newIndex(), &logged{}
		e.open()
		r, stop := read(t, e, x, true, log)
		time.Sleep(time.Minute)
		e.pub.Publish([]byte("kv"))
		e.pub.Publish([]byte("kv"), []byte("short"), []byte("x"))
		e.pub.Publish([]byte("kv"), make([]byte, 8), []byte("x"), nil)
		e.step()
		e.mu.Lock()
		e.publish([]any{7})
		e.log = append(e.log, []byte("no batch"))
		e.pub.Publish([]byte("kv"), []byte{0, 0, 0, 0, 0, 0, 0, 2}, []byte("no batch"))
		e.mu.Unlock()
		e.step()
		time.Sleep(time.Minute)
		want := Stats{Connections: 1, Batches: 3, Skipped: 1, Malformed: 3, Undecodable: 1, Gaps: 1, Lost: 1, Replays: 2}
		got := r.Stats()
		got.Events = 0
		if got != want || x.lost != 1 || !x.same(e) || strings.Count(log.String(), "only counted") != 2 {
			t.Errorf("%+v, %d lost\n%s", got, x.lost, log)
		}
		stop()
		e.close()
	})
}

// TestSlowConsumer holds a reader up for long: the engine drops, and it is asked for what was dropped.
func TestSlowConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, x := newEngine(1), newIndex()
		x.block = make(chan struct{})
		e.queue = 10
		e.open()
		r, stop := read(t, e, x, true, nil)
		time.Sleep(time.Minute)
		for range 10_000 {
			e.step()
		}
		time.Sleep(time.Hour)
		close(x.block)
		time.Sleep(time.Minute)
		e.step()
		time.Sleep(time.Minute)
		if !x.same(e) || x.lost > 0 || x.count != 10_001 || e.pub.Dropped() == 0 {
			t.Errorf("%d batches, %d lost, %d dropped", x.count, x.lost, e.pub.Dropped())
		}
		t.Logf("%+v", r.Stats())
		stop()
		e.close()
	})
}

// TestCancelWhileBlocked ends a reader whose consumer is in a call: Run waits for that call, and makes no other.
func TestCancelWhileBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, x := newEngine(1), newIndex()
		x.block = make(chan struct{})
		for range 100 {
			e.step()
		}
		e.open()
		_, stop := read(t, e, x, true, nil)
		time.Sleep(time.Minute)
		done := make(chan struct{})
		go func() { stop(); close(done) }()
		time.Sleep(time.Minute)
		select {
		case <-done:
			t.Error("Run has returned while its consumer was in a call")
		default:
		}
		close(x.block)
		<-done
		if x.count != 1 {
			t.Errorf("%d batches", x.count)
		}
		e.close()
	})
}

func TestRunRefusesEndpoints(t *testing.T) {
	if err := NewReader(Source{}, newIndex(), nil).Run(t.Context()); !errors.Is(err, zmq.ErrEndpoint) {
		t.Error(err)
	}
}
