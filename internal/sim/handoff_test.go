package sim

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	pb "remora/proto/vllm"
)

// pair is a prefill and a decode engine, and an aggregated one to compare with.
func pair(t *testing.T, changeD func(*Config)) (p, d, agg *engine) {
	t.Helper()
	nw := network{}
	return start(t, nw, "p", nil), start(t, nw, "d", changeD), start(t, nw, "agg", nil)
}

func wantBase(t *testing.T, engines ...*engine) {
	t.Helper()
	for _, e := range engines {
		if s := e.Stats(); s.UsedBlocks != 0 || s.Running+s.Waiting+s.Held+s.RecvPending != 0 {
			t.Errorf("engine is not at its base: %+v", s)
		}
	}
}

// TestHandOff: prefill, then decode gives the text of one engine alone; P is freed by the completion.
//
// Rules: hand-off-text.
func TestHandOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, agg := pair(t, nil)
		prompt := words(30, 1)
		want := agg.tokens(t, request("agg", prompt, 12))
		pre := p.generate(t, prefillRequest(t, "r", prompt))
		if s := p.Stats(); s.Held != 1 || s.UsedBlocks != 8 {
			t.Errorf("after the prefill: %+v", s)
		}
		r := d.generate(t, decodeRequest("r", prompt, 12, pre.handOff(t)))
		if r.err != nil || !slices.Equal(r.tokens(), want) {
			t.Errorf("decode: %v %v, want %v", r.err, r.tokens(), want)
		}
		if got := r.finish().GetNumCachedTokens(); got != 30 {
			t.Errorf("cached %d, want the whole prompt", got)
		}
		time.Sleep(20 * time.Millisecond)
		wantBase(t, p, d)
		if s := p.Stats(); s.Completed != 1 || s.Expired != 0 || s.ServedReads != 1 {
			t.Errorf("P counts %+v", s.Counters)
		}
		if s := d.Stats(); s.ExternalHits != 30 {
			t.Errorf("D counts %+v", s.Counters)
		}
	})
}

// Rules: ids-side-by-side.
func TestHandOffHasTheRecordedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, network{}, "p", nil)
		params := p.generate(t, prefillRequest(t, "r", words(9, 1))).handOff(t).AsMap()
		id, _ := params["remote_request_id"].(string)
		if len(id) != len("r-")+8 || id[:2] != "r-" {
			t.Errorf("remote_request_id %q", id)
		}
		delete(params, "remote_request_id")
		want, err := structpb.NewStruct(map[string]any{
			"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": []any{[]any{1, 2, 3}},
			"remote_engine_id": p.EngineID(), "remote_host": "p", "remote_port": 1, "tp_size": 1, "dcp_size": 1, "pp_size": 1,
			"remote_num_tokens": 9, "remote_blocks_expiry_time": nil, "transfer_mode": "pull", "remote_prefill_cached_tokens": 0,
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err := structpb.NewStruct(params)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != want.String() && len(got.GetFields()) != len(want.GetFields()) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
		for key, value := range want.GetFields() {
			if got.GetFields()[key].String() != value.String() {
				t.Errorf("%s: got %v, want %v", key, got.GetFields()[key], value)
			}
		}
	})
}

// TestLeaseEnds: nobody comes; the blocks are free when the lease ends, on an engine that is otherwise idle.
//
// Rules: never-called, lease-scan.
func TestLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, network{}, "p", nil)
		p.generate(t, prefillRequest(t, "r", words(30, 1)))
		time.Sleep(11900 * time.Millisecond)
		if s := p.Stats(); s.Held != 1 {
			t.Fatalf("before the end: %+v", s)
		}
		time.Sleep(200 * time.Millisecond)
		if s := p.Stats(); s.Held != 0 || s.Expired != 1 {
			t.Fatalf("after the end: %+v", s)
		}
		wantBase(t, p)
	})
}

// TestHeartbeatsRenewTheLease: a decode that is queued longer than the lease keeps P's blocks.
//
// Rules: heartbeats.
func TestHeartbeatsRenewTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, agg := pair(t, func(c *Config) { c.MaxSeqs, c.StepTime = 1, time.Second })
		prompt := words(30, 1)
		want := agg.tokens(t, request("agg", prompt, 5))
		long := d.open(t.Context(), t, request("long", words(4, 9), 40))
		pre := p.generate(t, prefillRequest(t, "r", prompt))
		start := time.Now()
		r := d.generate(t, decodeRequest("r", prompt, 5, pre.handOff(t)))
		if waited := time.Since(start); waited < 35*time.Second {
			t.Fatalf("waited only %v", waited)
		}
		if !slices.Equal(r.tokens(), want) {
			t.Errorf("got %v, want %v", r.tokens(), want)
		}
		if s := p.Stats(); s.Expired != 0 || s.Completed != 1 || s.Beats < 10 {
			t.Errorf("P counts %+v", s.Counters)
		}
		if r := readAll(long); r.err != nil {
			t.Error(r.err)
		}
	})
}

// TestStaleHandOff: after the lease the blocks belong to somebody else. The engine says OK, the text is wrong, and stays wrong
// for the same prompt without a hand-off, until the cache is bypassed.
//
// Rules: d-late-reused, late-read.
func TestStaleHandOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, agg := pair(t, nil)
		prompt := words(30, 1)
		want := agg.tokens(t, request("agg", prompt, 12))
		stale := p.generate(t, prefillRequest(t, "r", prompt)).handOff(t)
		time.Sleep(13 * time.Second)
		for n := range uint32(4) { // reuse all of P's blocks
			p.tokens(t, request("other", words(100, 50+n), 4))
		}
		r := d.generate(t, decodeRequest("r", prompt, 12, stale))
		if r.err != nil || slices.Equal(r.tokens(), want) {
			t.Fatalf("a stale hand-off gave %v, %v", r.err, r.tokens())
		}
		if s := p.Stats(); s.StaleReads != 1 {
			t.Errorf("P counts %+v", s.Counters)
		}
		if slices.Equal(d.tokens(t, request("again", prompt, 12)), want) {
			t.Error("D's prefix cache is not poisoned")
		}
		bypass := request("bypass", prompt, 12)
		bypass.Kv = &pb.KVCacheParameters{BypassPrefixCache: true}
		if got := d.tokens(t, bypass); !slices.Equal(got, want) {
			t.Errorf("bypassing the cache: %v, want %v", got, want)
		}
	})
}

// TestDecodeLeaves: whatever the moment at which the client goes, P is freed at once and D has nothing left.
//
// Rules: d-dropped-early, d-dropped-running, release-by-drop, drop-after-send.
func TestDecodeLeaves(t *testing.T) {
	for name, leave := range map[string]func(d *engine, stop context.CancelFunc){
		"drop": func(_ *engine, stop context.CancelFunc) { stop() },
		"abort": func(d *engine, _ context.CancelFunc) {
			if _, err := d.ctrl.Abort(context.Background(), &pb.AbortRequest{RequestIds: []string{"r"}}); err != nil {
				panic(err)
			}
		},
	} {
		for _, ms := range []int{0, 5, 15, 35} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p, d, _ := pair(t, nil)
					prompt := words(30, 1)
					pre := p.generate(t, prefillRequest(t, "p", prompt))
					ctx, stop := context.WithCancel(t.Context())
					defer stop()
					stream := d.open(ctx, t, decodeRequest("r", prompt, 50, pre.handOff(t)))
					if _, err := stream.Header(); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Duration(ms) * time.Millisecond)
					leave(d, stop)
					r := readAll(stream)
					if name == "abort" && (r.err != nil || r.finish().GetFinishReason() != pb.FinishInfo_ABORTED || r.finish().GetKvTransferParams() != nil) {
						t.Errorf("aborted stream ended with %v, %v", r.err, r.finish())
					}
					time.Sleep(100 * time.Millisecond)
					wantBase(t, p, d)
					if s := p.Stats(); s.Completed != 1 || s.Expired != 0 {
						t.Errorf("P counts %+v", s.Counters)
					}
				})
			})
		}
	}
}

// TestUnreachable walks the ways in which D does not find P.
//
// Rules: nobody-listens, host-null, wrong-engine, blocks-beyond, known-engine, no-tp-size, load-failure.
func TestUnreachable(t *testing.T) {
	const failed = "Internal: engine failed during generation"
	for _, tt := range []struct {
		name     string
		change   func(h map[string]any)
		least    time.Duration
		most     time.Duration
		wantText bool
	}{
		{"nobody listens", func(h map[string]any) { h["remote_engine_id"], h["remote_host"] = "x", "gone" }, 4900 * time.Millisecond, 5200 * time.Millisecond, false},
		{"no host", func(h map[string]any) { h["remote_engine_id"], h["remote_host"] = "x", nil }, 4900 * time.Millisecond, 5200 * time.Millisecond, false},
		{"other engine", func(h map[string]any) { h["remote_engine_id"] = "x" }, 0, 300 * time.Millisecond, false},
		{"blocks beyond the pool", func(h map[string]any) { h["remote_block_ids"] = []any{[]any{1, 2, 3, 4, 5, 6, 7, 9999}} }, 0, 100 * time.Millisecond, false},
		{"known engine, wrong port", func(h map[string]any) { h["remote_port"] = 9 }, 0, time.Second, true},
		{"known engine, port as text", func(h map[string]any) { h["remote_port"] = "9" }, 0, time.Second, true},
		{"no tensor size", func(h map[string]any) { delete(h, "tp_size") }, 0, time.Second, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, d, agg := pair(t, nil)
				first := words(10, 9) // D gets to know P
				d.tokens(t, decodeRequest("first", first, 2, p.generate(t, prefillRequest(t, "p", first)).handOff(t)))
				prompt := words(30, 1)
				params := p.generate(t, prefillRequest(t, "p", prompt)).handOff(t).AsMap()
				tt.change(params)
				handOff, err := structpb.NewStruct(params)
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				r := d.generate(t, decodeRequest("r", prompt, 5, handOff))
				if took := time.Since(begin); took < tt.least || took > tt.most {
					t.Errorf("took %v", took)
				}
				if tt.wantText {
					if want := agg.tokens(t, request("agg", prompt, 5)); !slices.Equal(r.tokens(), want) {
						t.Errorf("got %v %v, want %v", r.tokens(), r.err, want)
					}
				} else {
					wantStatus(t, r.err, failed)
				}
				time.Sleep(20 * time.Millisecond)
				wantBase(t, d)
				wantKnown(t, d, 1)
				if f := d.ranks[0].fetch; f.peers[p.EngineID()] == nil { // at rest by now
					t.Error("somebody else is known in P's place")
				}
				if got := d.tokens(t, request("next", prompt, 5)); len(got) != 5 {
					t.Errorf("D is not well: %v", got)
				}
			})
		})
	}
}

// TestFatalHandOff: an empty block list kills the engine core. Every open stream learns of it, health turns for good, and Run
// ends some time later.
//
// Rules: blocks-empty, blocks-too-few, blocks-flat, empty-blocks, death-streams, abort-dead.
func TestFatalHandOff(t *testing.T) {
	const fatal = "Internal: engine-core error: engine core reported fatal failure"
	for name, blocks := range map[string]any{
		"empty": []any{}, "missing": nil, "empty group": []any{[]any{}}, "flat": []any{1, 2, 3}, "too few": []any{[]any{1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, d, _ := pair(t, nil)
				prompt := words(30, 1)
				params := p.generate(t, prefillRequest(t, "p", prompt)).handOff(t).AsMap()
				params["remote_block_ids"] = blocks
				handOff, err := structpb.NewStruct(params)
				if err != nil {
					t.Fatal(err)
				}
				other := d.open(t.Context(), t, request("other", words(5, 2), 100))
				if _, err := other.Recv(); err != nil {
					t.Fatal(err)
				}
				wantStatus(t, d.generate(t, decodeRequest("r", prompt, 5, handOff)).err, fatal)
				wantStatus(t, readAll(other).err, fatal)
				wantStatus(t, d.generate(t, request("late", prompt, 5)).err, fatal)
				wantHealth(t, d, "NOT_SERVING")
				if _, err := d.ctrl.Abort(t.Context(), &pb.AbortRequest{RequestIds: []string{"r"}}); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Minute)
				if err := d.end(); err == nil || err.Error() != ErrEngineDead.Error() {
					t.Errorf("Run returned %v", err)
				}
			})
		})
	}
}

// TestMissingKey: no answer ever, and an abort closes the stream but does not give D's blocks back.
//
// Rules: key-missing, missing-port.
func TestMissingKey(t *testing.T) {
	for _, key := range []string{"remote_port", "remote_host", "remote_engine_id", "remote_request_id"} {
		t.Run(key, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { missingKey(t, key) }) })
	}
}

func missingKey(t *testing.T, key string) {
	t.Helper()
	p, d, _ := pair(t, nil)
	prompt := words(30, 1)
	params := p.generate(t, prefillRequest(t, "p", prompt)).handOff(t).AsMap()
	delete(params, key)
	handOff, err := structpb.NewStruct(params)
	if err != nil {
		t.Fatal(err)
	}
	stream := d.open(t.Context(), t, decodeRequest("r", prompt, 5, handOff))
	time.Sleep(time.Minute)
	if s := d.Stats(); s.Deferred != 1 || s.UsedBlocks != 8 {
		t.Errorf("D: %+v", s)
	}
	d.abort(t, "r")
	if r := readAll(stream); r.finish().GetFinishReason() != pb.FinishInfo_ABORTED {
		t.Errorf("ended with %v, %v", r.err, r.finish())
	}
	time.Sleep(time.Minute)
	if s := d.Stats(); s.Waiting != 0 || s.UsedBlocks != 8 {
		t.Errorf("D: %+v", s)
	}
}
