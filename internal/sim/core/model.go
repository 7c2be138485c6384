package core

import (
	"fmt"
	"math"
	"unicode/utf8"
)

// Vocab tells the toy model which tokens there are. Ids 0 to 255 are the single bytes, in their order.
type Vocab struct {
	Size  int
	EOS   uint32
	Words []uint32 // readable tokens, of which most text is made
}

func (v Vocab) validate() error {
	if v.Size < 257 || int(v.EOS) >= v.Size || len(v.Words) == 0 {
		return fmt.Errorf("%w: vocabulary needs the 256 bytes, words and an end-of-sequence id", ErrConfig)
	}
	for _, w := range v.Words {
		if int(w) >= v.Size {
			return fmt.Errorf("%w: word id %d is outside the vocabulary of %d", ErrConfig, w, v.Size)
		}
	}
	return nil
}

// Bands of the toy model's logits, wide enough apart that sampling at temperature 2 stays in the upper one, and low enough
// that a logit bias of 90 forces any token.
const (
	wordFloor  = 2.0   // words start here and have an exponential tail
	wordSpread = 2.5   // scale of the tail: the best of 250 words is ahead by about that much
	otherFloor = -12.0 // everything else: text never ends by itself
	forcedBand = 24.0  // what has to come next when a character of several bytes is begun
	neverBand  = -40.0 // what would break it
	runeOneIn  = 14    // how often such a character begins
)

// leads begin characters of two, three and four bytes of which every continuation that the model picks is assigned.
var leads = []byte{0xC3, 0xE4, 0xE5, 0xE6, 0xE7, 0xE8, 0xE9, 0xF0}

// model turns a digest of all KV into logits. The scratch space makes it unfit for concurrent use.
type model struct {
	vocab  Vocab
	start  uint64    // digest of nothing
	floor  []float64 // logits of everything that is not a word
	raw    []float64 // logits of the last compute
	work   []float64 // the same after what the request asks for
	counts []int     // occurrences of tokens, for penalties
}

func newModel(v Vocab, seed uint64) *model {
	m := &model{
		vocab:  v,
		start:  scatter(seed + golden),
		floor:  make([]float64, v.Size),
		raw:    make([]float64, v.Size),
		work:   make([]float64, v.Size),
		counts: make([]int, v.Size),
	}
	for t := range m.floor {
		m.floor[t] = otherFloor - float64(t)/float64(v.Size)
	}
	return m
}

// compute fills raw with the logits that follow the digest. The tail of the tokens only decides whether a character is open.
func (m *model) compute(digest uint64, tokens []uint32) {
	pending := openRune(tokens)
	if len(pending) == 0 {
		copy(m.raw, m.floor)
		for _, w := range m.vocab.Words {
			m.raw[w] = wordFloor - wordSpread*math.Log(1-chance(digest, w))
		}
		if pick := scatter(digest ^ golden); pick%runeOneIn == 0 {
			m.raw[leads[pick/runeOneIn%uint64(len(leads))]] += forcedBand - otherFloor
		}
		return
	}
	for t := range m.raw {
		m.raw[t] = neverBand
	}
	next := make([]byte, len(pending)+1)
	copy(next, pending)
	for c := 0x80; c <= 0xBF; c++ {
		next[len(pending)] = byte(c)
		if r, _ := utf8.DecodeRune(next); r == utf8.RuneError && utf8.FullRune(next) {
			continue
		}
		m.raw[c] = forcedBand + chance(digest, uint32(c)) + preference(next)
	}
}

// chance is a number in [0, 1) for a token after a digest.
func chance(digest uint64, token uint32) float64 {
	return unit(scatter(digest + uint64(token+1)*golden))
}

// preference steers characters of four bytes to the emoji block, where nearly all are assigned.
func preference(next []byte) float64 {
	if string(next) == "\xF0\x9F" || string(next) == "\xF0\x9F\x98" {
		return 8
	}
	return 0
}

// openRune returns the bytes of a character that the last tokens began and did not complete.
func openRune(tokens []uint32) []byte {
	var buf [utf8.UTFMax]byte
	for n := 1; n < utf8.UTFMax && n <= len(tokens); n++ {
		t := tokens[len(tokens)-n]
		if t > 0xFF {
			return nil
		}
		buf[utf8.UTFMax-n] = byte(t)
		if !utf8.RuneStart(byte(t)) {
			continue
		}
		if seq := buf[utf8.UTFMax-n:]; !utf8.FullRune(seq) {
			return append([]byte(nil), seq...)
		}
		return nil
	}
	return nil
}
