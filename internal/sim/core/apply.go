package core

import (
	"slices"
	"time"
)

// Apply ends the step that Schedule began: requests whose KV is complete get their next token. A request that was cancelled in
// between gets nothing, also when this would have been its last token.
func (e *Engine) Apply(now time.Duration) {
	for _, s := range e.batch {
		if s.state != running || !s.sampleDue {
			continue
		}
		s.sampleDue = false
		token := e.model.sample(s)
		s.tokens = append(s.tokens, token.ID)
		e.counts.GeneratedTokens++
		out := Output{Token: &token}
		out.Reason = e.verdict(s, token.ID)
		if out.Reason == Stop {
			out.StopToken, out.StopEOS = token.ID, token.ID == e.cfg.Vocab.EOS && !s.req.IgnoreEOS
		}
		if out.Reason != Running {
			out.HandOff = e.finish(s, now)
		}
		e.report(s, out)
	}
	e.batch = e.batch[:0]
	e.journal.publish()
}

// verdict says whether a token ends its request.
func (e *Engine) verdict(s *sequence, token uint32) Reason {
	if s.generated() >= s.req.MinTokens || len(s.req.Sampling.Choices) > 0 {
		if token == e.cfg.Vocab.EOS && !s.req.IgnoreEOS || slices.Contains(s.req.StopTokens, token) {
			return Stop
		}
	}
	if s.generated() >= s.req.MaxTokens || len(s.tokens) >= e.cfg.MaxModelLen {
		return Length
	}
	return Running
}

// finish takes a request that ended by itself out of the engine. Its blocks are held when it is a prefill for somebody else.
func (e *Engine) finish(s *sequence, now time.Duration) *HandOff {
	e.running = without(e.running, s)
	if !s.req.Transfer.Produce {
		e.drop(s)
		return nil
	}
	h := &HandOff{
		EngineID:  e.cfg.EngineID,
		RequestID: s.req.ID,
		Blocks:    slices.Clone(s.table),
		NumTokens: s.computed,
	}
	if s.generated() == 1 {
		cached := s.cached
		h.Cached = &cached
	}
	e.holds = append(e.holds, &hold{id: s.req.ID, table: s.table, deadline: now + e.cfg.Lease})
	e.counts.HandOffs++
	s.table = nil // the hold owns the references now
	e.drop(s)
	return h
}
