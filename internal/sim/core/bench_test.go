package core

import (
	"strconv"
	"testing"
)

// BenchmarkDecode measures one token of one request in a full batch, with a context of 500 tokens.
func BenchmarkDecode(b *testing.B) {
	cfg := testConfig("P")
	cfg.BlockSize, cfg.Blocks, cfg.MaxModelLen, cfg.MaxSeqs, cfg.MaxBatchedTokens, cfg.PrefillTokens = 16, 1<<15, 8000, 64, 1<<16, 1<<16
	e, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	for n := range cfg.MaxSeqs {
		if err := e.Add(greedy(strconv.Itoa(n), prompt(500, uint32(n)), 1<<20)); err != nil {
			b.Fatal(err)
		}
	}
	e.Schedule(0)
	e.Apply(0)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%cfg.MaxSeqs == 0 {
			e.Schedule(0)
			e.Apply(0)
			e.Take()
		}
	}
}
