package differential

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"remora/internal/vllm/vllmtest"
	"remora/interop/harness"
	pb "remora/proto/vllm"
)

// moments are where the engine is when the client goes; frames is how many the frontend has by then.
var moments = []struct {
	name   string
	before []vllmtest.Step
	frames int
}{
	{"before headers", nil, 0},
	{"after headers", []vllmtest.Step{vllmtest.Headers()}, 1},
	{"after the prompt", []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4)}, 1},
	{"after an empty output", []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Batch()}, 1},
	{"after the first token", []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Tokens(11)}, 2},
	{"in the answer", []vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4), vllmtest.Tokens(11, 12, 13)}, 4},
}

// actions are how a client goes.
var actions = []struct {
	name string
	do   func(r *reply) error
}{
	{"kill", func(r *reply) error { return r.say("kill") }},
	{"stop", func(r *reply) error { return r.say("stop") }},
	{"reset", (*reply).reset},
	{"close", (*reply).leave},
}

// ends are what an engine may do with a decode whose client has gone, before anything has released the hand-off.
var ends = []struct {
	name string
	then []vllmtest.Step
}{
	{"a token", []vllmtest.Step{vllmtest.Tokens(11)}},
	{"a finish without a token", []vllmtest.Step{vllmtest.Finish(pb.FinishInfo_STOP)}},
	{"a finish with its token", []vllmtest.Step{vllmtest.FinishToken(pb.FinishInfo_LENGTH, 11)}},
	{"an abort", []vllmtest.Step{vllmtest.Finish(pb.FinishInfo_ABORTED)}},
	{"an error", []vllmtest.Step{vllmtest.Status(codes.Internal, "x")}},
	{"an early end", []vllmtest.Step{vllmtest.EOF()}},
	{"a broken message", []vllmtest.Step{delta(func(o *pb.SequenceOutput) { o.Index = 9 })}},
}

// cancelCases are the cells of the matrix of cancels.
var cancelCases = func() (cases []testCase) {
	for _, m := range moments {
		for _, a := range actions {
			cases = append(cases, testCase{
				name: a.name + " " + m.name, roles: "dap", fate: true, cut: true,
				script: func(p *play) []vllmtest.Step {
					return append(p.upTo(m.before), p.after([]vllmtest.Step{vllmtest.Tokens(21)})...)
				},
				act: func(ctx context.Context, p *play) error {
					frames := m.frames
					if p.role == harness.Prefill {
						frames = min(frames, 1)
					}
					return p.cancel(ctx, frames, a.do)
				},
			})
		}
	}
	for _, e := range ends {
		cases = append(cases, testCase{
			name: "kill before headers, then " + e.name, roles: "d", fate: true, cut: true,
			script: func(p *play) []vllmtest.Step { return append(p.upTo(nil), p.after(e.then)...) },
			act:    func(ctx context.Context, p *play) error { return p.cancel(ctx, 0, actions[0].do) },
		}, testCase{
			name: "kill after headers, then " + e.name, roles: "d", fate: true, cut: true,
			script: func(p *play) []vllmtest.Step { return append(p.upTo(moments[1].before), p.after(e.then)...) },
			act:    func(ctx context.Context, p *play) error { return p.cancel(ctx, 1, actions[0].do) },
		})
	}
	return cases
}()

// upTo lets the engine do the steps and then wait until it may go on, or its stream is dropped.
func (p *play) upTo(before []vllmtest.Step) []vllmtest.Step {
	steps := append([]vllmtest.Step{}, before...)
	return append(steps, vllmtest.Do(func(*vllmtest.Call) { close(p.moment) }), vllmtest.Wait(p.goOn))
}

// after lets the engine do the steps and then, unless they were its end, wait until its stream is dropped or the case is over.
func (p *play) after(then []vllmtest.Step) []vllmtest.Step {
	steps := append([]vllmtest.Step{}, then...)
	return append(steps, vllmtest.Wait(p.ending), vllmtest.Finish(pb.FinishInfo_ABORTED))
}

// cancel lets the client go when the engine is at its moment, sees what worker and engine do about it while the engine stands
// still, lets the engine go on, and waits for the end.
func (p *play) cancel(ctx context.Context, frames int, do func(r *reply) error) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	select {
	case <-p.moment:
	case <-ctx.Done():
		return fmt.Errorf("the engine never came to its moment: %w", ctx.Err())
	}
	if err := p.reply.dialled(ctx); err != nil {
		return err
	}
	if err := p.reply.has(ctx, frames); err != nil {
		return err
	}
	if err := do(p.reply); err != nil {
		return err
	}
	p.settle(ctx, func() bool { _, _, end := p.reply.taken(); return end != nil })
	_, _, end := p.reply.taken()
	p.hungUp = strconv.FormatBool(end != nil)
	p.settle(ctx, func() bool { return p.engineHas(vllmtest.Aborted) && p.engineHas(vllmtest.Dropped) })
	p.told = strconv.FormatBool(p.engineHas(vllmtest.Aborted) || p.engineHas(vllmtest.Dropped))
	close(p.goOn)
	p.settle(ctx, func() bool {
		return (p.engineHas(vllmtest.Dropped) || p.engineHas(vllmtest.Ended)) && p.engineHas(vllmtest.Aborted)
	})
	close(p.ending)
	return p.reply.over(ctx)
}

// lull is how long the engine may hear nothing before a case takes it that nothing will come.
const lull = 1500 * time.Millisecond

// settle waits until what holds, or for a lull: that something does not happen has no event.
func (p *play) settle(ctx context.Context, what func() bool) {
	ctx, stop := context.WithTimeout(ctx, lull)
	defer stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !what() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (p *play) engineHas(kind vllmtest.Kind) bool { return p.side.engine.Count(kind, p.id) > 0 }
