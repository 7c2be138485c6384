package eventplane_test

import (
	"slices"
	"testing"

	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/protocol"
)

// BenchmarkPublish: one new prompt of 16 blocks, and its removal.
func BenchmarkPublish(b *testing.B) {
	p := newPublisher(discard{})
	blocks, hashes := make([]eventplane.Block, 16), make([]uint64, 16)
	n := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		for i := range blocks {
			n++
			blocks[i] = eventplane.Block{Hash: n << 20, TokensHash: n << 30}
			hashes[15-i] = n << 20
		}
		p.Publish(eventplane.Event{Kind: eventplane.Stored, Blocks: slices.Clone(blocks)})
		p.Publish(eventplane.Event{Kind: eventplane.Removed, Hashes: slices.Clone(hashes)})
	}
}

// BenchmarkDump answers a router that comes late: 38,400 blocks in chains of 64.
func BenchmarkDump(b *testing.B) {
	p := newPublisher(discard{})
	hash := uint64(1) << 60
	for range 600 {
		e := eventplane.Event{Kind: eventplane.Stored}
		for range 64 {
			hash++
			e.Blocks = append(e.Blocks, eventplane.Block{Hash: hash, TokensHash: hash})
		}
		p.Publish(e)
	}
	body := question{}.encode(protocol.MsgPack)
	size := 0
	b.ReportAllocs()
	for b.Loop() {
		size = len(p.Answer(protocol.MsgPack, body))
	}
	b.ReportMetric(float64(size), "bytes")
}
