package core

import "slices"

// noBlock ends the linked lists of the pool. Block 0 is the null block: reserved, never free, never given out.
const noBlock = -1

// pool is the KV memory of one engine: fixed blocks of token slots with reference counts, a free list with the blocks that are
// not cached in front and the others in least-recently-freed order, and a map from block hash to the blocks that were labelled
// with it. A free block keeps its label and its slots until it is taken again: that is the prefix cache.
type pool struct {
	blockSize int
	slots     []uint64 // block b owns slots[b*blockSize : (b+1)*blockSize]
	blocks    []block
	head      int // next block to be taken
	tail      int
	free      int
	cached    map[uint64][]int // hash -> blocks labelled with it, oldest first; the oldest one is the one that hits
}

type block struct {
	refs       int
	hash       uint64
	labelled   bool
	inFree     bool
	prev, next int // neighbours in the free list
}

func newPool(blocks, blockSize int) *pool {
	p := &pool{
		blockSize: blockSize,
		slots:     make([]uint64, blocks*blockSize),
		blocks:    make([]block, blocks),
		head:      noBlock,
		tail:      noBlock,
		cached:    make(map[uint64][]int),
	}
	p.blocks[0].refs = 1
	for id := 1; id < blocks; id++ {
		p.pushFree(id)
	}
	return p
}

// used counts the blocks that a request or a hold keeps.
func (p *pool) used() int { return len(p.blocks) - 1 - p.free }

// next says what the block that take will give out is cached as.
func (p *pool) next() (hash uint64, cached bool) {
	b := p.blocks[p.head]
	return b.hash, b.labelled
}

// take gives out the first free block and forgets what it was cached as.
// The caller has made sure that one is free.
func (p *pool) take() int {
	id := p.head
	p.unlink(id)
	p.unlabel(id)
	p.blocks[id].refs = 1
	return id
}

// hit looks a hash up without taking the block.
func (p *pool) hit(hash uint64) (int, bool) {
	ids := p.cached[hash]
	if len(ids) == 0 {
		return 0, false
	}
	return ids[0], true
}

// share adds a reference to a cached block and takes it off the free list if it was there.
func (p *pool) share(id int) {
	if p.blocks[id].inFree {
		p.unlink(id)
	}
	p.blocks[id].refs++
}

// release drops one reference to each block of a table, tail blocks first, so that they are evicted first. A block that is not
// cached is of no use to anybody: it is taken before all others.
func (p *pool) release(table []int) {
	for _, id := range slices.Backward(table) {
		b := &p.blocks[id]
		b.refs--
		switch {
		case b.refs > 0:
		case b.labelled:
			p.pushFree(id)
		default:
			p.pushFront(id)
		}
	}
}

// label enters a full block into the prefix cache. A second block with the same tokens is kept behind the first.
func (p *pool) label(id int, hash uint64) {
	b := &p.blocks[id]
	if b.labelled {
		return
	}
	b.hash, b.labelled = hash, true
	p.cached[hash] = append(p.cached[hash], id)
}

func (p *pool) unlabel(id int) {
	b := &p.blocks[id]
	if !b.labelled {
		return
	}
	ids := p.cached[b.hash]
	for i, other := range ids {
		if other == id {
			ids = append(ids[:i:i], ids[i+1:]...)
			break
		}
	}
	if len(ids) == 0 {
		delete(p.cached, b.hash)
	} else {
		p.cached[b.hash] = ids
	}
	b.hash, b.labelled = 0, false
}

func (p *pool) pushFree(id int) {
	b := &p.blocks[id]
	b.inFree, b.prev, b.next = true, p.tail, noBlock
	if p.tail == noBlock {
		p.head = id
	} else {
		p.blocks[p.tail].next = id
	}
	p.tail = id
	p.free++
}

func (p *pool) pushFront(id int) {
	b := &p.blocks[id]
	b.inFree, b.prev, b.next = true, noBlock, p.head
	if p.head == noBlock {
		p.tail = id
	} else {
		p.blocks[p.head].prev = id
	}
	p.head = id
	p.free++
}

func (p *pool) unlink(id int) {
	b := &p.blocks[id]
	if b.prev == noBlock {
		p.head = b.next
	} else {
		p.blocks[b.prev].next = b.next
	}
	if b.next == noBlock {
		p.tail = b.prev
	} else {
		p.blocks[b.next].prev = b.prev
	}
	b.inFree, b.prev, b.next = false, noBlock, noBlock
	p.free--
}

// digest reads the first n slots of a block table.
func (p *pool) digest(start uint64, table []int, n int) uint64 {
	h := start
	for i := 0; n > 0; i++ {
		base := table[i] * p.blockSize
		count := min(n, p.blockSize)
		for _, v := range p.slots[base : base+count] {
			h = fold(h, v)
		}
		n -= count
	}
	return h
}

// slot is the address of a token's slot in a block table.
func (p *pool) slot(table []int, pos int) *uint64 {
	return &p.slots[table[pos/p.blockSize]*p.blockSize+pos%p.blockSize]
}

// read copies the slots of a block as they are now.
func (p *pool) read(id int) []uint64 {
	return append([]uint64(nil), p.slots[id*p.blockSize:(id+1)*p.blockSize]...)
}

// write replaces the slots of a block.
func (p *pool) write(id int, slots []uint64) {
	copy(p.slots[id*p.blockSize:(id+1)*p.blockSize], slots)
}
