package eventplanetest

import (
	"fmt"

	"remora/internal/dynamo/eventplane"
)

// Router is what a stock router knows of one rank. It gets the rank's messages, and asks for what it misses:
// an id that is not the next is a gap, and the router asks from the first missing one on; ids at or below the last are
// ignored. A stored event whose parent is unknown is dropped. A removed block takes with it what is behind it, until that is
// told again. The zero Router knows nothing.
type Router struct {
	Ask func(start *uint64) (Answer, error) // the recovery query; nil: the rank is emptied at a gap

	WorkerID uint64
	Rank     uint32

	last    uint64
	started bool
	tiers   [4]index

	Orphans int // stored events that were dropped because their parent was unknown
	Gaps    int
}

// index is one tier: blocks by the engine's hash, and each one's continuations by their tokens.
type index struct {
	root   *block
	lookup map[uint64]*block
}

type block struct {
	children map[uint64]*block
	gone     bool
}

// Join is what a router does when it learns of the rank: it asks for everything.
func (r *Router) Join() error {
	answer, err := r.Ask(nil)
	if err != nil {
		return err
	}
	return r.accept(answer)
}

// Message takes one message of the rank.
func (r *Router) Message(frames [][]byte) error {
	m, err := DecodeMessage(frames)
	if err != nil {
		return err
	}
	events, err := DecodeEvents(m.Payload)
	if err != nil {
		return err
	}
	for _, e := range events {
		if e.WorkerID != r.WorkerID || e.Rank != r.Rank {
			return fmt.Errorf("%w: event of worker %d, rank %d", ErrMessage, e.WorkerID, e.Rank)
		}
	}
	for _, e := range events {
		if err := r.event(e); err != nil {
			return err
		}
	}
	return nil
}

func (r *Router) event(e RouterEvent) error {
	switch {
	case r.started && e.ID <= r.last:
		return nil
	case r.started && e.ID != r.last+1:
		r.Gaps++
		if r.Ask == nil {
			r.tiers = [4]index{}
			break
		}
		start := r.last + 1
		answer, err := r.Ask(&start)
		if err != nil {
			return err
		}
		if err := r.accept(answer); err != nil {
			return err
		}
		if e.ID <= r.last {
			return nil
		}
	}
	r.started, r.last = true, e.ID
	r.apply(e)
	return nil
}

func (r *Router) accept(a Answer) error {
	switch a.Kind {
	case "Events":
	case "TreeDump":
		r.tiers = [4]index{}
	default:
		return fmt.Errorf("%w: the answer %q freezes the rank or gives up the gap", ErrMessage, a.Kind)
	}
	for _, e := range a.Events {
		if a.Kind == "Events" && e.ID <= r.last {
			continue
		}
		r.apply(e)
	}
	r.started, r.last = true, a.Last
	return nil
}

func (r *Router) apply(e RouterEvent) {
	tier := &r.tiers[e.Tier]
	if tier.root == nil {
		tier.root, tier.lookup = &block{children: map[uint64]*block{}}, map[uint64]*block{}
	}
	switch e.Kind {
	case eventplane.Cleared:
		r.tiers = [4]index{}
	case eventplane.Removed:
		for _, hash := range e.Hashes {
			if b := tier.lookup[hash]; b != nil {
				b.gone = true
				clear(b.children)
				delete(tier.lookup, hash)
			}
		}
	case eventplane.Stored:
		at := tier.root
		if e.HasParent {
			if at = tier.lookup[e.Parent]; at == nil {
				for _, faster := range r.tiers[:e.Tier] {
					if faster.lookup[e.Parent] != nil {
						at = tier.root // a chain that continues another tier's; Match does not look behind it
					}
				}
			}
			if at == nil {
				r.Orphans++
				return
			}
		}
		for _, b := range e.Blocks {
			next := at.children[b.TokensHash]
			if next == nil || next.gone {
				if next = tier.lookup[b.Hash]; next == nil {
					next = &block{children: map[uint64]*block{}}
				}
				at.children[b.TokensHash] = next
			}
			tier.lookup[b.Hash] = next
			at = next
		}
	}
}

// Match is how many blocks of a prompt, given by the hashes of their tokens, the router believes to be in the rank's device
// tier.
func (r *Router) Match(tokens ...uint64) int {
	at := r.tiers[eventplane.Device].root
	for i, hash := range tokens {
		if at == nil || at.children[hash] == nil || at.children[hash].gone {
			return i
		}
		at = at.children[hash]
	}
	return len(tokens)
}

// Knows tells whether the router knows a block by its hash in a tier.
func (r *Router) Knows(tier eventplane.Tier, hash uint64) bool {
	return r.tiers[tier].lookup[hash] != nil
}

// Last is the id of the newest event that the router has.
func (r *Router) Last() uint64 { return r.last }
