package core

import "time"

// Schedule begins a step: it takes up what has arrived since the last one, gives blocks and tokens to requests, computes their
// KV, and returns what the outside has to do. When the plan is Busy, Apply follows after the time that the step takes.
//
// The order is the real scheduler's: running requests first, oldest first; the newest one is preempted when blocks run out;
// then the queue, in order, as long as nothing was preempted. Requests that wait for a transfer are passed over. A pause ends
// this early; what comes from other engines is taken up all the same.
func (e *Engine) Schedule(now time.Duration) Plan {
	if e.dead {
		return Plan{}
	}
	e.batch = e.batch[:0]
	if e.doomed {
		e.die()
		return Plan{}
	}
	e.settle(now)
	b := budget{tokens: e.cfg.MaxBatchedTokens, prompt: e.cfg.PrefillTokens}
	if e.paused != PauseAll && !e.scheduleRunning(&b) {
		e.scheduleQueue(&b)
	}
	if e.dead {
		return Plan{}
	}
	e.beat(now)
	plan := e.plan
	e.plan = Plan{}
	plan.Busy = len(e.batch) > 0
	switch {
	case plan.Busy:
		e.counts.Steps++
	case e.paused == PauseNone && len(e.seqs)+len(e.holds) > 0: // a step all the same, of which Apply has nothing to do
		e.journal.publish()
	}
	return plan
}

// budget is what is left of a step.
type budget struct{ tokens, prompt int }

// grant takes up to need tokens out of the budget. A single one is a decode and not limited by the prefill speed.
func (b *budget) grant(need int) int {
	n := min(need, b.tokens)
	if need > 1 {
		n = min(n, b.prompt)
	}
	return n
}

func (b *budget) spend(n int) {
	b.tokens -= n
	if n > 1 {
		b.prompt -= n
	}
}

// scheduleRunning says whether anything was preempted.
func (e *Engine) scheduleRunning(b *budget) bool {
	preempted := false
	for i := 0; i < len(e.running); i++ { //nolint:intrange // preemption shortens the list
		s := e.running[i]
		n := b.grant(len(s.tokens) - s.computed)
		if n == 0 {
			continue
		}
		fits := e.grow(s, s.computed+n)
		for !fits {
			victim := e.running[len(e.running)-1]
			e.preempt(victim)
			preempted = true
			if victim == s {
				break
			}
			fits = e.grow(s, s.computed+n)
		}
		if fits {
			b.spend(n)
			e.forward(s, n)
		}
	}
	return preempted
}

// scheduleQueue starts what fits: first the requests whose transfer has ended, which hold blocks already and are not kept back by
// a pause either, then the others. The first of these that does not fit stops the rest, so nobody is overtaken for ever.
func (e *Engine) scheduleQueue(b *budget) {
	var started []*sequence
	for _, received := range []bool{true, false} {
		if !received && e.paused != PauseNone {
			break
		}
		for _, s := range e.queue {
			if s.state == remoteWait || s.received != received {
				continue
			}
			if b.tokens <= 0 || len(e.running) >= e.cfg.MaxSeqs || !e.start(s, b) {
				break
			}
			if s.state == running {
				e.running = append(e.running, s)
				started = append(started, s)
			}
		}
	}
	for _, s := range started {
		e.queue = without(e.queue, s)
	}
}

// start gives a queued request its first blocks. It says false when the request has to stay where it is.
func (e *Engine) start(s *sequence, b *budget) bool {
	if s.received { // has all its blocks
		n := b.grant(len(s.tokens) - s.computed)
		if n == 0 {
			return false
		}
		s.state = running
		b.spend(n)
		e.forward(s, n)
		return true
	}
	reads := !s.req.BypassCache && s.req.PromptLogprobs == nil
	var hits []int
	if reads {
		hits = e.lookup(s)
	}
	hit := len(hits) * e.cfg.BlockSize
	if s.remote && reads {
		return e.fetch(s, hits)
	}
	n := b.grant(len(s.tokens) - hit)
	if n == 0 || !e.allot(s, hits, hit+n, 0) {
		return false
	}
	if s.remote { // computed here after all: the source has nothing to wait for
		s.remote, s.beating = false, false
		if src := s.req.Transfer.Consume; src.Defect != NoBlocks && src.Defect != MissingKey {
			e.notify(src)
		}
	}
	s.state, s.computed = running, hit
	e.countPrefix(s, hit, reads)
	b.spend(n)
	e.forward(s, n)
	return true
}

// countPrefix books a prompt once, at its first start.
func (e *Engine) countPrefix(s *sequence, hit int, queried bool) {
	if s.cached >= 0 {
		return
	}
	s.cached = hit
	e.counts.PromptTokens += len(s.req.Prompt)
	if queried {
		e.counts.CacheQueries += len(s.req.Prompt)
		e.counts.CacheHits += hit
	}
}

// lookup finds the longest chain of cached blocks. The last token is never taken from the cache: something has to be computed.
func (e *Engine) lookup(s *sequence) []int {
	full := (len(s.tokens) - 1) / e.cfg.BlockSize
	var hits []int
	for k := range full {
		id, ok := e.pool.hit(e.hash(s, k))
		if !ok {
			break
		}
		hits = append(hits, id)
	}
	return hits
}

// hash names the k-th block of a request. Hashes depend on tokens and media only and are kept.
func (e *Engine) hash(s *sequence, k int) uint64 {
	for len(s.hashes) <= k {
		i := len(s.hashes)
		parent := hashString(s.req.CacheSalt) ^ scatter(e.cfg.HashSeed)
		if i > 0 {
			parent = s.hashes[i-1]
		}
		start, end := i*e.cfg.BlockSize, (i+1)*e.cfg.BlockSize
		hash := blockHash(parent, s.tokens[start:end])
		for _, key := range mediaKeys(s.req.Media, start, end) {
			hash = key.hash(hash)
		}
		s.hashes = append(s.hashes, hash)
	}
	return s.hashes[k]
}

// allot builds a block table for the first n tokens out of cached blocks and new ones, all or nothing: nothing, too, when there
// are blocks for these but not for all tokens that the request has, the spared ones left alone. So prompts that are taken in bit
// by bit do not end up waiting for each other's blocks.
func (e *Engine) allot(s *sequence, hits []int, n, spared int) bool {
	need := e.blocksFor(len(s.tokens)) - len(hits)
	idle := 0
	for _, id := range hits {
		if e.pool.blocks[id].inFree {
			idle++
		}
	}
	if need > e.pool.free-idle-spared {
		return false
	}
	for _, id := range hits {
		e.pool.share(id)
	}
	s.table = append([]int(nil), hits...)
	return e.grow(s, n)
}

// promised counts the blocks that running requests still need for tokens that they have.
func (e *Engine) promised() int {
	n := 0
	for _, s := range e.running {
		n += max(0, e.blocksFor(len(s.tokens))-len(s.table))
	}
	return n
}

// grow extends the block table to n tokens, all or nothing.
func (e *Engine) grow(s *sequence, n int) bool {
	need := e.blocksFor(n) - len(s.table)
	if need > e.pool.free {
		return false
	}
	for range need {
		if hash, ok := e.pool.next(); ok {
			e.journal.removed(hash)
		}
		s.table = append(s.table, e.pool.take())
	}
	return true
}

func (e *Engine) blocksFor(tokens int) int { return (tokens + e.cfg.BlockSize - 1) / e.cfg.BlockSize }

// preempt takes all blocks from a running request and puts it in front of the queue. It keeps its tokens.
func (e *Engine) preempt(s *sequence) {
	e.running = without(e.running, s)
	e.pool.release(s.table)
	s.table, s.computed, s.state, s.received, s.scores = nil, 0, waiting, false, nil
	e.queue = append([]*sequence{s}, e.queue...)
	e.counts.Preemptions++
}

// forward computes the KV of the next n tokens out of all slots before them, read again from the pool, and enters the blocks
// that became full into the prefix cache: later requests of this very step can hit them.
func (e *Engine) forward(s *sequence, n int) {
	digest := e.pool.digest(e.model.start, s.table, s.computed)
	before := s.computed / e.cfg.BlockSize
	for range n {
		token := s.tokens[s.computed]
		e.scorePrompt(s, digest)
		value := slotValue(digest, token) ^ look(s.req.Media, s.computed)
		*e.pool.slot(s.table, s.computed) = value
		digest = fold(digest, value)
		s.computed++
	}
	e.labelFull(s, before)
	s.digest, s.sampleDue = digest, s.computed == len(s.tokens)
	e.batch = append(e.batch, s)
}

// labelFull enters the full blocks from the given one on into the prefix cache.
func (e *Engine) labelFull(s *sequence, from int) {
	to := s.computed / e.cfg.BlockSize
	if from < to && e.pool.blocks[s.table[from]].labelled { // received whole, and its last token computed again
		from++
	}
	if from >= to {
		return
	}
	for k := from; k < to; k++ {
		e.pool.label(s.table[k], e.hash(s, k))
	}
	e.journal.stored(s, from, to, e.cfg.BlockSize)
}

// scorePrompt rates the prompt token at the computed position, if the request wants that.
func (e *Engine) scorePrompt(s *sequence, digest uint64) {
	pos := s.computed
	if s.req.PromptLogprobs == nil || s.scoresSent || pos >= len(s.req.Prompt) {
		return
	}
	if pos == 0 {
		s.scores = append(s.scores, Token{})
		return
	}
	e.model.compute(digest, s.tokens[:pos])
	s.scores = append(s.scores, e.model.rate(s.tokens[pos], *s.req.PromptLogprobs, nil))
}
