package routing

import (
	"context"
	"iter"
	"sync"
	"time"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/eventplane"
	"remora/internal/zmq"
)

const (
	// loadInterval is how often the load is looked at, and told where it has changed.
	loadInterval = time.Second
	// loadRepeat is after how many looks it is told anyway: a frontend that comes later hears nothing of before.
	loadRepeat = 5
)

// loadFeed is a load with what frontends need to hear of it.
type loadFeed struct {
	load    *load
	socket  *zmq.Pub
	records []record

	end     context.CancelFunc // ends the goroutine that tells; nil: none runs
	telling sync.WaitGroup
}

// newLoadFeed makes a feed of the load. Nobody knows of it before its records are published.
func newLoadFeed(cfg *Config) (*loadFeed, error) {
	listener, at, err := listen(cfg)
	if err != nil {
		return nil, err
	}
	id, socket := discovery.NewID(), zmq.NewPub(listener, zmq.PubConfig{})
	channel, err := channelRecord(cfg.address(), eventplane.TopicMetrics, id, at)
	if err != nil {
		socket.Close()
		return nil, err
	}
	publisher := eventplane.NewLoadPublisher(eventplane.LoadConfig{
		WorkerID: cfg.Instance.InstanceID, PublisherID: id, Socket: socket,
	})
	return &loadFeed{load: newLoad(cfg, publisher), socket: socket, records: []record{channel}}, nil
}

// start tells the load until stop.
func (f *loadFeed) start() {
	ctx, end := context.WithCancel(context.Background())
	f.end = end
	f.telling.Go(func() { f.load.run(ctx) })
}

// stop says that there is no load any more.
func (f *loadFeed) stop() {
	if f.end != nil {
		f.end()
		f.telling.Wait()
	}
}

// load tells frontends how many blocks of each rank's cache the worker's requests need. The engine tells neither that nor how
// full its cache is, so it is counted here: the blocks of prompt and answer of all requests that are at the engine, those that
// wait for room there included. A block at the same place of the same prompt counts once, as the engine keeps it once. What
// other clients of the engine need, and what a prefill engine holds for a decode, is not in it.
type load struct {
	publisher *eventplane.LoadPublisher
	requests  iter.Seq[Request]
	first     uint32 // rank
	capacity  uint64 // of a rank, in blocks; 0: not told
	blockSize int    // above 0

	hasher eventplane.Hasher
	shared []map[uint64]struct{} // by rank; reused
	told   []uint64              // by rank
}

func newLoad(cfg *Config, publisher *eventplane.LoadPublisher) *load {
	ranks := max(cfg.Ranks, 1)
	l := &load{
		publisher: publisher, requests: cfg.Requests, first: cfg.FirstRank, capacity: cfg.Capacity, blockSize: int(cfg.BlockSize),
		shared: make([]map[uint64]struct{}, ranks), told: make([]uint64, ranks),
	}
	for i := range l.shared {
		l.shared[i] = map[uint64]struct{}{}
	}
	return l
}

// run tells the load until ctx ends, and then that there is none: what was told last counts for ever.
func (l *load) run(ctx context.Context) {
	tick := time.NewTicker(loadInterval)
	defer tick.Stop()
	for looks := 0; ; looks++ {
		for i, used := range l.look() {
			if used != l.told[i] || looks%loadRepeat == 0 {
				l.tell(i, used)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			for i := range l.told {
				l.tell(i, 0)
			}
			return
		}
	}
}

func (l *load) tell(i int, used uint64) {
	l.told[i] = used
	l.publisher.Publish(l.first+uint32(i), used)
}

// look counts the blocks in use by rank. Those of requests for which the engine chose the rank are spread evenly.
func (l *load) look() []uint64 {
	used, spread := make([]uint64, len(l.told)), uint64(0)
	for i := range l.shared {
		clear(l.shared[i])
	}
	for r := range l.requests {
		blocks := uint64((r.Tokens + l.blockSize - 1) / l.blockSize)
		rank := 0
		if r.Rank != nil {
			rank = int(*r.Rank) - int(l.first)
		} else if len(used) > 1 {
			spread += blocks
			continue
		}
		if rank < 0 || rank >= len(used) {
			continue
		}
		prompt := r.Prompt.names(&l.hasher, l.blockSize)
		for _, hash := range prompt {
			l.shared[rank][hash] = struct{}{}
		}
		used[rank] += blocks - min(blocks, uint64(len(prompt)))
	}
	for i := range used {
		used[i] += uint64(len(l.shared[i])) + spread/uint64(len(used))
		if l.capacity > 0 {
			used[i] = min(used[i], l.capacity)
		}
	}
	return used
}
