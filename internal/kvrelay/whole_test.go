package kvrelay

import (
	"flag"
	"testing"

	"remora/internal/dynamo/eventplane"
	"remora/internal/kvevents"
)

// deaf is a socket that nobody listens to.
type deaf struct{}

func (deaf) Publish(...[]byte) int { return 0 }

// cacheOf plays an engine of a number of blocks: prompts with a salt or without, evicted the oldest first.
type cacheOf struct {
	size   int
	order  []uint64 // of eviction
	next   uint64
	salted bool
}

// batch stores a chain of n blocks and removes what does not fit any more.
func (c *cacheOf) batch(n int) kvevents.Batch {
	e := kvevents.Event{Kind: kvevents.Stored, BlockSize: 16, Medium: "GPU", SpecKind: "full_attention", HasGroup: true}
	if c.salted {
		e.ExtraKeys = [][]kvevents.ExtraKey{{{Text: saltPrefix + "tenant"}}}
	}
	var events []kvevents.Event
	for range n {
		if len(c.order) == c.size {
			events = append(events, kvevents.Event{Kind: kvevents.Removed, Hashes: c.order[:1:1], Medium: "GPU", HasGroup: true})
			c.order = c.order[1:]
		}
		c.next++
		c.order = append(c.order, c.next)
		e.Hashes = append(e.Hashes, c.next)
	}
	e.Tokens = make([]uint32, 16*n)
	return kvevents.Batch{Events: append(events, e)}
}

var many = flag.Int("events", 100_000, "how many events TestMemory sends")

// TestMemory sends very many events of an engine with 2000 blocks. What is remembered of them is bounded by those blocks.
func TestMemory(t *testing.T) {
	for name, salted := range map[string]bool{"plain": false, "salted": true} {
		t.Run(name, func(t *testing.T) {
			p := eventplane.NewPublisher(eventplane.Config{WorkerID: 1, PublisherID: 1, Socket: deaf{}})
			r := New(Config{BlockSize: 16}, p)
			engine := &cacheOf{size: 2000, salted: salted}
			for sent := 0; sent < *many; {
				b := engine.batch(64)
				r.Batch(&b)
				sent += len(b.Events)
				if len(r.salts) > engine.size || len(r.groups) != 1 {
					t.Fatalf("%d salted blocks and %d groups remembered after %d events", len(r.salts), len(r.groups), sent)
				}
			}
			counts := p.Counts()
			if counts.Blocks[eventplane.Device] != engine.size || counts.Overflows != 0 || salted != (len(r.salts) == engine.size) {
				t.Errorf("%+v, %d salted blocks", counts, len(r.salts))
			}
			clear(r.salts)
		})
	}
}

// TestOverflow has an engine that never removes anything: its salted blocks are told anew from nothing, again and again.
func TestOverflow(t *testing.T) {
	p := eventplane.NewPublisher(eventplane.Config{WorkerID: 1, PublisherID: 1, Socket: deaf{}, MaxBlocks: 1 << 20})
	r := New(Config{BlockSize: 16, MaxBlocks: 1000}, p)
	engine := &cacheOf{size: 1 << 30, salted: true}
	for range 100 {
		b := engine.batch(64)
		r.Batch(&b)
		if len(r.salts) > 1000 || p.Counts().Blocks[eventplane.Device] > 1000 {
			t.Fatalf("%d salted blocks remembered", len(r.salts))
		}
	}
	b := engine.batch(5000)
	r.Batch(&b)
	if len(r.salts) > 1000 || r.Counts().Overflows < 6 {
		t.Errorf("%d salted blocks remembered, %+v", len(r.salts), r.Counts())
	}
	for i := range int64(2 * maxGroups) {
		r.Batch(&kvevents.Batch{Events: []kvevents.Event{store(1, group(i, "mamba"))}})
	}
	if len(r.groups) > maxGroups {
		t.Errorf("%d groups remembered", len(r.groups))
	}
}
