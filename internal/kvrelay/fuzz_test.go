package kvrelay

import (
	"testing"

	"remora/internal/dynamo/eventplane"
	"remora/internal/kvevents"
)

// FuzzRelay takes whatever a decoder makes of any bytes, from the engine's message to the publisher's.
func FuzzRelay(f *testing.F) {
	f.Add(payloadOf(2, 1))
	f.Add([]byte("\x93\xcb\x40\x04\x00\x00\x00\x00\x00\x00\x91\x98\xabBlockStored\x92\x01\x02\xc0\x92\x92\x01\x02\x92\x02\x03\x01\xc0\xa3GPU\xc0\x00"))
	f.Add([]byte("\x92\x01\x93\xb0AllBlocksCleared\x92\xacBlockRemoved\x91\x01\x99\xabBlockStored\x91\x01\xc0\x91\x01\x01\xc0\xc0\xa1a\x91\x92\xa1a\xb4dynamo-cache-salt:ab"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		var d kvevents.Decoder
		p := eventplane.NewPublisher(eventplane.Config{WorkerID: 1, PublisherID: 1, Socket: deaf{}, MaxBlocks: 100})
		r := New(Config{MaxBlocks: 100}, p)
		for seq := range uint64(3) {
			batch, err := d.Decode(seq, payload)
			if err != nil {
				r.Gap(1, err.Error())
				continue
			}
			r.Batch(&batch)
		}
		held := 0
		for _, n := range p.Counts().Blocks {
			held += n
		}
		if len(r.salts) > 100 || held > 100 {
			t.Fatalf("%d salted blocks, %d blocks held", len(r.salts), held)
		}
		r.Reset("")
		if len(r.salts) > 0 || p.Counts().Blocks[eventplane.Device] > 0 {
			t.Fatal("something is left after a reset")
		}
	})
}
