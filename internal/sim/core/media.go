package core

// Media is one item of media in a prompt: an image, a film, a sound.
type Media struct {
	ID     string // what caches know it by: whoever gives two items one name has them taken for the same
	Offset int    // of its first token in the prompt
	Length int    // tokens that stand for it, at least 1
}

// MediaKey says that an item of media reaches into a block.
type MediaKey struct {
	ID     string
	Offset int // of the item's first token from the block's; negative when it began in an earlier one
}

// mediaKeys lists the items, which are in order of their offset, that reach into the tokens from start to end-1.
func mediaKeys(all []Media, start, end int) (keys []MediaKey) {
	for _, m := range all {
		if m.Offset < end && start < m.Offset+m.Length {
			keys = append(keys, MediaKey{ID: m.ID, Offset: m.Offset - start})
		}
	}
	return keys
}

// hash takes a key into the hash of a block.
func (k MediaKey) hash(block uint64) uint64 {
	return scatter(fold(block, hashString(k.ID)) + uint64(k.Offset))
}

// look is what the model sees in place of a prompt's token: nothing else where no media stand, and otherwise a part of the item.
func look(all []Media, pos int) uint64 {
	seen := uint64(0)
	for _, m := range all {
		if m.Offset <= pos && pos < m.Offset+m.Length {
			seen = fold(seen, scatter(hashString(m.ID)+uint64(pos-m.Offset)))
		}
	}
	return seen
}
