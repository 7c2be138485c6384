package tinymodel

import (
	"strings"
	"sync"
)

// The shape of the vocabulary. Specials come last.
const (
	VocabSize = 512
	// MaxContext is max_position_embeddings: prompt and answer together, in tokens.
	MaxContext = 8192

	firstMerged  = 256
	firstSpecial = 504

	BOS       uint32 = 504
	EOS       uint32 = 505
	PAD       uint32 = 506
	System    uint32 = 507
	User      uint32 = 508
	Assistant uint32 = 509
	Tool      uint32 = 510
	End       uint32 = 511
)

// specialTexts returns the specials' texts in the order of their ids. None is a prefix of another, and none occurs inside
// another, so that the first match in a text is the only one at its place.
func specialTexts() [VocabSize - firstSpecial]string {
	return [...]string{"<|bos|>", "<|eos|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"}
}

// IsSpecial reports whether id is one of the specials, which have no bytes of their own.
func IsSpecial(id uint32) bool { return id >= firstSpecial && id < VocabSize }

// SpecialText returns the text of a special, "" for every other id.
func SpecialText(id uint32) string {
	if !IsSpecial(id) {
		return ""
	}
	return specialTexts()[id-firstSpecial]
}

// TokenBytes returns the bytes that a token stands for; nil for specials and ids outside the vocabulary. The caller must not
// change them.
func TokenBytes(id uint32) []byte {
	if id >= firstSpecial {
		return nil
	}
	return vocabulary().tokens[id]
}

// pair is two neighbouring tokens.
type pair struct{ left, right uint32 }

// vocab is immutable once built.
type vocab struct {
	tokens [firstSpecial][]byte
	// merges lists the pairs in order of precedence; merge i makes token firstMerged+i, so a lower id is a stronger merge.
	merges [firstSpecial - firstMerged]pair
	byPair map[pair]uint32 // pair -> the token it makes
}

// vocabulary builds the tables on first use.
var vocabulary = sync.OnceValue(buildVocab)

// buildVocab takes the listed words one after the other, spells each with the merges so far, and joins what is left of it
// from the front until it is one token or the vocabulary is full. So a later word uses what earlier ones made, and every
// token can really occur.
func buildVocab() *vocab {
	v := &vocab{byPair: make(map[pair]uint32, firstSpecial-firstMerged)}
	known := make(map[string]bool, firstSpecial)
	for b := range firstMerged {
		v.tokens[b] = []byte{byte(b)}
		known[string(v.tokens[b])] = true
	}
	next := uint32(firstMerged)
	for word := range strings.SplitSeq(words, "|") {
		for parts := v.appendWord(nil, word); len(parts) > 1 && next < firstSpecial; parts = parts[1:] {
			joined := string(v.tokens[parts[0]]) + string(v.tokens[parts[1]])
			if known[joined] {
				break // the same text by another merge: one is enough
			}
			p := pair{parts[0], parts[1]}
			v.tokens[next], v.merges[next-firstMerged], v.byPair[p] = []byte(joined), p, next
			known[joined] = true
			parts[1] = next
			next++
		}
	}
	return v
}
