package core

import (
	"math"
	"slices"
)

// sample picks the next token of a sequence out of the digest of its step.
func (m *model) sample(s *sequence) Token {
	m.compute(s.digest, s.tokens)
	copy(m.work, m.raw)
	m.penalize(s)
	m.mask(s)
	p := &s.req.Sampling
	var id uint32
	if p.Temperature > 0 {
		id = m.draw(p, s.generated())
	} else {
		id = argmax(m.work)
	}
	if p.Logprobs == nil {
		return Token{Score: Score{ID: id}}
	}
	return m.rate(id, *p.Logprobs, p.LogprobIDs)
}

// penalize applies penalties and the bias to the working logits.
func (m *model) penalize(s *sequence) {
	p := &s.req.Sampling
	if p.PresencePenalty != 0 || p.FrequencyPenalty != 0 {
		m.count(s.tokens[len(s.req.Prompt):])
		for t, n := range m.counts {
			if n > 0 {
				m.work[t] -= p.PresencePenalty + p.FrequencyPenalty*float64(n)
			}
		}
	}
	if p.RepetitionPenalty != 0 && p.RepetitionPenalty != 1 {
		m.count(s.tokens)
		for t, n := range m.counts {
			switch {
			case n == 0:
			case m.work[t] > 0:
				m.work[t] /= p.RepetitionPenalty
			default:
				m.work[t] *= p.RepetitionPenalty
			}
		}
	}
	for t, bias := range p.Bias {
		m.work[t] += bias
	}
}

func (m *model) count(tokens []uint32) {
	clear(m.counts)
	for _, t := range tokens {
		m.counts[t]++
	}
}

// mask rules out what the request does not allow.
func (m *model) mask(s *sequence) {
	p := &s.req.Sampling
	if len(p.Allowed) > 0 {
		m.keepOnly(p.Allowed)
	}
	if s.generated() < s.req.MinTokens && len(p.Choices) == 0 {
		m.work[m.vocab.EOS] = math.Inf(-1)
		for _, t := range s.req.StopTokens {
			m.work[t] = math.Inf(-1)
		}
	}
	for _, bad := range p.BadWords {
		last := len(bad) - 1
		if slices.Equal(tail(s.tokens, last), bad[:last]) {
			m.work[bad[last]] = math.Inf(-1)
		}
	}
	if len(p.Choices) > 0 {
		m.keepOnly(continuations(p.Choices, s.tokens[len(s.req.Prompt):], m.vocab.EOS))
	}
}

func tail(tokens []uint32, n int) []uint32 { return tokens[max(0, len(tokens)-n):] }

// keepOnly rules out all tokens but these.
func (m *model) keepOnly(ids []uint32) {
	kept := make([]float64, len(ids))
	for i, t := range ids {
		kept[i] = m.work[t]
	}
	for t := range m.work {
		m.work[t] = math.Inf(-1)
	}
	for i, t := range ids {
		m.work[t] = kept[i]
	}
}

// continuations lists what may follow the output if it has to become one of the choices.
func continuations(choices [][]uint32, output []uint32, eos uint32) []uint32 {
	var next []uint32
	for _, c := range choices {
		if len(output) > len(c) || !slices.Equal(c[:len(output)], output) {
			continue
		}
		if len(output) == len(c) {
			next = append(next, eos)
		} else {
			next = append(next, c[len(output)])
		}
	}
	if len(next) == 0 {
		next = append(next, eos)
	}
	return next
}

// draw samples at a temperature: limits first, then the largest of the logits with Gumbel noise, which is a draw from their
// softmax. The noise depends on the seed, the position and the token only.
func (m *model) draw(p *Sampling, pos int) uint32 {
	for t := range m.work {
		m.work[t] /= p.Temperature
	}
	m.limit(p)
	noise := scatter(p.Seed + uint64(pos)*golden)
	for t := range m.work {
		u := unit(scatter(noise^uint64(t+1)*golden)) + 0x1p-54
		m.work[t] -= math.Log(-math.Log(u))
	}
	return argmax(m.work)
}

// limit applies top-k, top-p and min-p.
func (m *model) limit(p *Sampling) {
	if p.TopK == 0 && (p.TopP == 0 || p.TopP == 1) && p.MinP == 0 {
		return
	}
	order := descending(m.work)
	total := logSumExp(m.work)
	best := m.work[order[0]]
	sum := 0.0
	for i, t := range order {
		prob := math.Exp(m.work[t] - total)
		beyond := p.TopK > 0 && i >= p.TopK ||
			p.TopP > 0 && i > 0 && sum >= p.TopP ||
			p.MinP > 0 && m.work[t] < best+math.Log(p.MinP)
		sum += prob
		if beyond {
			m.work[t] = math.Inf(-1)
		}
	}
}

// rate gives a token its log probability and rank under the model's own logits, whatever the request did to them, with the
// top candidates or those with the given ids.
func (m *model) rate(id uint32, top int, ids []uint32) Token {
	total := logSumExp(m.raw)
	tok := Token{Score: Score{ID: id, Logprob: m.raw[id] - total, Rank: 1}}
	for _, logit := range m.raw {
		if logit > m.raw[id] {
			tok.Rank++
		}
	}
	if ids == nil && top > 0 {
		ids = descending(m.raw)[:min(top, len(m.raw))]
	}
	for i, t := range ids {
		tok.Candidates = append(tok.Candidates, Score{ID: t, Logprob: m.raw[t] - total, Rank: i + 1})
	}
	return tok
}

func argmax(logits []float64) uint32 {
	best := 0
	for t, logit := range logits {
		if logit > logits[best] {
			best = t
		}
	}
	return uint32(best)
}

// descending lists token ids by falling logit, ties by id.
func descending(logits []float64) []uint32 {
	order := make([]uint32, len(logits))
	for t := range order {
		order[t] = uint32(t)
	}
	slices.SortStableFunc(order, func(a, b uint32) int {
		switch {
		case logits[a] > logits[b]:
			return -1
		case logits[a] < logits[b]:
			return 1
		default:
			return 0
		}
	})
	return order
}

func logSumExp(logits []float64) float64 {
	best := slices.Max(logits)
	sum := 0.0
	for _, logit := range logits {
		sum += math.Exp(logit - best)
	}
	return best + math.Log(sum)
}
