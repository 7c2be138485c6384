package worker

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
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
	stamped, bare := prefilled(t, true), prefilled(t, false)
	if _, ok := bare.Get("_remora"); ok {
		t.Error("a stamp without a time")
	}
	if _, ok := stamped.Get("_remora"); !ok {
		t.Fatal("no stamp")
	}
	const served, refused = "1 2 3 length final", "error(Backend.Disconnected) final"
	for name, row := range map[string]struct {
		params  protocol.Value
		age     time.Duration // when the decode is sent, after the prefill's end
		prompt  []uint32
		queued  time.Duration // in line for a place
		want    string
		reason  string  // of the refusal
		unknown float64 // ages that can't be told
	}{
		"fresh":                   {params: stamped, age: 5 * time.Second, want: served},
		"stale":                   {params: stamped, age: 24 * time.Second, want: refused, reason: "stale"},
		"stale after the queue":   {params: stamped, age: 10 * time.Second, queued: 20 * time.Second, want: refused, reason: "stale"},
		"fresh after the queue":   {params: stamped, age: time.Second, queued: 20 * time.Second, want: served},
		"from before its prefill": {params: stamped, age: -time.Minute, want: served, unknown: 1},
		"without a stamp":         {params: bare, age: time.Hour, want: served, unknown: 1},
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
				unknown := r.count("remora_handoffs_unstamped_total")
				ask := func(id string) *open {
					return r.sendSpoilt(id, func(in *requestplane.Request) {
						b := r.body()
						if row.prompt != nil {
							b.TokenIDs = row.prompt
						}
						b.PrefillResult.DisaggregatedParams = row.params
						in.Body = protocol.AppendRequest(nil, protocol.MsgPack, b)
						in.Headers.FrontendSendNS = sentAt + (2*time.Second + row.age).Nanoseconds()
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
				if got := ask("again").read(); got != refused || r.count("remora_handoffs_refused_total", `"reused"`) != 1 {
					t.Errorf("a second use read %q", got)
				}
				for _, ev := range r.engine.Events() {
					if ev.Kind == vllmtest.Received && ev.Request.GetKv().GetKvTransferParams().GetFields()["_remora"] != nil {
						t.Error("the engine got the stamp")
					}
				}
				<-after(31 * time.Second)
				if r.svc.handoffs.use("other", time.Now()); len(r.svc.handoffs.used) != 1 {
					t.Errorf("%d hand-offs remembered after the lease", len(r.svc.handoffs.used)-1)
				}
			})
		})
	}
}
