package sim

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"remora/internal/sim/core"
	pb "remora/proto/vllm"
)

// fault turns one on or off over HTTP, as programs do.
func (e *engine) fault(t *testing.T, f Fault, on string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/sim/fault?name="+string(f)+"&on="+on, nil)
	e.httpHandler().ServeHTTP(w, req)
	return w
}

func (e *engine) turn(t *testing.T, f Fault, on string) {
	t.Helper()
	if w := e.fault(t, f, on); w.Code != http.StatusOK {
		t.Fatalf("%s %s: %d %s", f, on, w.Code, w.Body)
	}
}

func (e *engine) abort(t *testing.T, ids ...string) {
	t.Helper()
	if _, err := e.ctrl.Abort(t.Context(), &pb.AbortRequest{RequestIds: ids}); err != nil {
		t.Fatal(err)
	}
}

// submit opens a stream and waits until the engine has the request.
func (e *engine) submit(ctx context.Context, t *testing.T, req *pb.GenerateRequest) grpc.ServerStreamingClient[pb.GenerateResponse] {
	t.Helper()
	stream := e.open(ctx, t, req)
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	return stream
}

// TestFaultSwitches: the list names every fault and whether it is on; nonsense is refused and changes nothing.
func TestFaultSwitches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", func(c *Config) { c.Faults = []Fault{ReadFail} })
		list := func() string {
			w := httptest.NewRecorder()
			e.httpHandler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/sim/fault", nil))
			return w.Body.String()
		}
		if got := list(); strings.Count(got, "\n") != len(Faults()) || strings.Count(got, " on\n") != 1 || !strings.Contains(got, "read-fail on\n") {
			t.Errorf("%s", got)
		}
		e.turn(t, LateDrop, "1")
		e.turn(t, ReadFail, "false")
		if got := list(); strings.Count(got, " on\n") != 1 || !strings.Contains(got, "late-drop on\n") {
			t.Errorf("%s", got)
		}
		before := list()
		for _, bad := range []*httptest.ResponseRecorder{e.fault(t, "nonsense", "true"), e.fault(t, LateDrop, "maybe"), e.fault(t, LateDrop, ""), e.fault(t, Death, "false")} {
			if bad.Code != http.StatusBadRequest || bad.Body.Len() == 0 {
				t.Errorf("%d %s", bad.Code, bad.Body)
			}
		}
		if got := list(); got != before {
			t.Errorf("%s", got)
		}
	})
	if _, err := New(Config{Model: "m", Faults: []Fault{"nonsense"}}); !errors.Is(err, ErrConfig) || !errors.Is(err, ErrFault) {
		t.Error(err)
	}
}

// TestFaultsAreDescribed: the documentation has a row for each.
func TestFaultsAreDescribed(t *testing.T) {
	doc, err := os.ReadFile("../../docs/simulator.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range Faults() {
		if !strings.Contains(string(doc), "\n| `"+string(f)+"` | ") {
			t.Errorf("docs/simulator.md does not describe %s", f)
		}
	}
}

// TestLateDrop: a queued request whose client has gone stays; a running one ends with its next token. Ignored drops run to
// their end.
func TestLateDrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", func(c *Config) { c.MaxSeqs, c.StepTime, c.Faults = 1, time.Second, []Fault{LateDrop} })
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		running := e.submit(ctx, t, request("a", words(9, 1), 100))
		if _, err := running.Recv(); err != nil {
			t.Fatal(err)
		}
		queued := e.submit(ctx, t, request("b", words(9, 2), 100))
		stop()
		synctest.Wait()
		if s := e.Stats(); s.Running != 1 || s.Waiting != 1 {
			t.Errorf("noticed before the next output: %+v", s)
		}
		for _, stream := range []grpc.ServerStreamingClient[pb.GenerateResponse]{running, queued} {
			if r := readAll(stream); status.Code(r.err) != codes.Canceled {
				t.Error(r.err)
			}
		}
		time.Sleep(1100 * time.Millisecond)
		if s := e.Stats(); s.Finished[core.Aborted] != 1 || s.Running != 1 || s.Waiting != 0 {
			t.Errorf("after one step: %+v", s)
		}
		time.Sleep(time.Second)
		wantBase(t, e)
		if s := e.Stats(); s.Finished[core.Aborted] != 2 || s.GeneratedTokens != 3 {
			t.Errorf("%+v", s.Counters)
		}
	})
}

func TestIgnoredDrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", func(c *Config) { c.Faults = []Fault{DropIgnored} })
		ctx, stop := context.WithCancel(t.Context())
		e.submit(ctx, t, request("a", words(9, 1), 20))
		stop()
		time.Sleep(time.Second)
		wantBase(t, e)
		if s := e.Stats(); s.Finished[core.Length] != 1 || s.GeneratedTokens != 20 {
			t.Errorf("%+v", s.Counters)
		}
	})
}

// TestCrashLateReceive: with the fault on, an abort during a transfer costs the engine; without an abort nothing happens.
func TestCrashLateReceive(t *testing.T) {
	for _, aborts := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p, d, _ := pair(t, func(c *Config) { c.Faults = []Fault{CrashLateReceive, ReadStall} })
			prompt := words(30, 1)
			h := p.generate(t, prefillRequest(t, "p", prompt)).handOff(t)
			stream := d.submit(t.Context(), t, decodeRequest("r", prompt, 5, h))
			time.Sleep(100 * time.Millisecond)
			if aborts {
				d.abort(t, "r")
			}
			d.turn(t, ReadStall, "false")
			r := readAll(stream)
			time.Sleep(100 * time.Millisecond)
			if d.Stats().Dead != aborts || r.err != nil || (len(r.tokens()) == 5) == aborts {
				t.Errorf("aborted %v: dead %v, %v, %d tokens", aborts, d.Stats().Dead, r.err, len(r.tokens()))
			}
			wantBase(t, p)
		})
	}
}

// TestHeadFirstExpirySwitch: while it is on, an ended lease behind a renewed one is not seen.
//
// Rules: lease-scan.
func TestHeadFirstExpirySwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, _ := pair(t, func(c *Config) { c.Faults = []Fault{ReadStall} })
		p.turn(t, HeadFirstExpiry, "true")
		prompt := words(30, 1)
		h := p.generate(t, prefillRequest(t, "p", prompt)).handOff(t)
		p.generate(t, prefillRequest(t, "lost", words(30, 2)))
		d.submit(t.Context(), t, decodeRequest("r", prompt, 5, h))
		time.Sleep(20 * time.Second)
		if s := p.Stats(); s.Held != 2 {
			t.Errorf("%+v", s)
		}
		p.turn(t, HeadFirstExpiry, "false")
		time.Sleep(100 * time.Millisecond)
		if s := p.Stats(); s.Held != 1 || s.Expired != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestReadFaults: a transfer that does not move blocks nobody else and goes on afterwards; a slow one is late; a failed one is
// an error of its request.
//
// Rules: load-failure, read-stalled.
func TestReadFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, agg := pair(t, func(c *Config) { c.ReadDelay = 3 * time.Second })
		decode := func(salt uint32) (open func() reply, want []uint32) {
			prompt := words(30, salt)
			h := p.generate(t, prefillRequest(t, "p", prompt)).handOff(t)
			stream := d.submit(t.Context(), t, decodeRequest("r", prompt, 5, h))
			return func() reply { return readAll(stream) }, agg.tokens(t, request("agg", prompt, 5))
		}
		d.turn(t, ReadStall, "true")
		finish, want := decode(1)
		time.Sleep(40 * time.Second) // longer than the lease
		d.tokens(t, request("other", words(9, 9), 5))
		if s := d.Stats(); s.Deferred != 1 || p.Stats().Held != 1 {
			t.Errorf("%+v", s)
		}
		d.turn(t, ReadStall, "false")
		if r := finish(); !slices.Equal(r.tokens(), want) {
			t.Errorf("stalled: %v %v, want %v", r.tokens(), r.err, want)
		}

		d.turn(t, ReadSlow, "true")
		begin := time.Now()
		finish, want = decode(2)
		if r := finish(); !slices.Equal(r.tokens(), want) {
			t.Errorf("slow: %v %v, want %v", r.tokens(), r.err, want)
		}
		if took := time.Since(begin); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("slow: %v", took)
		}
		d.turn(t, ReadSlow, "false")

		d.turn(t, ReadFail, "true")
		finish, _ = decode(3)
		wantStatus(t, finish().err, "Internal: engine failed during generation")
		d.turn(t, AbortedErrors, "true")
		finish, _ = decode(4)
		if r := finish(); r.err != nil || r.finish().GetFinishReason() != pb.FinishInfo_ABORTED {
			t.Errorf("old: %v %v", r.err, r.finish())
		}
		wantBase(t, d)
		time.Sleep(13 * time.Second)
		wantBase(t, p)
	})
}

// TestLostHeartbeats: the lease of a queued decode ends although somebody wants the blocks.
func TestLostHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, _ := pair(t, func(c *Config) { c.Faults = []Fault{BeatLost, ReadStall} })
		prompt := words(30, 1)
		h := p.generate(t, prefillRequest(t, "p", prompt)).handOff(t)
		d.submit(t.Context(), t, decodeRequest("r", prompt, 5, h))
		time.Sleep(12100 * time.Millisecond)
		wantBase(t, p)
		if s := p.Stats(); s.Expired != 1 || s.Beats != 0 {
			t.Errorf("%+v", s.Counters)
		}
	})
}

func TestNotServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", func(c *Config) { c.Faults = []Fault{NotServing} })
		wantHTTPHealth := func(want int) {
			t.Helper()
			w := httptest.NewRecorder()
			e.httpHandler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/health", nil))
			if w.Code != want {
				t.Errorf("/health %d, want %d", w.Code, want)
			}
		}
		wantHealth(t, e, "NOT_SERVING")
		wantHTTPHealth(http.StatusServiceUnavailable)
		if got := e.tokens(t, request("r", words(9, 1), 5)); len(got) != 5 {
			t.Errorf("the engine does not work: %v", got)
		}
		e.turn(t, NotServing, "false")
		wantHealth(t, e, "SERVING")
		wantHTTPHealth(http.StatusOK)
	})
}

func TestNoAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", func(c *Config) { c.Faults = []Fault{NoAbort} })
		stream := e.submit(t.Context(), t, request("r", words(9, 1), 5))
		_, err := e.ctrl.Abort(t.Context(), &pb.AbortRequest{RequestIds: []string{"r"}})
		wantStatus(t, err, "Unimplemented: ")
		if r := readAll(stream); len(r.tokens()) != 5 {
			t.Errorf("%v %v", r.tokens(), r.err)
		}
	})
}

// TestDeath: what a dead engine core still answers, and in which order a client learns of it. Health has turned when the
// first stream ends.
//
// Rules: death-health, death-streams, death-refusals, death-control, death-exit.
func TestDeath(t *testing.T) {
	const fatal = "Internal: engine-core error: engine core reported fatal failure"
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", nil)
		stream := e.submit(t.Context(), t, request("r", words(9, 1), 100))
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		e.turn(t, Death, "true")
		wantStatus(t, readAll(stream).err, fatal)
		wantHealth(t, e, "NOT_SERVING")
		if took := time.Since(begin); took > 100*time.Millisecond {
			t.Errorf("noticed after %v", took)
		}
		e.turn(t, NotServing, "true")
		e.turn(t, NotServing, "false")
		wantHealth(t, e, "NOT_SERVING") // for good
		wantStatus(t, e.generate(t, request("late", words(9, 1), 5)).err, fatal)
		bad := e.generate(t, request("bad", nil, 5))
		if status.Code(bad.err) != codes.InvalidArgument {
			t.Errorf("a refusal is %v", bad.err)
		}
		e.abort(t, "r")
		if info, err := e.ctrl.GetServerInfo(t.Context(), &pb.GetServerInfoRequest{}); err != nil || info.GetEngineVersion() != "0.32.0" {
			t.Error(info, err)
		}
		if _, err := e.ctrl.GetKvEventSources(t.Context(), &pb.GetKvEventSourcesRequest{}); err != nil {
			t.Error(err)
		}
		_, err := e.ctrl.IsPaused(t.Context(), &pb.IsPausedRequest{})
		if status.Code(err) != codes.Internal {
			t.Errorf("IsPaused: %v", err)
		}
		w := httptest.NewRecorder()
		e.httpHandler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		if w.Code != http.StatusOK {
			t.Errorf("/metrics %d", w.Code)
		}
		if err := <-e.done; !errors.Is(err, ErrEngineDead) || time.Since(begin) < 24*time.Second || time.Since(begin) > 37*time.Second {
			t.Errorf("ended after %v with %v", time.Since(begin), err)
		}
	})
}

// TestDeathIsToldFirst: health knows of it before any stream does.
//
// Rules: death-health.
func TestDeathIsToldFirst(t *testing.T) {
	s, err := New(Config{Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	l := s.ranks[0].loop
	st := &stream{id: "r", ready: make(chan struct{}, 1)}
	l.streams["r"] = st
	told := 0
	l.onDeath = func() {
		if told++; len(st.outs) != 0 {
			t.Error("the stream knew before")
		}
	}
	if err := l.engine.Add(core.Request{ID: "r", Prompt: []uint32{1}, MaxTokens: 1}); err != nil {
		t.Fatal(err)
	}
	l.engine.Kill()
	l.deliver()
	l.deliver()
	if told != 1 || len(st.outs) != 1 || st.outs[0].Reason != core.Fatal {
		t.Errorf("told %d times, %+v", told, st.outs)
	}
}

// TestPause: with WAIT, requests are accepted and silent until the engine goes on, running ones end, and the prefix cache is
// forgotten.
//
// Rules: pause-wait, pause-keep.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", nil)
		paused := func(want bool) {
			t.Helper()
			if got, err := e.ctrl.IsPaused(t.Context(), &pb.IsPausedRequest{}); err != nil || got.GetPaused() != want {
				t.Errorf("paused: %v %v", got, err)
			}
		}
		pause := func(mode pb.PauseMode) {
			t.Helper()
			if _, err := e.ctrl.PauseGeneration(t.Context(), &pb.PauseGenerationRequest{Mode: mode}); err != nil {
				t.Error(err)
			}
			paused(true)
		}
		resume := func() {
			t.Helper()
			if _, err := e.ctrl.ResumeGeneration(t.Context(), &pb.ResumeGenerationRequest{}); err != nil {
				t.Error(err)
			}
			paused(false)
		}
		paused(false)
		running := e.submit(t.Context(), t, request("a", words(30, 1), 20))
		time.Sleep(50 * time.Millisecond)
		pause(pb.PauseMode_PAUSE_MODE_WAIT)
		if s := e.Stats(); s.Running != 0 || s.Finished[core.Length] != 1 {
			t.Errorf("WAIT has not waited: %+v", s)
		}
		if r := readAll(running); len(r.tokens()) != 20 {
			t.Error(r)
		}
		silent := e.submit(t.Context(), t, request("b", words(30, 1), 5))
		time.Sleep(time.Minute)
		if s := e.Stats(); s.Waiting != 1 || s.GeneratedTokens != 20 {
			t.Errorf("%+v", s)
		}
		resume()
		if r := readAll(silent); len(r.tokens()) != 5 || r.finish().GetNumCachedTokens() != 0 {
			t.Errorf("after the pause: %v", r)
		}

		kept := e.submit(t.Context(), t, request("c", words(9, 1), 20))
		time.Sleep(55 * time.Millisecond)
		pause(pb.PauseMode_PAUSE_MODE_KEEP)
		before := e.Stats().GeneratedTokens
		time.Sleep(time.Second)
		if s := e.Stats(); s.GeneratedTokens > before+1 || s.Waiting != 1 || s.UsedBlocks != 0 {
			t.Errorf("KEEP goes on: %+v", s)
		}
		resume()
		if r := readAll(kept); len(r.tokens()) != 20 {
			t.Error(r)
		}

		aborted := e.submit(t.Context(), t, request("d", words(9, 1), 100))
		pause(pb.PauseMode_PAUSE_MODE_UNSPECIFIED)
		if r := readAll(aborted); r.finish().GetFinishReason() != pb.FinishInfo_ABORTED {
			t.Error(r)
		}
		resume()
		_, err := e.ctrl.PauseGeneration(t.Context(), &pb.PauseGenerationRequest{Mode: 9})
		wantStatus(t, err, "InvalidArgument: unknown pause mode 9")
		wantBase(t, e)
	})
}
