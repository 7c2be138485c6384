package worker

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/translate"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// sentAt is when the frontend sent the prefill, by a clock that is nobody's here.
const sentAt int64 = 1_700_000_000_000_000_000

// prefilled runs a prefill of two seconds and gives the hand-off that the frontend gets.
func prefilled(t *testing.T, told bool) (params protocol.Value) {
	t.Helper()
	bubble(t, protocol.Prefill, func(r *rig) {
		kv, err := structpb.NewStruct(map[string]any{
			"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": []any{[]any{7}}, "remote_engine_id": "p",
			"remote_request_id": "r-0a1b2c3d", "remote_host": "127.0.0.1", "remote_port": 5600, "tp_size": 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		r.engine.Script("x", vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Sleep(2*time.Second), vllmtest.FinishWith(pb.FinishInfo_LENGTH, kv, 12))
		o := r.sendSpoilt("x", func(in *requestplane.Request) {
			if told {
				in.Headers.FrontendSendNS = sentAt
			}
		})
		item, err := o.Next(r.t.Context())
		if err != nil || item.Data == nil {
			t.Fatalf("item %+v, %v", item, err)
		}
		params = item.Data.DisaggregatedParams
		o.read()
	})
	return params
}

// TestStampedHandoffs: what a prefill worker stamps, a decode worker checks: age by the frontend's clock, prompt, first use.
func TestStampedHandoffs(t *testing.T) {
	stamped, untold := prefilled(t, true), prefilled(t, false)
	for finished, params := range map[int64]protocol.Value{sentAt + (2 * time.Second).Nanoseconds(): stamped, 0: untold} {
		text, _ := params.Get("_remora")
		got, err := translate.ParseStamp(text.Str)
		want := translate.Stamp{Finished: finished, Lease: 30 * time.Second, BlockSize: 16, Prompt: got.Prompt}
		if err != nil || got != want || got.Prompt.Tokens != 4 || got.Prompt.Hash == 0 {
			t.Errorf("stamp %+v, %v; want %+v", got, err, want)
		}
	}
	bare := protocol.Map(slices.DeleteFunc(slices.Clone(stamped.Map), func(m protocol.Member) bool { return m.Key == "_remora" })...)
	const served, refused = "1 2 3 length final", "error(Backend.Disconnected) final"
	for name, row := range map[string]struct {
		params  protocol.Value
		age     time.Duration // when the decode is sent, after the prefill's end
		prompt  []uint32
		queued  time.Duration // in line for a place
		want    string
		reason  string  // of the refusal
		silent  bool    // the decode's frontend does not tell the time
		off     bool    // --handoff-check=off
		unknown float64 // ages that can't be told
	}{
		"fresh":                   {params: stamped, age: 5 * time.Second, want: served},
		"stale":                   {params: stamped, age: 24 * time.Second, want: refused, reason: "stale"},
		"stale after the queue":   {params: stamped, age: 10 * time.Second, queued: 20 * time.Second, want: refused, reason: "stale"},
		"fresh after the queue":   {params: stamped, age: time.Second, queued: 20 * time.Second, want: served},
		"from before its prefill": {params: stamped, age: -time.Minute, want: served, unknown: 1},
		"without a stamp":         {params: bare, age: time.Hour, want: served, unknown: 1},
		"the prefill had no time": {params: untold, age: time.Hour, want: served, unknown: 1},
		"the decode has no time":  {params: stamped, age: time.Hour, silent: true, want: served, unknown: 1},
		"no time, another prompt": {params: untold, age: time.Second, prompt: []uint32{4, 3, 2, 1}, want: refused, reason: "tokens"},
		"stale, not looked at":    {params: stamped, age: time.Hour, off: true, want: served},
		"of another prompt":       {params: stamped, age: time.Second, prompt: []uint32{4, 3, 2, 1}, want: refused, reason: "tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, protocol.Decode, func(r *rig) {
				if row.queued > 0 {
					r.svc.gate = newGate(1, 5, r.svc.metrics)
					r.engine.Script("first", vllmtest.Headers(), vllmtest.Sleep(row.queued), vllmtest.FinishToken(pb.FinishInfo_STOP, 1))
					first := r.send("first")
					defer first.read()
					synctest.Wait()
				}
				if row.off {
					r.svc.handoffs.check, r.svc.translate.HandoffCheck = false, translate.HandoffOff
				}
				unknown := r.count("remora_handoffs_unstamped_total")
				ask := func(id string) *open {
					return r.sendSpoilt(id, func(in *requestplane.Request) {
						b := r.body()
						if row.prompt != nil {
							b.TokenIDs = row.prompt
						}
						b.PrefillResult.DisaggregatedParams = row.params
						in.Body = protocol.AppendRequest(nil, protocol.MsgPack, b)
						if !row.silent {
							in.Headers.FrontendSendNS = sentAt + (2*time.Second + row.age).Nanoseconds()
						}
					})
				}
				if got := ask("x").read(); got != row.want {
					t.Errorf("read %q, want %q", got, row.want)
				}
				if got := r.count("remora_handoffs_unstamped_total") - unknown; got != row.unknown {
					t.Errorf("%v ages unknown, want %v", got, row.unknown)
				}
				if row.reason != "" {
					if n := r.count("remora_handoffs_refused_total", `"`+row.reason+`"`); n != 1 {
						t.Errorf("%v refused as %s", n, row.reason)
					}
					if got := r.saw("x"); got != "" {
						t.Errorf("engine saw %q", got)
					}
					return
				}
				if row.off {
					if got := ask("again").read(); got != served {
						t.Errorf("a second use read %q", got)
					}
					return
				}
				if got := ask("again").read(); got != refused || r.count("remora_handoffs_refused_total", `"reused"`) != 1 {
					t.Errorf("a second use read %q", got)
				}
				if got := r.count("remora_handoffs_unstamped_total") - unknown; got != 2*row.unknown {
					t.Errorf("%v ages unknown after a second use, want %v", got, 2*row.unknown)
				}
				for _, ev := range r.engine.Events() {
					if ev.Kind == vllmtest.Received && ev.Request.GetKv().GetKvTransferParams().GetFields()["_remora"] != nil {
						t.Error("the engine got the stamp")
					}
				}
				<-after(31 * time.Second)
				if r.svc.handoffs.use("other", 0, time.Now()); len(r.svc.handoffs.used) != 1 {
					t.Errorf("%d hand-offs remembered after the lease", len(r.svc.handoffs.used)-1)
				}
			})
		})
	}
}

// TestUsedForALease: a second use is refused for the lease, to the last moment: the stamp's where that is the longer one, and
// whatever the order in which they end.
func TestUsedForALease(t *testing.T) {
	const lease, long = 30 * time.Second, 2 * time.Minute
	began := time.Now()
	h := newHandoffs(lease, 16, translate.HandoffStrict)
	for _, step := range []struct {
		at    time.Duration
		key   string
		lease time.Duration // the stamp's
		ok    bool
	}{
		{0, "long", long, true},
		{0, "a", 0, true},
		{0, "short", lease / 2, true},
		{0, "", 0, true},
		{lease - 1, "a", 0, false},
		{lease - 1, "short", lease / 2, false},
		{lease - 1, "", 0, true},
		{lease, "short", lease / 2, true},
		{lease, "a", 0, true},
		{2*lease - 1, "a", 0, false},
		{long - 1, "long", 0, false},
		{long, "long", 1000 * time.Hour, true},
		{long + longestLease - 1, "long", 0, false},
		{long + longestLease, "long", 0, true},
	} {
		if ok := h.use(step.key, step.lease, began.Add(step.at)); ok != step.ok {
			t.Errorf("%s after %v: %v", step.key, step.at, ok)
		}
		if len(h.order) != len(h.used) {
			t.Fatalf("%s after %v: %d keys, %d in order", step.key, step.at, len(h.used), len(h.order))
		}
	}
	if len(h.used) != 1 {
		t.Errorf("%d remembered at the end", len(h.used))
	}
}
