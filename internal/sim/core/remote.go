package core

import "time"

// This file is the receiving side of a hand-off.

// fetch gives a request all the blocks of its prompt and asks for the content of those that the prefix cache does not have.
// It says false when the request has to stay where it is, which is until there are more blocks than running prompts still need: a
// transfer keeps its own for as long as it likes. A malformed hand-off has the real engine's consequences.
func (e *Engine) fetch(s *sequence, hits []int) bool {
	if !e.allot(s, hits, len(s.tokens), e.promised()) {
		return false
	}
	src := s.req.Transfer.Consume
	local := s.table[len(hits):]
	if src.Defect == NoBlocks || src.Defect == BadBlocks || src.Defect == Sound && len(src.Blocks) < len(local) {
		e.die()
		return false
	}
	hit := len(hits) * e.cfg.BlockSize
	e.countPrefix(s, hit, true)
	e.counts.ExternalQueries += len(s.tokens) - hit
	s.remote, s.state, s.computed, s.local = false, remoteWait, hit, local
	s.cached = len(s.req.Prompt)
	if src.Defect == MissingKey {
		return true // nobody ever fetches it
	}
	e.counts.Reads++
	// Blocks are matched from the end of the list: the source's may begin earlier, never later.
	e.plan.Reads = append(e.plan.Reads, Read{ID: s.req.ID, Source: *src, Blocks: src.Blocks[len(src.Blocks)-len(local):]})
	return true
}

// ReadDone delivers the blocks that a Read asked for, in its order. The content is believed.
func (e *Engine) ReadDone(id string, blocks [][]uint64) {
	s, ok := e.reading(id)
	if !ok {
		return
	}
	if len(blocks) != len(s.local) {
		e.ReadFailed(id)
		return
	}
	for _, slots := range blocks {
		if len(slots) != e.cfg.BlockSize {
			e.ReadFailed(id)
			return
		}
	}
	for i, slots := range blocks {
		e.pool.write(s.local[i], slots)
	}
	e.counts.ReadsDone++
	if s.state == recvPending {
		e.counts.ReceivedAfterEnd++
		if e.cfg.CrashLateReceive {
			e.die()
			return
		}
		e.drop(s)
		return
	}
	s.received = true
}

// ReadFailed says that a Read will not be answered.
func (e *Engine) ReadFailed(id string) {
	s, ok := e.reading(id)
	if !ok {
		return
	}
	e.counts.ReadsFailed++
	if s.state == recvPending {
		e.drop(s)
		return
	}
	s.failed = true
}

// reading finds the request of a transfer that has not ended yet. A second report of one is ignored.
func (e *Engine) reading(id string) (*sequence, bool) {
	s, ok := e.seqs[id]
	if !ok || s.received || s.failed || s.state != remoteWait && s.state != recvPending {
		return nil, false
	}
	return s, true
}

// takeReceived moves requests whose transfer has ended on.
func (e *Engine) takeReceived() {
	var failed []*sequence
	for _, s := range e.queue {
		switch {
		case s.state != remoteWait:
		case s.failed:
			failed = append(failed, s)
		case s.received:
			// All blocks are hashed as if right; then the last token is computed again, for something to sample from.
			e.counts.ExternalHits += len(s.tokens) - s.computed
			from := s.computed / e.cfg.BlockSize
			s.computed = len(s.tokens)
			e.labelFull(s, from)
			s.computed--
			s.state, s.beating, s.local = waiting, false, nil
		}
	}
	for _, s := range failed {
		e.queue = without(e.queue, s)
		e.drop(s)
		e.report(s, Output{Reason: Failed})
	}
}

// beat renews the leases of everything that is still to be fetched, all at once and a few times a lease.
func (e *Engine) beat(now time.Duration) {
	if now < e.nextBeat {
		return
	}
	var beats []Beat
	index := make(map[string]int)
	for _, s := range e.queue {
		if !s.beating {
			continue
		}
		src := *s.req.Transfer.Consume
		i, ok := index[src.EngineID]
		if !ok {
			i = len(beats)
			index[src.EngineID] = i
			beats = append(beats, Beat{Source: src})
		}
		beats[i].RequestIDs = append(beats[i].RequestIDs, src.RequestID)
	}
	if len(beats) > 0 {
		e.nextBeat = now + e.cfg.Lease/6
		e.plan.Beats = beats
	}
}
