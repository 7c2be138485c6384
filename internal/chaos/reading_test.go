package chaos

import (
	"slices"

	"google.golang.org/grpc/codes"

	"remora/internal/dynamo/protocol"
	"remora/internal/handoff"
	"remora/internal/translate"
	"remora/internal/vllm"
	serving "remora/internal/worker"
	pb "remora/proto/vllm"
)

// This file is a leg as the reader of its engine stream.

func (l *leg) onHeaders() {
	l.headers = true
	l.step(handoff.Event{Kind: handoff.EventHeaders}, nil)
	l.mark(atHeaders)
}

func (l *leg) onMessage(m *pb.GenerateResponse) {
	ev, out, failure := l.convert(m)
	l.freed = l.freed || ev.Tokens || ev.Finish != handoff.NotFinished
	l.finishRead = l.finishRead || ev.Finish != handoff.NotFinished
	l.bad = l.bad || ev.Bad
	l.stepWith(ev, out, failure)
	switch {
	case ev.Finish != handoff.NotFinished:
		l.mark(atEnd)
	case ev.Tokens && l.stream.messages == 2:
		l.mark(atFirst)
	case ev.Tokens:
		l.mark(atMiddle)
	}
}

// convert reads a message, with the real reading and conversion.
func (l *leg) convert(m *pb.GenerateResponse) (handoff.Event, frame, *protocol.Error) {
	ev := serving.MessageEvent(m)
	if l.distrusted {
		ev.Bad = true
		return ev, frame{}, nil
	}
	result, err := l.call.Response.Convert(m)
	if err != nil {
		l.distrusted, ev.Bad = true, true
		return ev, frame{}, &protocol.Error{Kind: protocol.ErrorBackendUnknown, Message: err.Error()}
	}
	if result.Output == nil {
		return ev, frame{}, nil
	}
	f := frame{tokens: slices.Clone(result.Output.TokenIDs), reason: result.Output.FinishReason, params: result.Output.DisaggregatedParams}
	if l.role == rolePrefill && result.Handoff && l.sent > 0 {
		f.params = translate.Stamp{
			Finished: l.sent + (l.now - l.started).Nanoseconds(), Lease: l.plan.lease, BlockSize: blockSize, Prompt: l.call.Prompt,
		}.Add(f.params)
	}
	return ev, f, nil
}

func (l *leg) onEnd(end vllm.Status) {
	l.ended = true
	kind := vllm.KindOf(end)
	declined := kind == vllm.InvalidArgument || kind == vllm.Overloaded
	failure := &protocol.Error{Kind: protocol.ErrorBackendUnknown}
	switch {
	case declined:
		failure.Kind = protocol.ErrorBackendInvalidArgument
	case kind == vllm.None:
		failure.Kind = protocol.ErrorBackendStreamIncomplete
	case kind == vllm.EngineDead || kind == vllm.Disconnected || kind == vllm.CannotConnect:
		failure.Kind = protocol.ErrorBackendEngineShutdown
	}
	l.step(handoff.Event{Kind: handoff.EventEnd, OK: end.Code == codes.OK, Unclaimed: declined}, failure)
	l.settle()
}

func (l *leg) mark(moment word) { l.conv.moment(l, moment) }

func eventName(ev handoff.Event) string {
	names := [...]string{
		"dispatch", "refuse", "cancel", "headers", "message", "end", "deadline", "patience", "abort refused", "lost", "shutdown", "cut",
	}
	return names[ev.Kind]
}
