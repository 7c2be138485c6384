package sim

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"remora/internal/memnet"

	"remora/internal/sim/core"
	"remora/internal/sim/kvpub"
	pb "remora/proto/vllm"
)

// TestStreamTiming: headers at submission, PromptInfo and the first token after the first step, then one token a step.
//
// Rules: headers-at-submission, prompt-info-first, one-token-a-message, finish-with-last-token.
func TestStreamTiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", func(c *Config) { c.StepTime = time.Second })
		begin := time.Now()
		stream := e.open(t.Context(), t, request("r", words(9, 1), 3))
		if _, err := stream.Header(); err != nil || time.Since(begin) != 0 {
			t.Errorf("headers after %v, %v", time.Since(begin), err)
		}
		for i, seconds := range []int{1, 1, 2, 3} {
			m, err := stream.Recv()
			if took := time.Since(begin); err != nil || took != time.Duration(seconds)*time.Second {
				t.Errorf("message %d after %v, %v", i, took, err)
			}
			if (i == 0) != (m.GetPromptInfo() != nil) || (i == 0) == (m.GetOutputs() != nil) {
				t.Errorf("message %d is %v", i, m)
			}
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

// TestPrefillSpeed: a long prompt takes as many steps as the speed says.
func TestPrefillSpeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", func(c *Config) { c.StepTime, c.PrefillTokensPerStep = time.Second, 10 })
		begin := time.Now()
		e.tokens(t, request("r", words(95, 1), 1))
		if took := time.Since(begin); took != 10*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// TestDrop: a client that goes away is noticed at once, queued or running, streaming or unary.
//
// Rules: drop-queued, drop-running, drop-unary, drop-before-output.
func TestDrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", func(c *Config) { c.MaxSeqs = 1 })
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		running := e.open(ctx, t, request("a", words(9, 1), 100))
		if _, err := running.Recv(); err != nil {
			t.Fatal(err)
		}
		queued := e.open(ctx, t, request("b", words(9, 2), 100))
		unary := make(chan error, 1)
		go func() {
			_, err := e.infer.Generate(ctx, request("c", words(9, 3), 100))
			unary <- err
		}()
		time.Sleep(50 * time.Millisecond)
		if s := e.Stats(); s.Running != 1 || s.Waiting != 2 || s.Deferred != 0 {
			t.Fatalf("%+v", s)
		}
		stop()
		time.Sleep(20 * time.Millisecond)
		wantBase(t, e)
		if s := e.Stats(); s.Finished[core.Aborted] != 3 {
			t.Errorf("%+v", s.Counters)
		}
		for _, err := range []error{readAll(running).err, readAll(queued).err, <-unary} {
			if status.Code(err) != codes.Canceled {
				t.Error(err)
			}
		}
	})
}

// TestAbort: by external id, every bearer of it, in its own stream's words; unknown ids are ignored.
//
// Rules: abort-running, abort-queued, abort-unary, abort-unknown, abort-twins, abort-after-headers, last-message-after-abort,
// equal-ids, ids-side-by-side.
func TestAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", func(c *Config) { c.MaxSeqs = 2 })
		abort := func(ids ...string) {
			t.Helper()
			if _, err := e.ctrl.Abort(t.Context(), &pb.AbortRequest{RequestIds: ids}); err != nil {
				t.Error(err)
			}
		}
		abort()
		abort("unknown", "", "unknown")
		open := func(id string, salt uint32) grpc.ServerStreamingClient[pb.GenerateResponse] {
			t.Helper()
			stream := e.open(t.Context(), t, request(id, words(9, salt), 100))
			if _, err := stream.Header(); err != nil { // in this order
				t.Fatal(err)
			}
			return stream
		}
		twin1, twin2, queued, other := open("twin", 1), open("twin", 1), open("queued", 2), open("other", 3)
		time.Sleep(45 * time.Millisecond)
		abort("twin", "queued")
		for _, stream := range []grpc.ServerStreamingClient[pb.GenerateResponse]{twin1, twin2} {
			r := readAll(stream)
			n := len(r.msgs) - 2
			got := r.finish()
			if r.err != nil || n < 3 || len(r.tokens()) != n || int(got.GetNumOutputTokens()) != n || got.GetFinishReason() != pb.FinishInfo_ABORTED || got.NumCachedTokens == nil {
				t.Errorf("twin ended with %v, %d tokens, %v", r.err, n, got)
			}
		}
		r := readAll(queued)
		if len(r.msgs) != 2 || r.msgs[0].GetPromptInfo().GetNumPromptTokens() != 9 || r.finish().GetFinishReason() != pb.FinishInfo_ABORTED || len(r.tokens()) != 0 {
			t.Errorf("queued ended with %v", r)
		}
		abort("twin", "queued") // ended: ignored
		if r := readAll(other); r.err != nil || r.finish().GetFinishReason() != pb.FinishInfo_LENGTH {
			t.Errorf("other ended with %v, %v", r.err, r.finish())
		}
		unary := make(chan *pb.GenerateResponse, 1)
		go func() {
			m, _ := e.infer.Generate(context.Background(), request("unary", words(9, 5), 100))
			unary <- m
		}()
		time.Sleep(45 * time.Millisecond)
		abort("unary")
		if m := <-unary; m.GetOutputs().GetNumTokens() != 4 || m.GetOutputs().GetFinishInfo().GetFinishReason() != pb.FinishInfo_ABORTED || m.GetPromptInfo() == nil {
			t.Errorf("unary ended with %v", m)
		}
		wantBase(t, e)
	})
}

// TestStopString ends the engine's request too.
func TestStopString(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", nil)
		all := e.generate(t, request("r", words(9, 1), 30)).text()
		cut := strings.Fields(all)[4]
		req := request("r", words(9, 1), 100)
		req.Stopping.StopStrings = []string{cut}
		r := e.generate(t, req)
		want, _, _ := strings.Cut(all, cut)
		if got := r.text(); got != want || r.finish().GetStopString() != cut || r.finish().GetFinishReason() != pb.FinishInfo_STOP {
			t.Errorf("%q, want %q; %v", got, want, r.finish())
		}
		time.Sleep(20 * time.Millisecond)
		wantBase(t, e)
	})
}

// Rules: no-limit.
func TestTextPromptAndLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", nil)
		r := e.generate(t, &pb.GenerateRequest{Prompt: &pb.GenerateRequest_Text{Text: ""}})
		if n := r.msgs[0].GetPromptInfo().GetNumPromptTokens(); r.err != nil || n != 1 {
			t.Errorf("empty text: %d tokens, %v", n, r.err)
		}
		if got := r.finish(); got.GetNumOutputTokens() != 127 || got.GetFinishReason() != pb.FinishInfo_LENGTH {
			t.Errorf("no limit: %v", got)
		}
		if r.text() == "" || len(r.tokens()) != 0 {
			t.Errorf("text %q, ids %v", r.text(), r.tokens())
		}
		r = e.generate(t, request("r", words(127, 1), 500))
		if got := r.finish(); got.GetNumOutputTokens() != 1 || got.GetFinishReason() != pb.FinishInfo_LENGTH {
			t.Errorf("longest prompt: %v %v", r.err, got)
		}
		req := request("r", words(9, 1), 3)
		req.TruncatePromptTokens = 4
		req.Response.PromptTokenIds = true
		if got := e.generate(t, req).msgs[0].GetPromptInfo().GetTokenIds(); !slices.Equal(got, words(9, 1)[5:]) {
			t.Errorf("truncated prompt: %v", got)
		}
	})
}

// TestStop is SIGTERM: health turns, the open stream ends without finish_info, Run returns nil.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", nil)
		stream := e.open(t.Context(), t, request("r", words(9, 1), 100))
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := e.end(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > stopGrace {
			t.Errorf("took %v", took)
		}
		if r := readAll(stream); status.Code(r.err) != codes.Unavailable || r.finish() != nil {
			t.Errorf("stream ended with %v, %v", r.err, r.finish())
		}
		if err := e.Run(t.Context(), Listeners{GRPC: memnet.Listen(1)}); !errors.Is(err, ErrUsed) {
			t.Errorf("second run: %v", err)
		}
		if err := e.Run(t.Context(), Listeners{}); !errors.Is(err, ErrConfig) {
			t.Errorf("run without a listener: %v", err)
		}
	})
}

func TestOversizedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", nil)
		req := &pb.GenerateRequest{Prompt: &pb.GenerateRequest_Text{Text: strings.Repeat("a", maxRequestBytes)}}
		err := e.generate(t, req).err
		wantStatus(t, err, "OutOfRange: Error, decoded message length too large: found 33554437 bytes, the limit is: 33554432 bytes")
	})
}

// TestPrefillDies: its decode engine reports it at once and stays well; a new P on the same address is a new engine.
//
// Rules: p-killed, p-restarted.
func TestPrefillDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := network{}
		p, d := start(t, nw, "p", nil), start(t, nw, "d", nil)
		prompt := words(30, 1)
		first := p.generate(t, prefillRequest(t, "1", prompt)).handOff(t)
		if r := d.generate(t, decodeRequest("1", prompt, 2, first)); r.err != nil {
			t.Fatal(r.err)
		}
		other := words(30, 2)
		old := p.generate(t, prefillRequest(t, "2", other)).handOff(t)
		p.end()
		delete(nw, "p:1") // nobody listens
		lost := func() {
			t.Helper()
			for range 2 {
				begin := time.Now()
				wantStatus(t, d.generate(t, decodeRequest("2", other, 2, old)).err, "Internal: engine failed during generation")
				if took := time.Since(begin); took > 300*time.Millisecond {
					t.Errorf("noticed after %v", took)
				}
				wantBase(t, d)
			}
		}
		lost()
		p2 := start(t, nw, "p", nil)
		lost()
		fresh := p2.generate(t, prefillRequest(t, "3", other)).handOff(t)
		if r := d.generate(t, decodeRequest("3", other, 2, fresh)); r.err != nil {
			t.Error(r.err)
		}
		lost()
	})
}

// TestManyAtOnce: a crowd of hand-offs, some of which are dropped at odd moments; afterwards both engines are at their base.
//
// Rules: random-drops.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, agg := pair(t, nil)
		done := make(chan string, 40)
		for n := range 40 {
			go func() {
				prompt := words(20+n%9, uint32(n))
				pre := p.generate(t, prefillRequest(t, "x", prompt))
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				stream := d.open(ctx, t, decodeRequest("x", prompt, 10, pre.handOff(t)))
				if _, err := stream.Header(); err != nil {
					done <- err.Error()
					return
				}
				if n%4 == 0 {
					time.Sleep(time.Duration(n*7%150) * time.Millisecond)
					stop()
				}
				r := readAll(stream)
				want := agg.tokens(t, request("x", prompt, 10))
				if r.err == nil && !slices.Equal(r.tokens(), want) {
					done <- "wrong text"
					return
				}
				done <- ""
			}()
		}
		for range 40 {
			if msg := <-done; msg != "" {
				t.Error(msg)
			}
		}
		time.Sleep(100 * time.Millisecond)
		wantBase(t, p, d, agg)
		if s := p.Stats(); s.Expired != 0 || s.Completed != 40 || s.StaleReads != 0 {
			t.Errorf("%+v", s.Counters)
		}
	})
}

// TestRealSockets runs a pair over TCP, with HTTP.
func TestRealSockets(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	type running struct {
		infer pb.InferenceClient
		http  string
		done  chan error
		conn  *grpc.ClientConn
	}
	var engines []running
	for range 2 {
		var ls [3]net.Listener
		for i := range ls {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ls[i] = l
		}
		s, err := New(Config{Model: "/models/tiny", StepTime: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx, Listeners{GRPC: ls[0], HTTP: ls[1], SideChannels: ls[2:]}) }()
		conn, err := grpc.NewClient(ls[0].Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		engines = append(engines, running{pb.NewInferenceClient(conn), "http://" + ls[1].Addr().String(), done, conn})
	}
	p, d := &engine{infer: engines[0].infer}, &engine{infer: engines[1].infer}
	prompt := words(100, 1)
	pre := p.generate(t, prefillRequest(t, "r", prompt))
	want := p.tokens(t, request("agg", prompt, 20))
	r := d.generate(t, decodeRequest("r", prompt, 20, pre.handOff(t)))
	if r.err != nil || !slices.Equal(r.tokens(), want) {
		t.Errorf("%v %v, want %v", r.err, r.tokens(), want)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(url string) (int, string) {
		t.Helper()
		res, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	if code, _ := get(engines[1].http + "/health"); code != http.StatusOK {
		t.Errorf("health %d", code)
	}
	_, metrics := get(engines[1].http + "/metrics")
	for _, line := range []string{
		`vllm:external_prefix_cache_hits_total{engine="0",model_name="/models/tiny"} 100`,
		`vllm:request_success_total{engine="0",model_name="/models/tiny",finished_reason="length"} 1`,
		`vllm:num_requests_waiting_by_reason{engine="0",model_name="/models/tiny",reason="deferred"} 0`,
		`vllm:kv_cache_usage_perc{engine="0",model_name="/models/tiny"} 0`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("metrics lack %s", line)
		}
	}
	if _, version := get(engines[0].http + "/version"); !strings.Contains(version, `"0.32.0"`) {
		t.Errorf("version %s", version)
	}
	stop()
	for _, e := range engines {
		if err := <-e.done; err != nil {
			t.Error(err)
		}
		e.conn.Close()
	}
}

func TestHTTPHealthOfADeadEngine(t *testing.T) {
	s, err := New(Config{Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	s.ranks[0].loop.stats.Dead = true
	w := &recorder{}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/health", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.httpHandler().ServeHTTP(w, req)
	if w.code != http.StatusServiceUnavailable {
		t.Errorf("status %d", w.code)
	}
}

type recorder struct{ code int }

func (r *recorder) Header() http.Header         { return http.Header{} }
func (r *recorder) Write(b []byte) (int, error) { return len(b), nil }
func (r *recorder) WriteHeader(code int)        { r.code = code }

func TestConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no model":       {},
		"negative":       {Model: "m", MaxSeqs: -1},
		"negative lease": {Model: "m", Lease: -1},
		"too long":       {Model: "m", Blocks: 10, MaxModelLen: 1000},
		"too large":      {Model: "m", Blocks: 1 << 40},
		"short steps":    {Model: "m", MaxSeqs: 11, MaxBatchedTokens: 10},
	} {
		if _, err := New(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s, err := New(Config{Model: "m", Blocks: 11})
	if err != nil || s.cfg.MaxModelLen != 160 {
		t.Errorf("few blocks: %v", err)
	}
	for _, cfg := range []Config{{Model: "m", MaxSeqs: 5000}, {Model: "m", PrefillTokensPerStep: 5000}} {
		if s, err := New(cfg); err != nil || s.cfg.MaxBatchedTokens != 5000 || s.cfg.PrefillTokensPerStep != 5000 {
			t.Errorf("steps follow: %v", err)
		}
	}
}

// slowMast is an event network that takes its time, which an engine core spends as it does what it computes.
type slowMast struct{ *airwaves }

func (s slowMast) Pub(endpoint string, hwm int) (kvpub.Pub, string, error) {
	pub, at, err := s.airwaves.Pub(endpoint, hwm)
	return slowPub{pub}, at, err
}

type slowPub struct{ kvpub.Pub }

func (p slowPub) Publish(frames ...[]byte) int {
	time.Sleep(400 * time.Millisecond)
	return p.Pub.Publish(frames...)
}

// TestStepTimeIsAll: what the simulator itself needs for a step is part of the step's time, not on top of it.
func TestStepTimeIsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", func(c *Config) {
			c.StepTime, c.BlockSize, c.Blocks = time.Second, 1, 200 // each token fills a block, which is told
			c.KVEvents, c.EventsNetwork = kvpub.Config{Enable: true, Endpoint: "tcp://*:1"}, slowMast{newAirwaves()}
		})
		begin := time.Now()
		e.tokens(t, request("r", words(9, 1), 10))
		if took := time.Since(begin); took < 10*time.Second || took > 10500*time.Millisecond {
			t.Errorf("ten steps took %v", took)
		}
	})
}
