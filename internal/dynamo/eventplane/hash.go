package eventplane

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"
)

// The seeds of the XXH3-64 hashes, as routers use them.
const (
	tokensSeed  = 1337
	adapterSeed = 0
	saltSeed    = 1
)

// Seed is the seed for the blocks of requests with that adapter and that cache salt; "" stands for none. Blocks under another
// seed are never taken for one another: 1337, plus the hash of the adapter's name, plus the hash of the salt, modulo 2^64.
func Seed(adapter, salt string) uint64 {
	seed := uint64(tokensSeed)
	if adapter != "" {
		seed += xxh3.HashStringSeed(adapter, adapterSeed)
	}
	if salt != "" {
		seed += xxh3.HashStringSeed(salt, saltSeed)
	}
	return seed
}

// Hasher computes the hashes of blocks. The zero value is ready; it belongs to one goroutine at a time, and its memory grows to
// the largest block that it has seen.
type Hasher struct {
	buf []byte
	mm  []uint64
}

// Tokens is a block's TokensHash: XXH3-64 with the seed of Seed over the tokens, each as four bytes, and then the hashes of the
// block's media in ascending order, each as eight, all little-endian. mm may come in any order.
func (h *Hasher) Tokens(seed uint64, tokens []uint32, mm []uint64) uint64 {
	b := h.buf[:0]
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	if len(mm) > 0 {
		h.mm = append(h.mm[:0], mm...)
		slices.Sort(h.mm)
		for _, m := range h.mm {
			b = binary.LittleEndian.AppendUint64(b, m)
		}
	}
	h.buf = b
	return xxh3.HashSeed(b, seed)
}

// SequenceHash names a block by all tokens up to its end, for engines that have no hash of their own: a prompt's first block is
// named by its TokensHash, a later one by this hash of its parent's name and its own TokensHash.
func SequenceHash(parent, tokensHash uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], parent)
	binary.LittleEndian.PutUint64(b[8:], tokensHash)
	return xxh3.HashSeed(b[:], tokensSeed)
}
