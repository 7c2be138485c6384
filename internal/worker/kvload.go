package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/modelcard"
	"remora/internal/vllm"
	"remora/internal/zmq"
	pb "remora/proto/vllm"
)

const (
	// loadInterval is how often the load is looked at, and told where it has changed.
	loadInterval = time.Second
	// loadRepeat is after how many looks it is told anyway: a frontend that comes later hears nothing of before.
	loadRepeat = 5
)

// load tells frontends how many blocks of each rank's cache the worker's requests need. The engine tells neither that nor how
// full its cache is, so it is counted here: the blocks of prompt and answer of all requests that are at the engine, those that
// wait for room there included. A block at the same place of the same prompt counts once, as the engine keeps it once. What
// other clients of the engine need, and what a prefill engine holds for a decode, is not in it.
type load struct {
	publisher *eventplane.LoadPublisher
	requests  func() []*request
	first     uint32 // rank
	capacity  uint64 // of a rank, in blocks; 0: not told
	blockSize int

	hasher eventplane.Hasher
	shared []map[uint64]struct{} // by rank; reused
	told   []uint64              // by rank
}

func newLoad(publisher *eventplane.LoadPublisher, requests func() []*request, first, ranks uint32, blockSize int, capacity uint64) *load {
	l := &load{
		publisher: publisher, requests: requests, first: first, capacity: capacity, blockSize: blockSize,
		shared: make([]map[uint64]struct{}, ranks), told: make([]uint64, ranks),
	}
	for i := range l.shared {
		l.shared[i] = map[uint64]struct{}{}
	}
	return l
}

// loadFeed is a load with what frontends need to hear of it.
type loadFeed struct {
	worker  *worker
	load    *load
	socket  *zmq.Pub
	records []record

	end     context.CancelFunc // ends the goroutine that tells; nil: none runs
	telling sync.WaitGroup
}

// openLoad makes a feed of the load. Nobody knows of it before publish.
func (w *worker) openLoad(found vllm.Discovery, card modelcard.Card) (*loadFeed, error) {
	listener, err := w.cfg.Listen("tcp", net.JoinHostPort(w.host(), "0"))
	if err != nil {
		return nil, err
	}
	at, err := w.advertised(listener.Addr().String())
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	id, a := discovery.NewID(), w.cfg.Address
	scope := discovery.Scope(a)
	channel, err := discovery.EventChannel{
		Scope: scope, Topic: eventplane.TopicMetrics, PublisherID: id, Transport: discovery.EventTransport{ZMQ: "tcp://" + at},
	}.Encode()
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	socket := zmq.NewPub(listener, zmq.PubConfig{})
	return &loadFeed{
		worker: w, socket: socket,
		records: []record{{discovery.EventChannels, discovery.ChannelKey(scope, eventplane.TopicMetrics, id), channel}},
		load: newLoad(eventplane.NewLoadPublisher(eventplane.LoadConfig{WorkerID: w.id, PublisherID: id, Socket: socket}),
			w.service.requests, found.Ranks.Start, max(found.Ranks.Count, 1), int(card.KVBlockSize), found.BlocksPerRank),
	}, nil
}

// publish tells frontends of the feed, and the load from then on.
func (f *loadFeed) publish(ctx context.Context) error {
	if err := f.worker.publishAll(ctx, f.records); err != nil {
		return fmt.Errorf("publish the load: %w", err)
	}
	ctx, f.end = context.WithCancel(context.Background())
	f.telling.Go(func() { f.load.run(ctx) })
	return nil
}

// close says that there is no load any more, and ends everything.
func (f *loadFeed) close() {
	if f.end != nil {
		f.end()
		f.telling.Wait()
	}
	f.worker.withdrawAll(f.records)
	f.socket.Close()
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
	for _, r := range l.requests() {
		tokens, ok := r.atEngine()
		if !ok {
			continue
		}
		blocks := uint64((tokens + l.blockSize - 1) / l.blockSize)
		rank := 0
		if chosen := r.rank(); chosen != nil {
			rank = int(*chosen) - int(l.first)
		} else if len(used) > 1 {
			spread += blocks
			continue
		}
		if rank < 0 || rank >= len(used) {
			continue
		}
		prompt := l.promptBlocks(r)
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

// prompt is what names the blocks of a request's prompt. It outlives the request to the engine, which may be large.
type prompt struct {
	tokens        []uint32 // nil for one with media: equal tokens may be different pictures
	adapter, salt string
}

func promptOf(r *pb.GenerateRequest) prompt {
	if len(r.GetMedia()) > 0 {
		return prompt{}
	}
	return prompt{r.GetTokenIds().GetIds(), r.GetLoraName(), r.GetKv().GetCacheSalt()}
}

// promptBlocks names the full blocks of the prompt of a request that is at the engine.
func (l *load) promptBlocks(r *request) []uint64 {
	if r.promptBlocks != nil {
		return r.promptBlocks
	}
	r.mu.Lock()
	p := r.prompt
	r.prompt = prompt{}
	r.mu.Unlock()
	r.promptBlocks = make([]uint64, 0, len(p.tokens)/l.blockSize)
	seed, parent := eventplane.Seed(p.adapter, p.salt), uint64(0)
	for _, block := range eventplane.Windows(p.tokens, l.blockSize, false) {
		parent = eventplane.SequenceHash(parent, l.hasher.Tokens(seed, block, nil))
		r.promptBlocks = append(r.promptBlocks, parent)
	}
	return r.promptBlocks
}

// atEngine gives the tokens of prompt and answer so far of a request that is at the engine.
func (r *request) atEngine() (tokens int, ok bool) {
	select {
	case <-r.ended:
		return 0, false
	default:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream == nil {
		return 0, false
	}
	return r.call.Response.Tokens(), true
}
