package routing

import (
	"slices"

	"remora/internal/dynamo/eventplane"
)

// Prompt is what names the blocks of a request's prompt. The zero value names none: it is the prompt of a request with media,
// where equal tokens may be different pictures. The count of the load owns it from the first time on that Config.Requests gives
// it away.
type Prompt struct {
	Tokens        []uint32
	Adapter, Salt string // "": none

	blocks []uint64 // made of the others when first needed; nil: not yet
}

// names gives the names of the full blocks, the same for each request whose prompt begins with the same ones. It lets go of the
// tokens: what is left costs 8 bytes a block. blockSize is above 0.
func (p *Prompt) names(hasher *eventplane.Hasher, blockSize int) []uint64 {
	if p.blocks != nil {
		return p.blocks
	}
	p.blocks = make([]uint64, 0, len(p.Tokens)/blockSize)
	seed, parent := eventplane.Seed(p.Adapter, p.Salt), uint64(0)
	for block := range slices.Chunk(p.Tokens, blockSize) {
		if len(block) < blockSize {
			break // no block yet
		}
		parent = eventplane.SequenceHash(parent, hasher.Tokens(seed, block, nil))
		p.blocks = append(p.blocks, parent)
	}
	p.Tokens, p.Adapter, p.Salt = nil, "", ""
	return p.blocks
}
