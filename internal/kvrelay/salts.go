package kvrelay

import (
	"remora/internal/dynamo/eventplane"
	"remora/internal/kvevents"
)

// salts remembers under which cache salt blocks were stored. Engines name the salt with the first block of a prompt alone, and
// what comes behind a block is under the same salt.
type salts map[uint64]salted

type salted struct {
	salt  uint64 // what it adds to a seed
	count uint32 // how often the block was stored and not removed
}

// of is what the salt of a store adds to the seed of its blocks' hashes; 0 if it has none.
func (s salts) of(e *kvevents.Event) uint64 {
	if salt := saltOf(e); salt != "" {
		return eventplane.Seed("", salt) - eventplane.Seed("", "")
	}
	if e.HasParent && len(s) > 0 {
		return s[e.Parent].salt
	}
	return 0
}

func (s salts) store(hashes []uint64, salt uint64) {
	for _, hash := range hashes {
		s[hash] = salted{salt, s[hash].count + 1}
	}
}

func (s salts) remove(hashes []uint64) {
	if len(s) == 0 {
		return
	}
	for _, hash := range hashes {
		switch known, ok := s[hash]; {
		case !ok:
		case known.count > 1:
			s[hash] = salted{known.salt, known.count - 1}
		default:
			delete(s, hash)
		}
	}
}
