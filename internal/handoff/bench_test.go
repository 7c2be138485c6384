package handoff_test

import (
	"testing"
	"time"

	"remora/internal/handoff"
)

// BenchmarkStep is what one message with a token costs the machine, and a whole answer of four.
func BenchmarkStep(b *testing.B) {
	config := handoff.Config{Role: handoff.Decode, HasParams: true, DrainDeadline: 30 * time.Second}
	b.Run("token", func(b *testing.B) {
		b.ReportAllocs()
		m := handoff.New(config)
		actions := m.Step(handoff.Event{Kind: handoff.EventDispatch}, nil)
		actions = m.Step(handoff.Event{Kind: handoff.EventHeaders}, actions[:0])
		for b.Loop() {
			actions = m.Step(handoff.Event{Kind: handoff.EventMessage, Tokens: true}, actions[:0])
		}
		if len(actions) != 1 || actions[0].Kind != handoff.ActEmit {
			b.Errorf("a token makes %v", actions)
		}
	})
	b.Run("answer", func(b *testing.B) {
		b.ReportAllocs()
		var actions []handoff.Action
		for b.Loop() {
			m := handoff.New(config)
			for _, event := range [...]handoff.Event{
				{Kind: handoff.EventDispatch}, {Kind: handoff.EventHeaders}, {Kind: handoff.EventMessage, Tokens: true},
				{Kind: handoff.EventMessage, Tokens: true}, {Kind: handoff.EventMessage, Tokens: true},
				{Kind: handoff.EventMessage, Tokens: true, Finish: handoff.FinishedWhole}, {Kind: handoff.EventEnd, OK: true},
			} {
				actions = m.Step(event, actions[:0])
			}
			if m.State() != handoff.Done {
				b.Fatalf("ended in %v", m.State())
			}
		}
	})
}
