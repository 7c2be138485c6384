package kvpub

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"time"

	"remora/internal/sim/core"
)

// Network opens ZeroMQ sockets. Both return where they listen, with the port that was chosen if it was 0.
type Network interface {
	// Pub listens with a PUB socket that keeps so many messages for each subscriber.
	Pub(endpoint string, hwm int) (Pub, string, error)
	// Router listens with a ROUTER socket. It hands each request to answer, without the peer's identity, with a reply for one
	// message to that peer.
	Router(endpoint string, answer func(request [][]byte, reply func(frames ...[]byte) error)) (Router, string, error)
}

// Pub is a PUB socket. Publish never blocks.
type Pub interface {
	Publish(frames ...[]byte) (dropped int)
	Close()
}

// Router is a ROUTER socket. Close returns when no answer is under way any more.
type Router interface{ Close() }

// Options describe the publisher of one rank.
type Options struct {
	Config    Config // with its defaults
	Rank      uint32 // absolute; the ports are counted from rank 0
	BlockSize int
	Host      string // where wildcard endpoints listen
	Network   Network
}

// Publisher publishes the events of one rank.
type Publisher struct {
	opts Options

	mu       sync.Mutex
	endpoint string    // guarded by mu; as told, with the port that was chosen
	replay   string    // guarded by mu; likewise, empty without one
	bound    [2]string // guarded by mu; where PUB and ROUTER listen
	pub      Pub       // guarded by mu; nil after Close
	router   Router    // guarded by mu; nil without a replay endpoint
	next     uint64    // guarded by mu; sequence number of the next batch
	buffer   []batch   // guarded by mu; a ring of the last batches, by sequence number
	legacy   bool      // guarded by mu; replay answers have no topic
}

type batch struct {
	sequence uint64
	payload  []byte
}

// endOfReplay is the sequence number of the message that ends a replay.
const endOfReplay = math.MaxUint64

// Open opens the sockets of a rank.
func Open(o Options) (*Publisher, error) {
	p := &Publisher{opts: o}
	var err error
	if p.endpoint, err = atRank(o.Config.Endpoint, o.Rank); err != nil {
		return nil, err
	}
	p.bound[0] = onHost(p.endpoint, o.Host)
	if o.Config.ReplayEndpoint != "" {
		if p.replay, err = atRank(o.Config.ReplayEndpoint, o.Rank); err != nil {
			return nil, err
		}
		p.bound[1] = onHost(p.replay, o.Host)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p, p.open()
}

// open listens where bound says and begins with sequence number 0. It is called with mu held.
func (p *Publisher) open() error {
	pub, at, err := p.opts.Network.Pub(p.bound[0], p.opts.Config.HWM)
	if err != nil {
		return fmt.Errorf("kvpub: publisher of rank %d: %w", p.opts.Rank, err)
	}
	p.pub, p.bound[0], p.endpoint = pub, at, withPort(p.endpoint, at)
	p.next, p.buffer = 0, nil
	if p.replay == "" {
		return nil
	}
	router, at, err := p.opts.Network.Router(p.bound[1], p.answer)
	if err != nil {
		pub.Close()
		p.pub = nil
		return fmt.Errorf("kvpub: replay of rank %d: %w", p.opts.Rank, err)
	}
	p.router, p.bound[1], p.replay = router, at, withPort(p.replay, at)
	return nil
}

// Publish sends what one step did to the prefix cache. lost keeps the message from all subscribers, as a queue that is full
// would; it has its number and can be asked for again.
func (p *Publisher) Publish(events []core.Event, form Form, lost bool) {
	seconds := float64(time.Now().UnixNano()) / 1e9
	payload := form.batch(seconds, events, p.opts.BlockSize, p.opts.Rank)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pub == nil {
		return
	}
	b := batch{sequence: p.next, payload: payload}
	p.next++
	if steps := p.opts.Config.BufferSteps; len(p.buffer) < steps {
		p.buffer = append(p.buffer, b)
	} else {
		p.buffer[b.sequence%uint64(steps)] = b
	}
	if !lost {
		p.pub.Publish([]byte(p.opts.Config.Topic), number(b.sequence), b.payload)
	}
}

// SetLegacyReplay leaves the topic out of replay answers, as up to release 0.25.
func (p *Publisher) SetLegacyReplay(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.legacy = on
}

// answer is the replay: everything from the asked number on that the buffer still has, and an end marker. A request of another
// shape than ["", number] is ignored.
func (p *Publisher) answer(request [][]byte, reply func(frames ...[]byte) error) {
	if len(request) != 2 {
		return
	}
	start := bigEndian(request[1])
	p.mu.Lock()
	legacy, batches := p.legacy, p.since(start)
	p.mu.Unlock()
	topic := []byte(p.opts.Config.Topic)
	for _, b := range append(batches, batch{sequence: endOfReplay}) {
		if b.sequence == endOfReplay {
			topic = nil // measured on 0.32.0: the end marker has an empty frame there
		}
		frames := [][]byte{{}, topic, number(b.sequence), b.payload}
		if legacy {
			frames = [][]byte{{}, number(b.sequence), b.payload}
		}
		if reply(frames...) != nil {
			return // it has gone
		}
	}
}

// since copies the part of the ring that begins with a number, in order. It is called with mu held.
func (p *Publisher) since(start uint64) []batch {
	oldest := p.next - uint64(len(p.buffer))
	var all []batch
	for n := max(start, oldest); n < p.next; n++ {
		all = append(all, p.buffer[n%uint64(p.opts.Config.BufferSteps)])
	}
	return all
}

// Restart closes the sockets and opens them again where they were: numbers begin at 0 and the replay buffer is empty, as after
// a restart of the engine. It belongs to the goroutine that publishes.
func (p *Publisher) Restart() error {
	p.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open()
}

// Close closes the sockets.
func (p *Publisher) Close() {
	p.mu.Lock()
	pub, router := p.pub, p.router
	p.pub, p.router = nil, nil
	p.mu.Unlock() // answers under way need it
	if pub != nil {
		pub.Close()
	}
	if router != nil {
		router.Close()
	}
}

// Endpoints are where the sockets are, in the words of the configuration: a wildcard stays one. replay is empty without one.
func (p *Publisher) Endpoints() (events, replay string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endpoint, p.replay
}

// Bound is where subscribers on this machine find the sockets.
func (p *Publisher) Bound() (events, replay string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bound[0], p.bound[1]
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// bigEndian reads a number of any length; one beyond 64 bits is beyond every sequence.
func bigEndian(b []byte) uint64 {
	n := uint64(0)
	for _, digit := range b {
		if n > math.MaxUint64>>8 {
			return math.MaxUint64
		}
		n = n<<8 | uint64(digit)
	}
	return n
}
