package sim

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/memnet"
	pb "remora/proto/vllm"
)

// edited is a hand-off with one value replaced.
func edited(t *testing.T, handOff *structpb.Struct, key string, value any) *structpb.Struct {
	t.Helper()
	params := handOff.AsMap()
	params[key] = value
	out, err := structpb.NewStruct(params)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestFirstHeartbeat: D is full and does not know P. The first heartbeat only makes contact, and a lease with less than one period
// left ends; had D known P, it would have gone on.
//
// Rules: first-heartbeat, heartbeats.
func TestFirstHeartbeat(t *testing.T) {
	for _, known := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p, d, _ := pair(t, func(c *Config) { c.MaxSeqs, c.StepTime = 1, time.Second })
			if known {
				first := words(9, 9)
				d.tokens(t, decodeRequest("first", first, 1, p.generate(t, prefillRequest(t, "p", first)).handOff(t)))
			}
			prompt := words(30, 1)
			h := p.generate(t, prefillRequest(t, "p", prompt)).handOff(t)
			time.Sleep(10500 * time.Millisecond) // of 12 s; a period is 2 s
			d.submit(t.Context(), t, request("long", words(4, 9), 40))
			d.submit(t.Context(), t, decodeRequest("r", prompt, 5, h))
			time.Sleep(2 * time.Second)
			if s := p.Stats(); (s.Held == 1) != known || (s.Expired == 0) != known {
				t.Errorf("known %v: %+v", known, s)
			}
		})
	}
}

// TestRefusedRead: an engine that has refused to read blocks which it does not have is still known.
//
// Rules: blocks-beyond, known-engine.
func TestRefusedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, agg := pair(t, nil)
		prompt := words(30, 1)
		h := p.generate(t, prefillRequest(t, "p", prompt)).handOff(t)
		bad := edited(t, h, "remote_block_ids", []any{[]any{1, 2, 3, 4, 5, 6, 7, 9999}})
		wantStatus(t, d.generate(t, decodeRequest("bad", prompt, 5, bad)).err, "Internal: engine failed during generation")
		begin := time.Now()
		got := d.tokens(t, decodeRequest("good", prompt, 5, edited(t, h, "remote_port", 9)))
		if want := agg.tokens(t, request("agg", prompt, 5)); !slices.Equal(got, want) || time.Since(begin) > time.Second {
			t.Errorf("%v after %v, want %v", got, time.Since(begin), want)
		}
		time.Sleep(20 * time.Millisecond)
		wantBase(t, p, d)
	})
}

// TestReplacedEngines: of the engines that have been at one address the last one is known, and nothing is left of the others.
//
// Rules: p-restarted.
func TestReplacedEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := network{}
		d := start(t, nw, "d", nil)
		for n := range uint32(5) {
			p := start(t, nw, "p", nil)
			prompt := words(30, n)
			h := p.generate(t, prefillRequest(t, "p", prompt)).handOff(t)
			if got := d.tokens(t, decodeRequest("r", prompt, 2, h)); len(got) != 2 {
				t.Fatal(got)
			}
			p.end()
		}
		wantKnown(t, d, 1)
	})
}

// TestIdleConnections: of one engine a few are kept, of an unknown one none, and at the end none at all.
func TestIdleConnections(t *testing.T) {
	f := newFetcher(t.Context(), Config{}, nil, newFaultSet())
	f.remember("p", "there")
	var far []net.Conn
	for range idlePerPeer + 2 {
		near, other := net.Pipe()
		far = append(far, other)
		f.keep("p", near)
	}
	near, other := net.Pipe()
	f.keep("unknown", near)
	closed := func(conn net.Conn) bool {
		return errors.Is(conn.SetReadDeadline(time.Now()), io.ErrClosedPipe) // a pipe knows of its other end
	}
	for i, conn := range far {
		if got := closed(conn); got != (i >= idlePerPeer) {
			t.Errorf("number %d is closed: %v", i, got)
		}
	}
	if !closed(other) {
		t.Error("a connection to nobody stays")
	}
	f.wait()
	for i, conn := range far {
		if !closed(conn) {
			t.Errorf("number %d stays", i)
		}
	}
}

// wantKnown fails unless an engine knows so many others.
func wantKnown(t *testing.T, e *engine, want int) {
	t.Helper()
	f := e.ranks[0].fetch
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.peers) != want || len(f.contacts) != 0 {
		t.Errorf("%d engines are known, want %d; %d first contacts are under way", len(f.peers), want, len(f.contacts))
	}
}

// flaky is a listener whose first Accepts fail.
type flaky struct {
	net.Listener

	failures atomic.Int32
}

func (l *flaky) Accept() (net.Conn, error) {
	if l.failures.Add(-1) >= 0 {
		return nil, errors.New("too many open files")
	}
	return l.Listener.Accept() //nolint:wrapcheck // a listener
}

// TestSideChannelCannotAccept for a while: the engine goes on, and so does the side channel afterwards.
func TestSideChannelCannotAccept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Model: "m", EngineID: "e"}
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		side := memnet.Listen(1 << 10)
		l := &flaky{Listener: side}
		l.failures.Store(100)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		begin := time.Now()
		go func() { done <- s.Run(ctx, Listeners{GRPC: memnet.Listen(1), SideChannels: []net.Listener{l}}) }()
		conn, err := side.DialContext(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := writeJSON(conn, kindHello, hello{EngineID: "e", Compat: s.cfg.compat()}); err != nil {
			t.Fatal(err)
		}
		if kind, _, err := readFrame(conn, maxControlFrame); err != nil || kind != kindWelcome || time.Since(begin) < 100*acceptPause {
			t.Errorf("%q %v after %v", kind, err, time.Since(begin))
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestPauseWaitsForTransfers: WAIT lets a decode whose KV is on its way come to its end, and waits for the transfer of one that
// has left.
//
// Rules: pause-drains.
func TestPauseWaitsForTransfers(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p, d, _ := pair(t, func(c *Config) { c.Faults = []Fault{ReadStall} })
			prompt := words(30, 1)
			h := p.generate(t, prefillRequest(t, "p", prompt)).handOff(t)
			stream := d.submit(t.Context(), t, decodeRequest("r", prompt, 5, h))
			time.Sleep(50 * time.Millisecond)
			if leaves {
				d.abort(t, "r")
			}
			paused := make(chan error, 1)
			go func() {
				_, err := d.ctrl.PauseGeneration(t.Context(), &pb.PauseGenerationRequest{Mode: pb.PauseMode_PAUSE_MODE_WAIT})
				paused <- err
			}()
			time.Sleep(20 * time.Second)
			select {
			case err := <-paused:
				t.Fatalf("leaves %v: paused while the transfer stands still: %v", leaves, err)
			default:
			}
			d.turn(t, ReadStall, "false")
			if err := <-paused; err != nil {
				t.Error(err)
			}
			if r := readAll(stream); (len(r.tokens()) == 5) == leaves || r.err != nil {
				t.Errorf("leaves %v: %v %v", leaves, r.tokens(), r.err)
			}
			if s := d.Stats(); s.UsedBlocks != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}
