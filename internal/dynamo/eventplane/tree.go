package eventplane

// none is no node.
const none = -1

// node is a block of one tier, or a ghost: a hash that is not stored but is the parent of blocks that are.
type node struct {
	hash, tokens uint64
	mm           []uint64
	parent       int32  // none: a prompt's first block, or a ghost
	child        int32  // first of the list of children
	next, prev   int32  // in the list that the node is in: its parent's, or the tier's list of roots or ghosts
	count        uint32 // how often it was stored and not removed; 0: a ghost
	era          uint32 // in which count was counted
	root         bool   // without a parent and no ghost
	known        bool   // routers know it: it was announced, and so was everything before it
}

// tree is what is stored in one tier, by parent. A block whose parent is nowhere is held back: a router would drop it. It is
// announced when its parent comes, as is everything behind a block that was removed and stored again, which routers have lost
// by then. A ghost has no parent, and at least one child.
type tree struct {
	nodes  []node
	free   int32 // list through next
	index  map[uint64]int32
	roots  int32 // list
	ghosts int32 // list
	stored int   // nodes that are no ghosts
}

func newTree() *tree {
	return &tree{free: none, roots: none, ghosts: none, index: map[uint64]int32{}}
}

// find returns the node of a block that is stored; none where it is not.
func (t *tree) find(hash uint64) int32 {
	if at, ok := t.index[hash]; ok && t.nodes[at].count > 0 {
		return at
	}
	return none
}

// list returns the head of the list that a node belongs to.
func (t *tree) list(at int32) *int32 {
	n := &t.nodes[at]
	switch {
	case n.parent != none:
		return &t.nodes[n.parent].child
	case n.root:
		return &t.roots
	default:
		return &t.ghosts
	}
}

func (t *tree) link(at int32) {
	head := t.list(at)
	n := &t.nodes[at]
	n.prev, n.next = none, *head
	if *head != none {
		t.nodes[*head].prev = at
	}
	*head = at
}

func (t *tree) unlink(at int32) {
	n := &t.nodes[at]
	if n.prev != none {
		t.nodes[n.prev].next = n.next
	} else {
		*t.list(at) = n.next
	}
	if n.next != none {
		t.nodes[n.next].prev = n.prev
	}
}

// place returns the node of a hash, a new ghost where there is none.
func (t *tree) place(hash uint64) int32 {
	if at, ok := t.index[hash]; ok {
		return at
	}
	at := t.free
	if at != none {
		t.free = t.nodes[at].next
	} else {
		at = int32(len(t.nodes))
		t.nodes = append(t.nodes, node{})
	}
	t.nodes[at] = node{hash: hash, parent: none, child: none}
	t.index[hash] = at
	t.link(at)
	return at
}

// bury frees a ghost that nobody needs any more.
func (t *tree) bury(at int32) {
	n := &t.nodes[at]
	if n.count > 0 || n.child != none {
		return
	}
	t.unlink(at)
	delete(t.index, n.hash)
	*n = node{next: t.free}
	t.free = at
}

// store makes a node a block under a parent (none: a prompt's first). The node must be a ghost.
func (t *tree) store(at, parent int32, b *Block, era uint32) {
	t.unlink(at)
	n := &t.nodes[at]
	n.tokens, n.mm, n.parent, n.root, n.count, n.era = b.TokensHash, b.MM, parent, parent == none, 1, era
	t.link(at)
	t.stored++
}

// same tells whether a stored node is that block under that parent.
func (t *tree) same(at, parent int32, b *Block) bool {
	n := &t.nodes[at]
	return n.parent == parent && n.tokens == b.TokensHash
}

// again counts one more store of a block.
func (t *tree) again(at int32, era uint32) {
	n := &t.nodes[at]
	if n.era != era {
		n.era, n.count = era, 0
	}
	n.count++
}

// less counts a removal of a block and tells whether it was the last.
func (t *tree) less(at int32, era uint32) bool {
	n := &t.nodes[at]
	if n.era == era && n.count > 1 {
		n.count--
		return false
	}
	return true
}

// remove makes a block a ghost, and frees it where it has no children.
func (t *tree) remove(at int32) {
	t.unlink(at)
	n := &t.nodes[at]
	parent := n.parent
	n.parent, n.root, n.count, n.known, n.mm = none, false, 0, false, nil
	t.link(at)
	t.stored--
	t.bury(at)
	if parent != none {
		t.bury(parent)
	}
}

// circle tells whether a block with children is among what comes before a node or is that node: then it can't come behind it.
func (t *tree) circle(hash uint64, at int32) bool {
	block, ok := t.index[hash]
	if !ok || t.nodes[block].child == none {
		return false
	}
	for at != none && at != block {
		at = t.nodes[at].parent
	}
	return at == block
}

// after is the node that comes after at in a walk, parents first, through what is below top; none at the end. Without down it
// passes over what is below at.
func (t *tree) after(at, top int32, down bool) int32 {
	if down && t.nodes[at].child != none {
		return t.nodes[at].child
	}
	for at != top {
		if next := t.nodes[at].next; next != none {
			return next
		}
		at = t.nodes[at].parent
	}
	return none
}
