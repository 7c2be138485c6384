package core

import (
	"errors"
	"fmt"
)

// ErrInvariant is wrapped by Check.
var ErrInvariant = errors.New("core: invariant broken")

// Check walks all block tables, holds and lists and says what does not fit together. It is for tests and costs as much as the
// pool is large.
func (e *Engine) Check() error {
	refs := make([]int, len(e.pool.blocks))
	refs[0] = 1
	for id, s := range e.seqs {
		if s.state == ended || id != s.req.ID {
			return fmt.Errorf("%w: %s is listed and ended", ErrInvariant, id)
		}
		if s.computed > len(s.table)*e.cfg.BlockSize {
			return fmt.Errorf("%w: %s has %d tokens computed in %d blocks", ErrInvariant, id, s.computed, len(s.table))
		}
		if err := countRefs(refs, s.table, id); err != nil {
			return err
		}
	}
	for _, h := range e.holds {
		if err := countRefs(refs, h.table, "hold "+h.id); err != nil {
			return err
		}
	}
	if err := e.checkLists(); err != nil {
		return err
	}
	if err := e.checkWriters(refs); err != nil {
		return err
	}
	return e.pool.check(refs)
}

// checkWriters: what a request or its transfer will still write into is nobody else's.
func (e *Engine) checkWriters(refs []int) error {
	for id, s := range e.seqs {
		for _, block := range s.table[s.computed/e.cfg.BlockSize:] {
			if refs[block] != 1 {
				return fmt.Errorf("%w: %s writes into block %d, which has %d owners", ErrInvariant, id, block, refs[block])
			}
		}
	}
	return nil
}

// countRefs adds one reference for each block; a table never names a block twice, and never the null block.
func countRefs(refs []int, table []int, owner string) error {
	seen := make(map[int]bool, len(table))
	for _, id := range table {
		if id == 0 || seen[id] {
			return fmt.Errorf("%w: %s names block %d wrongly", ErrInvariant, owner, id)
		}
		seen[id] = true
		refs[id]++
	}
	return nil
}

// checkLists compares the queue and the running list with the states.
func (e *Engine) checkLists() error {
	pending := 0
	for _, s := range e.seqs {
		if s.state == recvPending {
			pending++
		}
	}
	for _, s := range e.running {
		if s.state != running || e.seqs[s.req.ID] != s {
			return fmt.Errorf("%w: %s runs in state %d", ErrInvariant, s.req.ID, s.state)
		}
	}
	for _, s := range e.queue {
		if s.state != waiting && s.state != remoteWait || e.seqs[s.req.ID] != s {
			return fmt.Errorf("%w: %s is queued in state %d", ErrInvariant, s.req.ID, s.state)
		}
		if s.state == waiting && !s.received && len(s.table) > 0 {
			return fmt.Errorf("%w: %s waits with blocks", ErrInvariant, s.req.ID)
		}
	}
	if len(e.running)+len(e.queue)+pending != len(e.seqs) {
		return fmt.Errorf("%w: %d running, %d queued, %d receiving, %d live", ErrInvariant, len(e.running), len(e.queue), pending, len(e.seqs))
	}
	if len(e.running) > e.cfg.MaxSeqs {
		return fmt.Errorf("%w: %d running of %d", ErrInvariant, len(e.running), e.cfg.MaxSeqs)
	}
	return nil
}

// check compares the pool with the references that the tables have. A block with more than one is shared by prefix, so it is
// labelled.
func (p *pool) check(refs []int) error {
	free := 0
	prev := noBlock
	for id := p.head; id != noBlock; id = p.blocks[id].next {
		if !p.blocks[id].inFree || p.blocks[id].prev != prev || free >= len(p.blocks) {
			return fmt.Errorf("%w: free list at block %d", ErrInvariant, id)
		}
		prev = id
		free++
	}
	if free != p.free || prev != p.tail {
		return fmt.Errorf("%w: %d blocks in the free list, %d counted", ErrInvariant, free, p.free)
	}
	for id, b := range p.blocks {
		switch {
		case b.refs != refs[id]:
			return fmt.Errorf("%w: block %d has %d references, %d tables name it", ErrInvariant, id, b.refs, refs[id])
		case b.inFree != (b.refs == 0):
			return fmt.Errorf("%w: block %d with %d references, free %v", ErrInvariant, id, b.refs, b.inFree)
		case id > 0 && b.refs > 1 && !b.labelled:
			return fmt.Errorf("%w: block %d is shared and not cached", ErrInvariant, id)
		}
	}
	labelled := 0
	for hash, ids := range p.cached {
		if len(ids) == 0 {
			return fmt.Errorf("%w: empty cache entry", ErrInvariant)
		}
		for _, id := range ids {
			labelled++
			if !p.blocks[id].labelled || p.blocks[id].hash != hash {
				return fmt.Errorf("%w: block %d is cached under a hash that it does not have", ErrInvariant, id)
			}
		}
	}
	for _, b := range p.blocks {
		if b.labelled {
			labelled--
		}
	}
	if labelled != 0 {
		return fmt.Errorf("%w: %d cache entries without a block", ErrInvariant, labelled)
	}
	return nil
}
