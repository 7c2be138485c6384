package kvrelay

import (
	"log/slog"
	"sync"

	"remora/internal/dynamo/eventplane"
	"remora/internal/kvevents"
)

// Sink takes a rank's events for routers; it is an eventplane.Publisher.
type Sink interface {
	// Publish takes events in order. Their slices are the sink's from then on; the list of them is not.
	Publish(events ...eventplane.Event)
	// Lost says that events between the last call and the next are missing.
	Lost()
}

// Config says whose events a Relay translates.
type Config struct {
	// Rank is the data parallel rank of the source; what a batch says is only compared with it.
	Rank uint32
	// BlockSize is the number of tokens of a block on the model's card. Blocks of another size are of no use to a router and are
	// left out. 0: not known, every size is taken.
	BlockSize uint32
	// MaxBlocks bounds the salted blocks that are remembered. 0: eventplane.DefaultMaxBlocks.
	MaxBlocks int
	// Log gets one line for each thing that is odd about the events, the first time. Nil: nothing.
	Log *slog.Logger
}

// Relay is the kvevents.Consumer of one rank.
type Relay struct {
	config Config
	sink   Sink
	hasher eventplane.Hasher
	groups groups
	salts  salts
	events []eventplane.Event // of the batch in hand
	window []uint32           // of a block with pairs of tokens

	mu     sync.Mutex
	counts Counts // guarded by mu
}

// Counts is what a Relay has taken and left out, in events of the engine. What was lost or not understood before it, the
// kvevents.Reader counts.
type Counts struct {
	Stored, Removed, Cleared uint64 // translated
	Elsewhere                uint64 // remote, or owned by another tier
	OtherGroup               uint64 // of a group that is not main attention
	OtherMedium              uint64 // of a medium that routers have no tier for
	OtherBlockSize           uint64 // stores of blocks that are not as the card says
	Partial                  uint64 // stores without a whole block
	OtherRank                uint64 // batches that name another rank
	Overflows                uint64 // times that everything was told anew because of Config.MaxBlocks
}

// New returns a relay.
func New(config Config, sink Sink) *Relay {
	if config.MaxBlocks <= 0 {
		config.MaxBlocks = eventplane.DefaultMaxBlocks
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	return &Relay{config: config, sink: sink, groups: groups{}, salts: salts{}}
}

// Counts may be called at any time.
func (r *Relay) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}

// Reset tells routers that the rank's cache is empty.
func (r *Relay) Reset(string) {
	clear(r.groups)
	clear(r.salts)
	r.sink.Publish(eventplane.Event{Kind: eventplane.Cleared})
}

// Gap leaves to routers what they know: an engine does not tell again what it still holds, so they would not learn it again.
func (r *Relay) Gap(uint64, string) { r.sink.Lost() }

// Batch translates a batch and publishes what of it concerns routers.
func (r *Relay) Batch(b *kvevents.Batch) {
	r.mu.Lock()
	r.translate(b)
	r.mu.Unlock()
	if len(r.events) > 0 {
		r.sink.Publish(r.events...)
		clear(r.events)
	}
}

// translate fills events; mu is held.
func (r *Relay) translate(b *kvevents.Batch) {
	r.events = r.events[:0]
	if b.HasRank && b.Rank != int64(r.config.Rank) {
		if r.counts.OtherRank++; r.counts.OtherRank == 1 {
			r.config.Log.Warn("the KV events of a rank name another one; they count for the rank of their source", "dp_rank", r.config.Rank, "named", b.Rank)
		}
	}
	out := output{relay: r}
	out.reserve(b.Events)
	for i := range b.Events {
		e := &b.Events[i]
		if e.Kind == kvevents.Cleared {
			r.counts.Cleared++
			clear(r.salts)
			r.events = append(r.events, eventplane.Event{Kind: eventplane.Cleared})
			continue
		}
		tier, ok := r.concerns(e)
		if !ok {
			continue
		}
		if e.Kind == kvevents.Removed {
			r.counts.Removed++
			out.remove(tier, e)
			r.salts.remove(e.Hashes)
			continue
		}
		r.store(tier, e, &out)
	}
}

// concerns reports whether an event concerns routers, and in which tier.
func (r *Relay) concerns(e *kvevents.Event) (eventplane.Tier, bool) {
	if !ours(e) {
		r.counts.Elsewhere++
		return 0, false
	}
	if !r.groups.main(e) {
		r.counts.OtherGroup++
		return 0, false
	}
	tier, ok := tierOf(e.Medium)
	if !ok {
		if r.counts.OtherMedium++; r.counts.OtherMedium == 1 {
			r.config.Log.Warn("KV events of a medium that routers do not know are left out", "medium", e.Medium)
		}
	}
	return tier, ok
}

// store translates a store: as many blocks as there are both hashes and whole blocks of tokens for.
func (r *Relay) store(tier eventplane.Tier, e *kvevents.Event, out *output) {
	if r.config.BlockSize != 0 && e.BlockSize != uint64(r.config.BlockSize) {
		if r.counts.OtherBlockSize++; r.counts.OtherBlockSize == 1 {
			r.config.Log.Warn("KV events with blocks of another size than the model's card says are left out", "card", r.config.BlockSize, "event", e.BlockSize)
		}
		return
	}
	n := blocksOf(e)
	if n == 0 {
		r.counts.Partial++
		return
	}
	r.counts.Stored++
	salt := r.salts.of(e)
	if salt != 0 {
		if len(r.salts)+n > r.config.MaxBlocks {
			r.counts.Overflows++
			clear(r.salts)
			r.events = append(r.events, eventplane.Event{Kind: eventplane.Cleared})
		}
		r.salts.store(e.Hashes[:min(n, r.config.MaxBlocks)], salt)
	}
	seed := eventplane.Seed(e.LoRAName, "") + salt
	size := int(e.BlockSize)
	blocks := out.extend(tier, e, n)
	for i := range blocks {
		mm := mediaOf(e, i)
		blocks[i] = eventplane.Block{Hash: e.Hashes[i], TokensHash: r.hasher.Tokens(seed, r.tokensOf(e, i*size, size), mm), MM: mm}
	}
}

// blocksOf is how many whole blocks a store has.
func blocksOf(e *kvevents.Event) int {
	return int(min(uint64(len(e.Hashes)), uint64(len(e.Tokens))/e.BlockSize))
}

// tokensOf are the tokens that a block's hash covers: its own, and with pairs the one after them.
func (r *Relay) tokensOf(e *kvevents.Event, start, size int) []uint32 {
	if e.NextTokens == nil {
		return e.Tokens[start : start+size]
	}
	r.window = append(append(r.window[:0], e.Tokens[start:start+size]...), e.NextTokens[start+size-1])
	return r.window
}
