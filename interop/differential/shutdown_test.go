package differential

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/vllm/vllmtest"
	"remora/interop/harness"
	pb "remora/proto/vllm"
)

// The times of a shutdown in these tests: a grace in which requests are still taken, and what is left after it. The Rust
// prefill worker waits for the latter less 5 s.
const (
	grace      = time.Second
	afterGrace = 9 * time.Second
)

// endings are what a worker is doing when it is told to stop.
var endings = []struct {
	name   string
	roles  string
	signal syscall.Signal
	before []vllmtest.Step // nil: nothing, the worker is idle
	frames int
	kill   bool            // the client goes before the signal: a decode drains
	late   []vllmtest.Step // what the engine does after the grace; nil: nothing any more
}{
	{name: "idle", roles: "adp", signal: syscall.SIGTERM},
	{name: "idle, interrupted", roles: "a", signal: syscall.SIGINT},
	{name: "an answer that ends in time", roles: "ad", signal: syscall.SIGTERM, before: moments[4].before, frames: 2,
		late: []vllmtest.Step{vllmtest.FinishToken(pb.FinishInfo_LENGTH, 12)}},
	{name: "a prefill that ends in time", roles: "p", signal: syscall.SIGTERM, before: moments[2].before, frames: 1,
		late: []vllmtest.Step{vllmtest.FinishWith(pb.FinishInfo_LENGTH, handedOver(), 12)}},
	{name: "a decode before its first token", roles: "d", signal: syscall.SIGTERM, before: moments[2].before, frames: 1,
		late: []vllmtest.Step{vllmtest.FinishToken(pb.FinishInfo_LENGTH, 12)}},
	{name: "a request before its headers", roles: "a", signal: syscall.SIGTERM, before: []vllmtest.Step{}, frames: 0,
		late: []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.FinishToken(pb.FinishInfo_LENGTH, 12)}},
	{name: "a decode that drains", roles: "d", signal: syscall.SIGTERM, before: moments[2].before, frames: 1, kill: true,
		late: []vllmtest.Step{vllmtest.Tokens(12)}},
	{name: "an answer that never ends", roles: "ad", signal: syscall.SIGTERM, before: moments[4].before, frames: 2},
}

// TestShutdown compares the order of what happens after a signal: when the record goes, what becomes of requests that come in
// the grace and after it, of those under way, how the process ends, and what is left.
func TestShutdown(t *testing.T) {
	if !*full {
		return // two processes and some seconds a case
	}
	env := []string{
		"DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS=" + strconv.Itoa(int(grace.Seconds())),
		"DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT=" + strconv.Itoa(int((grace + afterGrace).Seconds())),
	}
	for i := range endings {
		for _, letter := range endings[i].roles {
			t.Run(endings[i].name+"/"+string(letters[letter]), func(t *testing.T) {
				t.Parallel()
				stopBoth(t, i, letters[letter], env)
			})
		}
	}
}

func stopBoth(t *testing.T, i int, role harness.Role, env []string) {
	t.Helper()
	p := newPair(t, role, func(b *vllmtest.Behaviour) { b.Deaf = true }, env)
	id := strings.NewReplacer("/", "-", " ", "_").Replace(t.Name())
	var seen [2]observation
	var failed [2]error
	var both sync.WaitGroup
	for side, s := range p.sides {
		documents := [3]protocol.Value{}
		for n, suffix := range []string{"", "-in-grace", "-after"} {
			documents[n] = new(testCase).document(t, role, id+suffix)
		}
		both.Go(func() { seen[side], failed[side] = p.stopOne(t.Context(), s, i, id, documents) })
	}
	both.Wait()
	for side, err := range failed {
		if err != nil {
			t.Fatalf("%s: %v", p.sides[side].kind, err)
		}
	}
	for side, s := range p.sides {
		seen[side]["exit code"] = strconv.Itoa(s.sidecar.WaitExit(t, time.Minute))
		for path := range s.records(t) {
			bucket, _, _ := strings.Cut(path, "/")
			seen[side]["left in "+bucket] = "a record"
		}
	}
	judge(t, string(role)+"/shutdown/"+endings[i].name, seen[0], seen[1])
}

// stopOne is an ending at one side.
func (p *pair) stopOne(ctx context.Context, s *side, i int, id string, documents [3]protocol.Value) (observation, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	e := &endings[i]
	var running *play
	if e.before != nil {
		c := testCase{
			script: func(r *play) []vllmtest.Step {
				running = r
				steps := append(r.upTo(e.before), e.late...)
				return append(steps, vllmtest.Silence())
			},
			act: func(ctx context.Context, r *play) error {
				if err := wait(ctx, r.moment); err != nil {
					return err
				}
				if err := r.reply.has(ctx, e.frames); err != nil || !e.kill {
					return err
				}
				if err := r.reply.say("kill"); err != nil {
					return err
				}
				return r.reply.over(ctx)
			},
		}
		if _, err := c.play(ctx, p, s, id, protocol.MsgPack, documents[0]); err != nil {
			return nil, fmt.Errorf("before the signal: %w", err)
		}
	}
	o := observation{}
	began := time.Now()
	s.sidecar.Signal(e.signal)
	o["record gone at once"] = strconv.FormatBool(s.unlisted(ctx, grace/2))
	inGrace, err := new(testCase).play(ctx, p, s, id+"-in-grace", protocol.MsgPack, documents[1])
	if err != nil {
		return nil, fmt.Errorf("in the grace: %w", err)
	}
	o["a request in the grace"] = inGrace.outcome()
	if running == nil {
		<-s.sidecar.Done()
		o["idle worker ends soon after the grace"] = strconv.FormatBool(time.Since(began) < grace+afterGrace/3)
		return o, nil
	}
	pause(ctx, time.Until(began.Add(grace+time.Second)))
	if !s.sidecar.Exited() {
		after, err := new(testCase).play(ctx, p, s, id+"-after", protocol.MsgPack, documents[2])
		if err != nil {
			o["a request after the grace"] = "no connection"
		} else {
			o["a request after the grace"] = after.outcome()
		}
	} else {
		o["a request after the grace"] = "no process"
	}
	if e.late != nil {
		close(running.goOn)
	}
	<-s.sidecar.Done()
	if !e.kill {
		o.response(protocol.MsgPack, running.reply)
	}
	o.fate(s.engine, id)
	return o, nil
}

// unlisted waits until discovery has no instance record of the side any more.
func (s *side) unlisted(ctx context.Context, within time.Duration) bool {
	for end := time.Now().Add(within); time.Now().Before(end); pause(ctx, 10*time.Millisecond) {
		if s.instances() == 0 {
			return true
		}
	}
	return false
}

func wait(ctx context.Context, what <-chan struct{}) error {
	select {
	case <-what:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
