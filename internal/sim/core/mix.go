package core

import "math/bits"

// golden is 2^64 divided by the golden ratio, the usual odd multiplier of Fibonacci hashing.
const golden = 0x9E3779B97F4A7C15

// fold takes one slot into a running digest. For a given value it is a bijection of the digest and for a given digest a
// bijection of the value, so two slot sequences of one length that differ in exactly one place never have the same digest.
func fold(digest, value uint64) uint64 {
	h := (digest ^ value) * golden
	return h ^ h>>29
}

// scatter spreads a counter-like input over all 64 bits (the finalizer of SplitMix64).
func scatter(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xBF58476D1CE4E5B9
	x ^= x >> 27
	x *= 0x94D049BB133111EB
	return x ^ x>>31
}

// slotValue is the KV of a token after everything that digest covers.
func slotValue(digest uint64, token uint32) uint64 {
	return scatter(digest + bits.RotateLeft64(uint64(token)*golden, 17) + 1)
}

// unit maps a hash to [0, 1).
func unit(h uint64) float64 { return float64(h>>11) / (1 << 53) }

// hashString is FNV-1a, for ids and salts.
func hashString(s string) uint64 {
	h := uint64(0xCBF29CE484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001B3
	}
	return h
}

// blockHash names a full block by its tokens and everything before it. It says nothing about what the block's slots hold.
func blockHash(parent uint64, tokens []uint32) uint64 {
	h := scatter(parent + golden)
	for _, t := range tokens {
		h = fold(h, uint64(t)+1)
	}
	return scatter(h)
}
