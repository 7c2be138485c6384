package eventplane

import (
	"slices"
	"testing"
)

// The values were computed independently, with the reference implementation of XXH3.
func TestHashVectors(t *testing.T) {
	var h Hasher
	first := h.Tokens(Seed("", ""), []uint32{1, 2, 3, 4}, nil)
	second := h.Tokens(Seed("", ""), []uint32{5, 6, 7, 8}, nil)
	for _, tc := range []struct {
		name      string
		got, want uint64
	}{
		{"plain seed", Seed("", ""), 1337},
		{"first block", first, 14643705804678351452},
		{"second block", second, 16777012769546811212},
		{"sequence", SequenceHash(first, second), 4945711292740353085},
		{"adapter's seed", Seed("adapter-a", ""), 8842669519798868182},
		{"adapter's block", h.Tokens(Seed("adapter-a", ""), []uint32{1, 2, 3, 4}, nil), 11381080598872079209},
		{"salt's seed", Seed("", "tenant-1"), 13131544620552358486},
		{"salt's block", h.Tokens(Seed("", "tenant-1"), []uint32{1, 2, 3, 4}, nil), 12236259103925738072},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, tc.got, tc.want)
		}
	}
	adapter, salt := Seed("adapter-a", "")-1337, Seed("", "tenant-1")-1337
	if got := Seed("adapter-a", "tenant-1"); got != 1337+adapter+salt {
		t.Errorf("both together: %d, want the sum %d", got, 1337+adapter+salt)
	}
}

func TestMediaEnterTheHashInOrder(t *testing.T) {
	var h Hasher
	tokens := []uint32{1, 2, 3, 4}
	mm := []uint64{9, 5, 7}
	got := h.Tokens(1337, tokens, mm)
	if !slices.Equal(mm, []uint64{9, 5, 7}) {
		t.Errorf("the caller's hashes were changed: %v", mm)
	}
	// Tokens and sorted hashes are one run of little-endian bytes, so a hash is two tokens to XXH3.
	if want := h.Tokens(1337, []uint32{1, 2, 3, 4, 5, 0, 7, 0, 9, 0}, nil); got != want {
		t.Errorf("media hash %d, want %d", got, want)
	}
	if got == h.Tokens(1337, tokens, nil) {
		t.Error("media do not count")
	}
}

func BenchmarkTokensHash(b *testing.B) {
	var h Hasher
	tokens := make([]uint32, 16)
	b.ReportAllocs()
	for b.Loop() {
		h.Tokens(1337, tokens, nil)
	}
}
