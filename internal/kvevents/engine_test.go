package kvevents

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"net"
	"sync"

	"remora/internal/memnet"
	"remora/internal/zmq"
)

// engine publishes KV events and answers replay requests, as vLLM does. Its sockets may be taken away and given back.
type engine struct {
	oldAnswers bool // of vLLM before 0.26: without the topic
	topic      string
	queue      int // of the PUB socket, in messages
	reach      int // of a replay, in batches
	drop       int // one message of an answer in this many is left out; 0: none
	// Where the sockets are; the zero Endpoints are a network in memory.
	atEvents, atReplay zmq.Endpoint

	mu     sync.Mutex
	rng    *rand.Rand
	life   float64
	log    [][]byte            // guarded by mu: every batch of this life
	blocks map[uint64]struct{} // guarded by mu
	next   uint64              // guarded by mu: of block hashes, never used twice
	pub    *zmq.Pub            // guarded by mu; nil: no sockets
	router *zmq.Router
	events *memnet.Listener
	replay *memnet.Listener
}

func newEngine(seed uint64) *engine {
	return &engine{
		topic: "kv", reach: math.MaxInt, rng: rand.New(rand.NewPCG(seed, 1)), life: 1, blocks: map[uint64]struct{}{},
	}
}

var errNoSocket = errors.New("connection refused")

func (e *engine) dialEvents(ctx context.Context) (net.Conn, error) {
	e.mu.Lock()
	l := e.events
	e.mu.Unlock()
	if l == nil {
		return nil, errNoSocket
	}
	return l.DialContext(ctx)
}

func (e *engine) dialReplay(ctx context.Context) (net.Conn, error) {
	e.mu.Lock()
	l := e.replay
	e.mu.Unlock()
	if l == nil {
		return nil, errNoSocket
	}
	return l.DialContext(ctx)
}

// open gives the engine its sockets.
func (e *engine) open() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.atEvents != (zmq.Endpoint{}) {
		var errPub, errRouter error
		e.pub, errPub = zmq.ListenPub(e.atEvents, zmq.PubConfig{QueueMessages: e.queue})
		e.router, errRouter = zmq.ListenRouter(e.atReplay, zmq.RouterConfig{}, e.answer)
		if err := errors.Join(errPub, errRouter); err != nil {
			panic(err)
		}
		return
	}
	e.events, e.replay = memnet.Listen(1<<16), memnet.Listen(1<<16)
	e.pub = zmq.NewPub(e.events, zmq.PubConfig{QueueMessages: e.queue})
	e.router = zmq.NewRouter(e.replay, zmq.RouterConfig{}, e.answer)
}

// close takes them away.
func (e *engine) close() {
	e.mu.Lock()
	pub, router := e.pub, e.router
	e.pub, e.router, e.events, e.replay = nil, nil, nil, nil
	e.mu.Unlock()
	if pub != nil {
		pub.Close()
		router.Close()
	}
}

// restart ends this life: what was cached is gone, and numbers begin at 0.
func (e *engine) restart() {
	e.close()
	e.mu.Lock()
	e.life++
	e.log, e.blocks = nil, map[uint64]struct{}{}
	e.mu.Unlock()
	e.open()
}

// step publishes a batch of random changes.
func (e *engine) step() {
	e.mu.Lock()
	defer e.mu.Unlock()
	var events []any
	for range 1 + e.rng.IntN(3) {
		if len(e.blocks) > 50 || e.rng.IntN(3) == 0 {
			for hash := range e.blocks {
				delete(e.blocks, hash)
				events = append(events, table{"type", "BlockRemoved", "block_hashes", list{hash}, "medium", "GPU"})
				break
			}
			continue
		}
		e.next++
		e.blocks[e.next] = struct{}{}
		events = append(events, list{"BlockStored", list{e.next}, nil, []int{1, 2}, 2, nil, "GPU", nil})
	}
	e.publish(events)
}

// publish publishes a batch; mu is held.
func (e *engine) publish(events []any) {
	payload := pack(list{e.life + float64(len(e.log))/1e6, list(events), 0})
	e.log = append(e.log, payload)
	if e.pub != nil {
		e.pub.Publish([]byte(e.topic), binary.BigEndian.AppendUint64(nil, uint64(len(e.log)-1)), payload)
	}
}

func (e *engine) answer(request [][]byte, reply func(frames ...[]byte) error) {
	if len(request) != 2 || len(request[1]) != 8 {
		return
	}
	from := binary.BigEndian.Uint64(request[1])
	e.mu.Lock()
	log := e.log
	e.mu.Unlock()
	send := func(topic string, seq uint64, payload []byte) error {
		number := binary.BigEndian.AppendUint64(nil, seq)
		if e.oldAnswers {
			return reply(nil, number, payload)
		}
		return reply(nil, []byte(topic), number, payload)
	}
	for seq := max(from, uint64(max(0, len(log)-e.reach))); seq < uint64(len(log)); seq++ {
		if e.drop > 0 && seq > from && rand.IntN(e.drop) == 0 {
			continue
		}
		if send(e.topic, seq, log[seq]) != nil {
			return
		}
	}
	if e.drop == 0 || rand.IntN(e.drop) > 0 {
		_ = send("", endSeq, nil)
	}
}

// index is a consumer that keeps the set of blocks.
type index struct {
	mu     sync.Mutex
	blocks map[uint64]struct{}
	odd    []uint64 // stored twice, or removed without having been stored
	resets int
	lost   uint64
	count  int
	block  chan struct{} // Batch waits for it if it is not nil
	news   chan struct{} // one element when there is something new
}

func newIndex() *index { return &index{blocks: map[uint64]struct{}{}, news: make(chan struct{}, 1)} }

func (x *index) Batch(b *Batch) {
	if x.block != nil {
		<-x.block
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.count++
	defer func() {
		select {
		case x.news <- struct{}{}:
		default:
		}
	}()
	for _, e := range b.Events {
		for _, hash := range e.Hashes {
			_, there := x.blocks[hash]
			if there == (e.Kind == Stored) {
				x.odd = append(x.odd, hash)
			}
			if e.Kind == Stored {
				x.blocks[hash] = struct{}{}
			} else {
				delete(x.blocks, hash)
			}
		}
	}
}

func (x *index) Reset(string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.resets++
	clear(x.blocks)
}

func (x *index) Gap(lost uint64, _ string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lost += lost
}

// same reports whether the index has exactly the engine's blocks.
func (x *index) same(e *engine) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(x.blocks) != len(e.blocks) {
		return false
	}
	for hash := range e.blocks {
		if _, ok := x.blocks[hash]; !ok {
			return false
		}
	}
	return true
}

// logged collects what a Reader logs.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
