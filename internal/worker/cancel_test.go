package worker

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/dynamo/protocol"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// TestLeave: every way of leaving, at every moment, in every role; what the engine saw of the request, in order. "aborted"
// before "dropped" or "ended" is the order that the engine needs, and the last that counts; "ended" means that the engine's own end was read.
func TestLeave(t *testing.T) {
	params, err := structpb.NewStruct(map[string]any{"do_remote_prefill": true})
	if err != nil {
		t.Fatal(err)
	}
	// held gives a script that stops at a gate which opens ten seconds after the client has left, or at once on an Abort.
	held := func(before, after []vllmtest.Step) func() []vllmtest.Step {
		return func() []vllmtest.Step {
			return slices.Concat(before, []vllmtest.Step{vllmtest.Sleep(10 * time.Second)}, after)
		}
	}
	steps := func(s ...vllmtest.Step) func() []vllmtest.Step { return func() []vllmtest.Step { return s } }
	headers, prompt := vllmtest.Headers(), vllmtest.Prompt(4)
	token := vllmtest.Tokens(11)
	long := []vllmtest.Step{vllmtest.Tokens(21, 22), vllmtest.Silence()}
	finish := vllmtest.FinishToken(pb.FinishInfo_LENGTH, 12)
	const finishesFirst = "prefill that finishes first"
	type row struct {
		name   string
		role   protocol.Role
		script func() []vllmtest.Step // made inside the bubble: its timers are virtual
		want   string                 // events of the request at the engine
	}
	rows := []row{
		// M2: kept until a message with tokens, then aborted and dropped. Never earlier.
		{"decode before headers", protocol.Decode, held(nil, append([]vllmtest.Step{headers, prompt}, long...)), "received headers sent aborted"},
		{"decode after headers", protocol.Decode, held([]vllmtest.Step{headers}, append([]vllmtest.Step{prompt}, long...)), "received headers sent aborted"},
		{"decode after prompt", protocol.Decode, held([]vllmtest.Step{headers, prompt}, long), "received headers sent aborted"},
		{"decode released by its finish", protocol.Decode, held([]vllmtest.Step{headers, prompt}, []vllmtest.Step{finish}), "received headers sent ended"},
		{"decode in mid-stream", protocol.Decode, held([]vllmtest.Step{headers, prompt, token}, nil), "received headers sent aborted"},
		// M3: the deadline.
		{"decode, engine never answers", protocol.Decode, steps(vllmtest.Silence()), "received dropped"},
		{"decode, no token ever", protocol.Decode, steps(headers, prompt, vllmtest.Silence()), "received headers sent aborted"},
		// M6.
		{"aggregated before headers", protocol.Aggregated, held(nil, nil), "received dropped"},
		{"aggregated after headers", protocol.Aggregated, held([]vllmtest.Step{headers}, nil), "received headers aborted"},
		{"aggregated in mid-stream", protocol.Aggregated, held([]vllmtest.Step{headers, prompt, token}, nil), "received headers sent aborted"},
		{"prefill after headers", protocol.Prefill, held([]vllmtest.Step{headers}, nil), "received headers aborted"},
		{"prefill before headers: the abort waits for them", protocol.Prefill, held(nil, []vllmtest.Step{headers, vllmtest.Sleep(time.Second)}), "received headers aborted"},
		{finishesFirst, protocol.Prefill, func() []vllmtest.Step {
			return []vllmtest.Step{headers, prompt, vllmtest.WaitDeaf(after(10 * time.Second)), vllmtest.FinishWith(pb.FinishInfo_LENGTH, params, 12)}
		}, "received headers sent aborted"},
	}
	ways := map[string]func(o *open){
		"kill":  func(o *open) { o.Kill() },
		"reset": func(o *open) { o.cut() },
		"stop":  func(o *open) { o.say("stop") },
	}
	for _, row := range rows {
		for way, leave := range ways {
			t.Run(row.name+"/"+way, func(t *testing.T) {
				bubble(t, row.role, func(r *rig) {
					late := row.name == finishesFirst // so the Abort finds nothing any more
					r.engine.Set(func(b *vllmtest.Behaviour) { b.Deaf = late })
					r.engine.Script("x", row.script()...)
					o := r.send("x")
					synctest.Wait()
					leave(o)
					if way == "stop" {
						if got := o.read(); !strings.HasSuffix(got, "cancelled final") {
							t.Errorf("the client that said stop read %q", got)
						}
					}
					r.wg.Wait()
					r.svc.background.Wait()
					synctest.Wait()
					got := r.saw("x")
					if head, _, found := strings.Cut(got, " aborted"); found { // what follows depends on whether its answer or the drop is faster
						got = head + " aborted"
					}
					if got != row.want {
						t.Errorf("engine saw: %s\nwant:       %s", got, row.want)
					}
					if n := r.count("remora_aborts_sent_total"); n != float64(strings.Count(row.want, "aborted")) {
						t.Errorf("%v Aborts counted", n)
					}
					if n := r.count("remora_orphans_total"); (n == 1) != late || n > 1 {
						t.Errorf("%v orphans counted", n)
					}
				})
			})
		}
	}
}

// after is a channel that is closed later.
func after(d time.Duration) <-chan struct{} {
	wake := make(chan struct{})
	time.AfterFunc(d, func() { close(wake) })
	return wake
}
