package eventplane

// cache is what a rank's engine holds, in all tiers. It turns the engine's events into those that a router can follow: a block
// that was stored several times is removed when it was removed as often; one whose parent is not known waits for it; one that
// comes back under other tokens or another parent is removed first; what is behind a block that comes back is told again.
type cache struct {
	trees [External + 1]*tree
	limit int    // most blocks in all tiers together
	era   uint32 // see doubt

	held      uint64 // blocks that had to wait for a parent, ever
	overflows uint64 // how often everything was dropped because of the limit
}

func newCache(limit int) *cache {
	c := &cache{limit: limit}
	c.reset()
	return c
}

func (c *cache) reset() {
	for i := range c.trees {
		c.trees[i] = newTree()
	}
}

// stored is the number of blocks in a tier.
func (c *cache) stored(tier Tier) int { return c.trees[tier].stored }

func (c *cache) total() (n int) {
	for _, t := range c.trees {
		n += t.stored
	}
	return n
}

// doubt says that events were lost: how often the blocks known so far are stored is uncertain. The next removal of one counts,
// and the next store begins a new count. Routers keep them until then: one that is gone costs a request its advantage, once,
// while a router that forgets a prefix which the engine keeps never learns of it again.
func (c *cache) doubt() { c.era++ }

// apply takes one event of the engine and emits those for the routers. They share the event's slices.
func (c *cache) apply(e Event, emit func(Event)) {
	if int(e.Tier) >= len(c.trees) {
		return
	}
	switch e.Kind {
	case Stored:
		e.Blocks = e.Blocks[:min(len(e.Blocks), c.limit)]
		if c.total()+len(e.Blocks) > c.limit {
			c.overflows++
			c.reset()
			emit(Event{Kind: Cleared})
		}
		if len(e.Blocks) > 0 {
			c.store(&e, emit)
		}
	case Removed:
		c.remove(e, emit)
	case Cleared:
		c.reset()
		emit(Event{Kind: Cleared, SessionID: e.SessionID})
	}
}

// known tells whether a block of the tier can follow that parent at a router: it has been announced there or in a faster tier.
func (c *cache) known(tier Tier, parent uint64) bool {
	for _, t := range c.trees[:tier+1] {
		if at := t.find(parent); at != none && t.nodes[at].known {
			return true
		}
	}
	return false
}

func (c *cache) store(e *Event, emit func(Event)) {
	t := c.trees[e.Tier]
	parent, known := int32(none), true
	if e.HasParent {
		parent, known = t.place(e.Parent), c.known(e.Tier, e.Parent)
	}
	var back []uint64 // blocks whose descendants are here already
	run := Event{Kind: Stored, Tier: e.Tier, SessionID: e.SessionID, Parent: e.Parent, HasParent: e.HasParent}
	first := 0 // of the run
	flush := func(end int) {
		if run.Blocks = e.Blocks[first:end]; len(run.Blocks) > 0 {
			emit(run)
		}
	}
	above, hasAbove := e.Parent, e.HasParent // the hash of parent
	for i := range e.Blocks {
		b := &e.Blocks[i]
		at := t.find(b.Hash)
		same := at != none && t.same(at, parent, b)
		if !same && hasAbove && (b.Hash == above || t.circle(b.Hash, parent)) {
			flush(i) // no block comes before itself: the engine is wrong about the rest, too
			first = len(e.Blocks)
			break
		}
		if at != none && !same {
			flush(i)
			first, run.Parent, run.HasParent = i, above, hasAbove
			c.drop(e.Tier, at)
			emit(Event{Kind: Removed, Tier: e.Tier, SessionID: e.SessionID, Hashes: []uint64{b.Hash}})
			at = none
			if hasAbove { // it may have been a ghost for the sake of at alone, or behind it
				parent, known = t.place(above), c.known(e.Tier, above)
			}
		}
		var news bool // something that routers can and do not know yet
		if at == none {
			at = t.place(b.Hash)
			t.store(at, parent, b, c.era)
			news = known
			if !known {
				c.held++
			}
		} else {
			t.again(at, c.era)
			news = known && !t.nodes[at].known
		}
		if news {
			t.nodes[at].known = true
			if c.parentOf(e.Tier, at, b.Hash) {
				back = append(back, b.Hash)
			}
		} else {
			flush(i)
			first, run.Parent, run.HasParent = i+1, b.Hash, true
		}
		known = t.nodes[at].known || e.Tier > Device && c.known(e.Tier, b.Hash)
		parent, above, hasAbove = at, b.Hash, true
	}
	flush(len(e.Blocks))
	if e.HasParent {
		if at, ok := t.index[e.Parent]; ok {
			t.bury(at) // nothing came under it after all
		}
	}
	for _, hash := range back {
		if c.known(e.Tier, hash) { // still: an engine may store a block twice at once, in two places
			c.announce(e.Tier, hash, emit)
		}
	}
}

// parentOf tells whether blocks that routers do not know may wait for this one.
func (c *cache) parentOf(tier Tier, at int32, hash uint64) bool {
	if c.trees[tier].nodes[at].child != none {
		return true
	}
	for _, t := range c.trees[tier+1:] {
		if len(t.index) > 0 {
			if _, ok := t.index[hash]; ok {
				return true
			}
		}
	}
	return false
}

// announce tells what is behind a block that routers know now, in its tier and the slower ones.
func (c *cache) announce(tier Tier, hash uint64, emit func(Event)) {
	for i, t := range c.trees[tier:] {
		top, ok := t.index[hash]
		if !ok {
			continue
		}
		w := walk{tree: t, tier: tier + Tier(i), emit: emit}
		for at := t.after(top, top, true); at != none; {
			news := !t.nodes[at].known
			if news {
				t.nodes[at].known = true
				w.add(at)
			}
			at = t.after(at, top, news)
		}
		w.flush()
	}
}

func (c *cache) remove(e Event, emit func(Event)) {
	t := c.trees[e.Tier]
	gone := e.Hashes[:0]
	for _, hash := range e.Hashes {
		at := t.find(hash)
		if at == none || !t.less(at, c.era) {
			continue
		}
		c.drop(e.Tier, at)
		gone = append(gone, hash)
	}
	if e.Hashes = gone; len(gone) > 0 {
		emit(e)
	}
}

// drop removes a block; routers do not know any more what is behind it.
func (c *cache) drop(tier Tier, at int32) {
	c.trees[tier].nodes[at].known = false
	c.lose(tier, at)
	c.trees[tier].remove(at)
}

// lose notes that what is below a node is not known any more, in the node's tier and in slower ones, unless a faster tier has
// the node, too. The node itself is not known.
func (c *cache) lose(tier Tier, top int32) {
	t := c.trees[tier]
	for at := top; at != none; {
		n := &t.nodes[at]
		down := n.known || at == top
		n.known = false
		if down = down && !c.known(tier, n.hash); down {
			for slower := tier + 1; int(slower) < len(c.trees); slower++ {
				if below, ok := c.trees[slower].index[n.hash]; ok && !c.known(slower, n.hash) {
					c.lose(slower, below)
				}
			}
		}
		at = t.after(at, top, down)
	}
}

// dump emits everything that routers should know, parents first, the faster tiers first.
func (c *cache) dump(emit func(Event)) {
	for tier, t := range c.trees {
		w := walk{tree: t, tier: Tier(tier), emit: emit, blocks: make([]Block, 0, t.stored)}
		for root := t.roots; root != none; root = t.nodes[root].next {
			w.down(root)
		}
		for ghost := t.ghosts; ghost != none; ghost = t.nodes[ghost].next {
			for child := t.nodes[ghost].child; child != none; child = t.nodes[child].next {
				w.down(child)
			}
		}
		w.flush()
	}
}

// walk makes events of nodes that come parents first: a chain becomes one, a very long one several, because whoever has no room
// for an event leaves all of it out.
type walk struct {
	tree   *tree
	tier   Tier
	emit   func(Event)
	blocks []Block // of all events
	first  int     // of the chain in the making
	parent int32   // of its first block
	last   int32   // its last node
}

// down adds what routers know of a node and all below it.
func (w *walk) down(top int32) {
	for at := top; at != none; at = w.tree.after(at, top, true) {
		if w.tree.nodes[at].known {
			w.add(at)
		}
	}
}

func (w *walk) add(at int32) {
	n := &w.tree.nodes[at]
	if size := len(w.blocks) - w.first; size == 0 || size == messageBlocks || n.parent != w.last || n.parent == none {
		w.flush()
		w.parent = n.parent
	}
	w.blocks = append(w.blocks, Block{Hash: n.hash, TokensHash: n.tokens, MM: n.mm})
	w.last = at
}

func (w *walk) flush() {
	chain := w.blocks[w.first:len(w.blocks):len(w.blocks)]
	w.first = len(w.blocks)
	if len(chain) == 0 {
		return
	}
	e := Event{Kind: Stored, Tier: w.tier, Blocks: chain}
	if w.parent != none {
		e.Parent, e.HasParent = w.tree.nodes[w.parent].hash, true
	}
	w.emit(e)
}
