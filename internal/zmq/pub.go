package zmq

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
)

// PubConfig sets bounds; a zero field means its default.
type PubConfig struct {
	// QueueMessages and QueueBytes bound what waits for one subscriber, 100 000 messages and 64 MiB by default.
	QueueMessages, QueueBytes int
	// Peers is the number of subscribers at once, 256 by default; further ones are hung up on.
	Peers int
	// Subscribed is called when a subscriber asks for a topic, on that subscriber's goroutine; messages published after the
	// call reach it. Nil for nothing.
	Subscribed func(topic string)
}

func (c PubConfig) withDefaults() PubConfig {
	if c.QueueMessages <= 0 {
		c.QueueMessages = 100_000
	}
	if c.QueueBytes <= 0 {
		c.QueueBytes = 64 << 20
	}
	if c.Peers <= 0 {
		c.Peers = 256
	}
	return c
}

// maxTopics bounds the subscriptions of one peer.
const maxTopics = 1024

// Pub is a PUB socket that listens.
type Pub struct {
	config   PubConfig
	acceptor *acceptor
	dropped  atomic.Uint64

	mu    sync.Mutex
	peers map[*subscriber]struct{} // guarded by mu
}

// ListenPub binds an endpoint.
func ListenPub(at Endpoint, config PubConfig) (*Pub, error) {
	listener, err := listen(at)
	if err != nil {
		return nil, err
	}
	return NewPub(listener, config), nil
}

// NewPub takes a listener over.
func NewPub(listener net.Listener, config PubConfig) *Pub {
	p := &Pub{config: config.withDefaults(), peers: map[*subscriber]struct{}{}}
	p.acceptor = accept(listener, typePub, Limits{Bytes: maxCommand, Frames: 1}, p.config.Peers, p.serve)
	return p
}

// Endpoint is where the socket listens: an address, even where a name or a wildcard was asked for, and the port in use.
func (p *Pub) Endpoint() Endpoint { return p.acceptor.endpoint }

// Publish hands a message, whose first frame is its topic, to every subscriber of that topic. It never
// blocks, and copies what it needs. A subscriber whose queue is full loses this message; how many lost it is returned.
func (p *Pub) Publish(frames ...[]byte) (dropped int) {
	if len(frames) == 0 {
		return 0
	}
	var message []byte // encoded once, for the first who wants it
	p.mu.Lock()
	defer p.mu.Unlock()
	for peer := range p.peers {
		if !peer.wants(frames[0]) {
			continue
		}
		if message == nil {
			size := 0
			for _, frame := range frames {
				size += 9 + len(frame)
			}
			message = appendMessage(make([]byte, 0, size), frames)
		}
		if !peer.push(message) {
			dropped++
		}
	}
	if dropped > 0 {
		p.dropped.Add(uint64(dropped))
	}
	return dropped
}

// Dropped counts messages that did not fit into a subscriber's queue, once a subscriber, since the beginning.
func (p *Pub) Dropped() uint64 { return p.dropped.Load() }

// Subscribers counts the peers with at least one subscription.
func (p *Pub) Subscribers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for peer := range p.peers {
		if len(peer.topics) > 0 {
			n++
		}
	}
	return n
}

// Close ends all connections, without waiting for what is queued, and waits for the goroutines.
func (p *Pub) Close() { p.acceptor.close() }

// subscriber is one peer.
type subscriber struct {
	conn   *Conn
	limit  PubConfig
	topics map[string]struct{} // guarded by Pub.mu

	mu    sync.Mutex
	queue [][]byte      // guarded by mu: what the writer has not taken yet
	count int           // guarded by mu: messages in queue and in the writer's hands
	bytes int           // guarded by mu: their size
	wake  chan struct{} // one element when the queue may have filled
}

// wants reports whether a topic begins with one of the subscriptions; Pub.mu is held.
func (s *subscriber) wants(topic []byte) bool {
	for prefix := range s.topics {
		if len(prefix) <= len(topic) && string(topic[:len(prefix)]) == prefix {
			return true
		}
	}
	return false
}

// push queues a message, or reports that there is no room.
func (s *subscriber) push(message []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count >= s.limit.QueueMessages || s.bytes+len(message) > s.limit.QueueBytes && s.count > 0 {
		return false
	}
	s.queue = append(s.queue, message)
	s.count++
	s.bytes += len(message)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return true
}

// serve reads a subscriber's subscriptions until it leaves; what is published goes out on a second goroutine.
func (p *Pub) serve(ctx context.Context, c *Conn) {
	s := &subscriber{conn: c, limit: p.config, topics: map[string]struct{}{}, wake: make(chan struct{}, 1)}
	p.mu.Lock()
	p.peers[s] = struct{}{}
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	var writer sync.WaitGroup
	writer.Go(func() { s.write(ctx) })
	for {
		got, err := c.next()
		if err != nil || !p.subscription(s, got) {
			break
		}
	}
	p.mu.Lock()
	delete(p.peers, s)
	p.mu.Unlock()
	cancel()
	c.Close()
	writer.Wait()
}

// subscription takes what a subscriber sent: commands of ZMTP 3.1, or messages of 3.0 that begin with 1 or 0. It reports
// false for a peer that asks for too much.
func (p *Pub) subscription(s *subscriber, got item) bool {
	var topic string
	add := false
	switch {
	case got.name == "SUBSCRIBE":
		topic, add = string(got.data), true
	case got.name == "CANCEL":
		topic = string(got.data)
	case got.name == "" && len(got.frames[0]) > 0 && got.frames[0][0] <= 1:
		topic, add = string(got.frames[0][1:]), got.frames[0][0] == 1
	default:
		return true // a command or a message that means nothing to a publisher
	}
	p.mu.Lock()
	if add {
		s.topics[topic] = struct{}{}
	} else {
		delete(s.topics, topic)
	}
	fits := len(s.topics) <= maxTopics
	p.mu.Unlock()
	if add && fits && p.config.Subscribed != nil {
		p.config.Subscribed(topic)
	}
	return fits
}

// write sends what is queued, several messages in one write where they are small, until the context or the connection ends.
func (s *subscriber) write(ctx context.Context) {
	const together = 64 << 10
	var buf bytes.Buffer
	for {
		s.mu.Lock()
		queue := s.queue
		s.queue = nil
		s.mu.Unlock()
		sent := 0
		for i, message := range queue {
			buf.Write(message)
			queue[i] = nil
			sent++
			if buf.Len() < together && i < len(queue)-1 {
				continue
			}
			s.conn.mu.Lock()
			err := s.conn.write(buf.Bytes())
			s.conn.mu.Unlock()
			if err != nil {
				s.conn.Close()
				return
			}
			s.mu.Lock()
			s.bytes -= buf.Len()
			s.count -= sent
			s.mu.Unlock()
			buf.Reset()
			sent = 0
		}
		if len(queue) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
	}
}
