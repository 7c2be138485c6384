package eventplane

import (
	"sync"
	"time"
)

// The bounds of one message, as the Rust sidecar keeps them. An event with more blocks is sent alone.
const (
	messageEvents = 128
	messageBlocks = 8192
)

// DefaultMaxBlocks bounds what a publisher remembers, in blocks; a block takes about 160 bytes.
const DefaultMaxBlocks = 1 << 20

// Config says whose cache a Publisher speaks of, and where it speaks.
type Config struct {
	WorkerID    uint64 // the worker's instance id
	Rank        uint32 // the absolute data-parallel rank
	PublisherID uint64 // a new one for each Publisher: routers do not follow a second one under the same id
	Socket      Socket // of this publisher alone; the caller closes it after the publisher
	// MaxBlocks bounds the blocks of all tiers that are remembered. When there are more, the engine's events must be wrong:
	// everything is dropped, here and at the routers, and told anew. 0: DefaultMaxBlocks; at most 1<<30.
	MaxBlocks int
	Now       func() time.Time // nil: time.Now
}

// Publisher tells routers about one rank's cache, and answers what they ask about it. Its methods may be called from any
// goroutine; events are published in the order of the calls.
//
// The ids of its events begin at 1 and are one apart, whatever happens to the engine. It keeps the latest 1024 events (fewer
// if they have more than 131,072 blocks) and what is stored now, so that its answers are true at any moment.
type Publisher struct {
	source source // set once

	answering sync.Mutex // one query at a time: a large answer takes as much memory as the cache

	mu      sync.Mutex
	closed  bool       // guarded by mu
	sender  sender     // guarded by mu
	cache   *cache     // guarded by mu
	ring    ring       // guarded by mu
	last    uint64     // id of the newest event; guarded by mu
	pending []numbered // of the call under way; guarded by mu
	payload []byte     // reused; guarded by mu
	counts  Counts     // guarded by mu
}

// Counts is what a publisher has done, and what it holds.
type Counts struct {
	Stored, Removed, Cleared uint64 // events sent
	Messages                 uint64 // messages sent
	Dropped                  uint64 // messages that a subscriber lost because it did not read, once a subscriber
	Held                     uint64 // blocks that had to wait for a parent that routers know
	Overflows                uint64 // how often everything was dropped because of Config.MaxBlocks
	Lost                     uint64 // how often the engine's events were said to be incomplete

	AnsweredEvents, AnsweredDump, AnsweredRange, AnsweredError uint64 // recovery queries, by answer

	LastEvent  uint64                 // id of the newest event
	Blocks     [int(External) + 1]int // stored now, by tier
	RingEvents int                    // kept for queries
	RingBlocks int
}

// NewPublisher returns a publisher of an empty cache.
func NewPublisher(cfg Config) *Publisher {
	if cfg.MaxBlocks <= 0 {
		cfg.MaxBlocks = DefaultMaxBlocks
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Publisher{
		source: source{cfg.WorkerID, cfg.Rank},
		sender: sender{socket: cfg.Socket, topic: []byte(TopicKVEvents), publisher: cfg.PublisherID, now: cfg.Now},
		cache:  newCache(min(cfg.MaxBlocks, 1<<30)),
	}
}

// Publish takes changes in the order in which the engine made them, and sends those that are news to a router before it
// returns, in as few messages as the bounds allow. The events' slices belong to the publisher from then on.
func (p *Publisher) Publish(events ...Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	for _, e := range events {
		p.cache.apply(e, p.number)
	}
	p.send()
}

// Lost says that events between the last call and the next are missing, for good.
func (p *Publisher) Lost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Lost++
	p.cache.doubt()
}

// Close ends the publisher: nothing is sent any more. Queries are still answered.
func (p *Publisher) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// Counts is a snapshot.
func (p *Publisher) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.counts
	c.LastEvent, c.RingEvents, c.RingBlocks = p.last, p.ring.count, p.ring.blocks
	c.Held, c.Overflows = p.cache.held, p.cache.overflows
	for i := range c.Blocks {
		c.Blocks[i] = p.cache.stored(Tier(i))
	}
	return c
}

// number gives an event its id and keeps it. mu is held.
func (p *Publisher) number(e Event) {
	p.last++
	n := numbered{e, p.last}
	p.ring.add(n)
	p.pending = append(p.pending, n)
	switch e.Kind {
	case Stored:
		p.counts.Stored++
	case Removed:
		p.counts.Removed++
	case Cleared:
		p.counts.Cleared++
	}
}

// send sends what is pending. mu is held.
func (p *Publisher) send() {
	rest := p.pending
	for len(rest) > 0 {
		n, blocks := 1, rest[0].size()
		for n < len(rest) && n < messageEvents && blocks+rest[n].size() <= messageBlocks {
			blocks += rest[n].size()
			n++
		}
		p.payload = p.source.appendEvents(p.payload[:0], rest[:n])
		p.counts.Messages++
		p.counts.Dropped += uint64(max(p.sender.send(p.payload), 0))
		rest = rest[n:]
	}
	clear(p.pending) // the ring and the tree keep what must be kept
	p.pending = p.pending[:0]
	const spare = 1 << 20 // one huge event must not stay in memory twice
	if cap(p.payload) > spare {
		p.payload, p.sender.frame = nil, nil
	}
}
