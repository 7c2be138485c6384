package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"remora/internal/dynamo/protocol"
	"remora/internal/vllm"
	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// TestStorm: many requests that end at random moments in random ways, on a client's side and on the engine's. Whatever happened,
// the invariants hold: one terminal each, hand-offs kept until their release or the deadline, at most one Abort and none after a
// finish, every accepted decode submitted, nothing left. Every other one is over grpc-go.
func TestStorm(t *testing.T) {
	backends := []vllm.Backend{vllm.BackendH2, vllm.BackendGRPC}
	for _, role := range []protocol.Role{protocol.Aggregated, protocol.Prefill, protocol.Decode} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s/%d", role, seed), func(t *testing.T) {
				bubbleOn(t, backends[seed%2], role, func(r *rig) { r.storm(rand.New(rand.NewPCG(seed, uint64(role))), 200) })
			})
		}
	}
}

// TestSmallStorms is 500 small ones: of a few requests each, so that more of them meet an idle worker, its last place, its end.
func TestSmallStorms(t *testing.T) {
	const storms = 500
	requests := 0
	for seed := range uint64(storms) {
		role := []protocol.Role{protocol.Aggregated, protocol.Prefill, protocol.Decode}[seed%3]
		backend := []vllm.Backend{vllm.BackendH2, vllm.BackendGRPC}[seed%2]
		size := 1 + int(seed%9)
		requests += size
		bubbleOn(t, backend, role, func(r *rig) { r.storm(rand.New(rand.NewPCG(seed, 77)), size) })
		if t.Failed() {
			t.Fatalf("seed %d, %v, %d requests", seed, role, size)
		}
	}
	t.Logf("SUMMARY: %d schedules of the real worker, %d requests", storms, requests)
}

// stormy is what a storm knows of one request.
type stormy struct {
	*open

	sent   time.Time
	left   time.Time // when the client left
	answer string
}

func (r *rig) storm(dice *rand.Rand, size int) {
	r.svc.gate = newGate(1+size/10, size, r.svc.metrics)
	var dials atomic.Uint64
	r.dialing = func(context.Context) error {
		if dials.Add(1)%10 == 3 {
			return errors.New("no route to host")
		}
		return nil
	}
	var all []*stormy
	for i := range size {
		id := fmt.Sprintf("x%d", i)
		r.engine.Script(id, randomScript(dice)...)
		s := &stormy{open: r.send(id), sent: time.Now()}
		all = append(all, s)
		r.wg.Go(func() { s.answer = s.read() })
		if dice.IntN(4) > 0 {
			moment, way := time.Duration(dice.Int64N(int64(20*time.Second))), []string{"stop", "kill", "cut"}[dice.IntN(3)]
			r.wg.Go(func() {
				<-after(moment)
				s.left = time.Now()
				if r.taps.of(&r.taps.accepted, s.subject) == nil {
					way = "kill" // nothing else can be done without a connection
				}
				s.leave(way)
			})
		} else {
			r.wg.Go(func() { // a client has no patience without end: that of a failed dial ends here
				<-after(10 * time.Minute)
				s.left = time.Now()
				s.Kill()
			})
		}
		<-after(time.Duration(dice.Int64N(int64(50 * time.Millisecond))))
	}
	r.wg.Wait()
	r.svc.background.Wait()
	synctest.Wait() // the engine hears of the last drop a moment after the worker
	r.calm(all)
}

// randomScript is a random way through an engine's answer, with pauses, to a random end.
func randomScript(dice *rand.Rand) (steps []vllmtest.Step) {
	pause := func() {
		if dice.IntN(2) == 0 {
			limit := []time.Duration{20 * time.Millisecond, 2 * time.Second, 60 * time.Second}[dice.IntN(3)]
			steps = append(steps, vllmtest.Sleep(time.Duration(dice.Int64N(int64(limit)))))
		}
	}
	pause()
	if dice.IntN(8) == 0 {
		return append(steps, vllmtest.Status(codes.Code(1+dice.IntN(16)), "no"))
	}
	steps = append(steps, vllmtest.Headers())
	pause()
	steps = append(steps, vllmtest.Prompt(4))
	for range dice.IntN(4) {
		pause()
		steps = append(steps, vllmtest.Tokens(uint32(dice.IntN(99))))
	}
	pause()
	switch dice.IntN(6) {
	case 0:
		return append(steps, vllmtest.Status(codes.Code(1+dice.IntN(16)), "no"))
	case 1:
		return append(steps, vllmtest.EOF())
	case 2:
		return append(steps, vllmtest.Silence())
	case 3:
		return append(steps, vllmtest.Message(&pb.GenerateResponse{Outputs: &pb.SequenceOutput{Index: 9}}), vllmtest.Silence())
	}
	return append(steps, vllmtest.FinishToken(pb.FinishInfo_LENGTH, 5))
}

// calm checks a storm's invariants.
func (r *rig) calm(all []*stormy) {
	r.t.Helper()
	terminals := 0.0
	for _, terminal := range []string{"finished", "cancelled", "error", "refused"} {
		terminals += r.count("remora_requests_terminal_total", `"`+terminal+`"`)
	}
	if terminals != float64(len(all)) {
		r.t.Errorf("%v terminals for %d requests", terminals, len(all))
	}
	if n := r.engine.Live(); n != 0 {
		r.t.Errorf("%d requests live at the engine", n)
	}
	for _, gauge := range []string{"dynamo_engine_request", "dynamo_request_queue", "dynamo_component_inflight_requests"} {
		if n := r.count(gauge); n != 0 {
			r.t.Errorf("%s is %v", gauge, n)
		}
	}
	lives := map[string][]vllmtest.Event{}
	for _, ev := range r.engine.Events() {
		lives[ev.ID] = append(lives[ev.ID], ev)
	}
	lost := r.count("remora_drains_total", `"never_submitted"`)
	for _, s := range all {
		life := lives[s.id]
		if r.role == protocol.Decode && len(life) == 0 {
			lost--
		}
		if err := s.lawful(life, r.role); err != nil {
			r.t.Errorf("%s: %v; left after %v; engine saw %s; read %q", s.id, err, s.left, r.saw(s.id), s.answer)
		}
	}
	if lost != 0 {
		r.t.Errorf("decodes that were never submitted and decodes counted so differ by %v", lost)
	}
}

// lawful checks what one request's engine and client saw.
func (s *stormy) lawful(life []vllmtest.Event, role protocol.Role) error {
	aborts, released, finished := 0, time.Time{}, time.Time{}
	decided := s.left
	if s.rig.taps.of(&s.rig.taps.accepted, s.subject) == nil {
		decided = s.sent // the dial-back failed
	}
	for _, ev := range life { // by time, not by order: the engine notes a message after it has sent it
		out := ev.Message.GetOutputs()
		if out.GetIndex() != 0 && ev.At.Before(decided) {
			decided = ev.At // nobody can convert that
		}
		if released.IsZero() && (out.GetNumTokens() > 0 || out.GetFinishInfo() != nil || ev.Kind == vllmtest.Ended) {
			released = ev.At
		}
		if out.GetFinishInfo() != nil {
			finished = ev.At
		}
	}
	for _, ev := range life {
		kept := ev.Kind == vllmtest.Aborted || ev.Kind == vllmtest.Dropped
		switch {
		case ev.Kind == vllmtest.Aborted && !finished.IsZero() && ev.At.After(finished):
			return errors.New("aborted after its finish")
		case role == protocol.Decode && kept && (released.IsZero() || ev.At.Before(released)) && ev.At.Sub(decided) < 30*time.Second:
			return fmt.Errorf("%v before its release, %v after its end was decided", ev.Kind, ev.At.Sub(decided))
		}
		if ev.Kind == vllmtest.Aborted {
			aborts++
		}
	}
	if aborts > 1 {
		return fmt.Errorf("%d aborts", aborts)
	}
	if s.answer == "" || strings.Count(s.answer, "final")+strings.Count(s.answer, "cancelled") > 2 {
		return errors.New("more than one end")
	}
	if broken := s.answer == "broken" || strings.HasSuffix(s.answer, " broken"); !broken && !strings.HasSuffix(s.answer, "final") && !strings.HasPrefix(s.answer, "prologue") {
		return errors.New("no end")
	}
	return nil
}
