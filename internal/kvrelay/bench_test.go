package kvrelay

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"remora/internal/dynamo/eventplane"
	"remora/internal/kvevents"
)

// payloadOf is a batch as vLLM 0.32 writes it: removals of a block each, then a prompt's blocks.
func payloadOf(blocks, removals int) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, 1.8e9)
	b = msgp.AppendArrayHeader(b, uint32(removals+1))
	hash := func(i int) uint64 { return 0x9f3c0a11d4e27b05 * uint64(i+1) }
	for i := range removals {
		b = msgp.AppendMapHeader(b, 4)
		b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockRemoved")
		b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), 1)
		b = msgp.AppendUint64(b, hash(1000+i))
		b = msgp.AppendString(msgp.AppendString(b, "medium"), "GPU")
		b = msgp.AppendInt(msgp.AppendString(b, "group_idx"), 0)
	}
	b = msgp.AppendMapHeader(b, 11)
	b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockStored")
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), uint32(blocks))
	for i := range blocks {
		b = append(b, 0xcf)
		b = binary.BigEndian.AppendUint64(b, hash(i))
	}
	b = msgp.AppendNil(msgp.AppendString(b, "parent_block_hash"))
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "token_ids"), uint32(blocks*16))
	for i := range blocks * 16 {
		b = msgp.AppendUint(b, uint(i*7919%150_000))
	}
	b = msgp.AppendInt(msgp.AppendString(b, "block_size"), 16)
	b = msgp.AppendNil(msgp.AppendString(b, "lora_id"))
	b = msgp.AppendString(msgp.AppendString(b, "medium"), "GPU")
	b = msgp.AppendNil(msgp.AppendString(b, "lora_name"))
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "extra_keys"), uint32(blocks))
	for range blocks {
		b = msgp.AppendNil(b)
	}
	b = msgp.AppendInt(msgp.AppendString(b, "group_idx"), 0)
	b = msgp.AppendString(msgp.AppendString(b, "kv_cache_spec_kind"), "full_attention")
	return msgp.AppendInt(b, 0)
}

// discard is a sink that does nothing.
type discard struct{}

func (discard) Publish(...eventplane.Event) {}
func (discard) Lost()                       {}

// BenchmarkRelay reads and translates a batch that stores blocks of 16 tokens and removes as many, and reports events a second.
func BenchmarkRelay(b *testing.B) {
	for _, blocks := range []int{1, 16, 256} {
		payload := payloadOf(blocks, blocks)
		for name, step := range map[string]func(d *kvevents.Decoder, r *Relay){
			"decode":           func(d *kvevents.Decoder, _ *Relay) { decode(b, d, payload) },
			"decode+translate": func(d *kvevents.Decoder, r *Relay) { batch := decode(b, d, payload); r.Batch(&batch) },
		} {
			b.Run(fmt.Sprintf("%s/%d-blocks", name, blocks), func(b *testing.B) {
				var d kvevents.Decoder
				r := New(Config{BlockSize: 16}, discard{})
				b.SetBytes(int64(len(payload)))
				b.ReportAllocs()
				for b.Loop() {
					step(&d, r)
				}
				b.ReportMetric(float64(b.N*(blocks+1))/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}

func decode(tb testing.TB, d *kvevents.Decoder, payload []byte) kvevents.Batch {
	tb.Helper()
	batch, err := d.Decode(0, payload)
	if err != nil || batch.Skipped > 0 {
		tb.Fatal(batch.SkippedWhy, err)
	}
	return batch
}
