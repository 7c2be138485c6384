package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
	"remora/internal/kvevents"
	"remora/internal/zmq"
)

// feed tells routers what one rank's cache holds, as the engine's events say: a socket, a publisher, an endpoint at which
// routers ask, and three records by which they find both.
type feed struct {
	rank      uint32
	id        uint64 // of the publisher: a new one for each, because routers do not follow a second under the same id
	socket    *zmq.Pub
	publisher *eventplane.Publisher
	records   []record // in the order in which they are published
}

// feeds are those of all local ranks, and the readers that bring the engine's events.
type feeds struct {
	worker *worker // set once
	all    []*feed // set by openFeeds

	// These belong to whoever follows engines: the start, then the supervision, then the end.
	engine  string             // instance whose events are read
	sources []kvevents.Source  // where
	end     context.CancelFunc // ends the readers; nil: none run
	running sync.WaitGroup

	mu      sync.Mutex
	readers []*kvevents.Reader // guarded by mu; in the order of all
	before  []kvevents.Stats   // guarded by mu; what earlier readers have counted, likewise
}

// openFeeds makes a feed for each of the sources. Nobody knows of them before publish.
func (w *worker) openFeeds(plane Plane, sources []kvevents.Source) (*feeds, error) {
	f := &feeds{worker: w, before: make([]kvevents.Stats, len(sources))}
	turns := make(chan struct{}, queriesAtOnce)
	dialer := &requestplane.Dialer{DialContext: w.cfg.DialBack}
	for _, source := range sources {
		one, err := w.openFeed(plane, source.Rank, func(p *eventplane.Publisher) requestplane.Handler {
			return &queries{publisher: p, dialer: dialer, turns: turns, log: w.log.With("dp_rank", source.Rank)}
		})
		if err != nil {
			f.close()
			return nil, fmt.Errorf("KV events of rank %d: %w", source.Rank, err)
		}
		f.all = append(f.all, one)
	}
	return f, nil
}

func (w *worker) openFeed(plane Plane, rank uint32, answering func(*eventplane.Publisher) requestplane.Handler) (*feed, error) {
	listener, err := w.cfg.Listen("tcp", net.JoinHostPort(w.host(), "0"))
	if err != nil {
		return nil, err
	}
	at, err := w.advertised(listener.Addr().String())
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	f := &feed{rank: rank, id: discovery.NewID(), socket: zmq.NewPub(listener, zmq.PubConfig{})}
	f.publisher = eventplane.NewPublisher(eventplane.Config{WorkerID: w.id, Rank: rank, PublisherID: f.id, Socket: f.socket})
	query := w.cfg.Address
	query.Endpoint = eventplane.QueryEndpoint(f.id)
	transport, err := plane.Attach(query, w.id, answering(f.publisher))
	if err == nil {
		f.records, err = w.feedRecords(f, query, transport, "tcp://"+at)
	}
	if err != nil {
		f.socket.Close()
		return nil, err
	}
	return f, nil
}

// feedRecords are the channel, where routers hear of changes; the endpoint at which they ask; and the source, which says whose
// cache it is and names that endpoint. A router asks as soon as it sees the source, so that comes last.
func (w *worker) feedRecords(f *feed, query discovery.Address, transport discovery.Transport, at string) ([]record, error) {
	a := w.cfg.Address
	scope := discovery.Scope(a)
	key := discovery.ChannelKey(scope, eventplane.TopicKVEvents, f.id)
	channel, err := discovery.EventChannel{
		Scope: scope, Topic: eventplane.TopicKVEvents, PublisherID: f.id, Transport: discovery.EventTransport{ZMQ: at},
	}.Encode()
	if err != nil {
		return nil, err
	}
	target := w.instance(query, transport)
	instance, err := target.Encode()
	if err != nil {
		return nil, err
	}
	metadata, err := discovery.KVSource{
		StateEndpoint: discovery.EndpointName{Namespace: a.Namespace, Component: a.Component, Name: a.Endpoint},
		Worker:        discovery.WorkerRank{WorkerID: w.id, DPRank: f.rank}, PublisherID: f.id, RecoveryTarget: target,
	}.Encode()
	if err != nil {
		return nil, err
	}
	source, err := discovery.EventSource{Scope: scope, Topic: eventplane.TopicKVEvents, PublisherID: f.id, Metadata: metadata}.Encode()
	if err != nil {
		return nil, err
	}
	return []record{
		{discovery.EventChannels, key, channel},
		{discovery.Instances, query.Key(w.id), instance},
		{discovery.EventSources, key, source},
	}, nil
}

// publish tells routers of the feeds.
func (f *feeds) publish(ctx context.Context) error {
	for _, one := range f.all {
		if err := f.worker.publishAll(ctx, one.records); err != nil {
			return fmt.Errorf("publish the KV events of rank %d: %w", one.rank, err)
		}
		f.worker.log.Info("publishing KV events", "dp_rank", one.rank, "publisher", strconv.FormatUint(one.id, 16),
			"endpoint", one.socket.Endpoint().String())
	}
	return nil
}

// sourceOf is the index of a rank's source, below 0 without one.
func sourceOf(rank uint32, sources []kvevents.Source) int {
	return slices.IndexFunc(sources, func(s kvevents.Source) bool { return s.Rank == rank })
}

// fits tells whether there is a source for each feed, and no other.
func (f *feeds) fits(sources []kvevents.Source) bool {
	return len(sources) == len(f.all) && !slices.ContainsFunc(f.all, func(one *feed) bool { return sourceOf(one.rank, sources) < 0 })
}

// follow reads the events of an engine from now on, unless it does so already. What an earlier engine held is void, and routers
// are told so before they can send anything to the new one: its caller puts the worker back into routing after that. The sources
// must fit.
func (f *feeds) follow(engine string, sources []kvevents.Source) {
	if f.end != nil && engine != "" && engine == f.engine && slices.Equal(sources, f.sources) {
		return
	}
	f.stopReading()
	ctx, end := context.WithCancel(context.Background())
	f.engine, f.sources, f.end = engine, sources, end
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers = f.readers[:0]
	for _, one := range f.all {
		if one.publisher.Counts().LastEvent > 0 {
			one.publisher.Publish(eventplane.Event{Kind: eventplane.Cleared})
		}
		events := f.worker.relay(sources[sourceOf(one.rank, sources)], one.publisher)
		f.readers = append(f.readers, events)
		f.running.Go(func() {
			if err := events.Run(ctx); err != nil {
				f.worker.log.Error("the engine's KV events can't be read", "dp_rank", one.rank, "error", err)
			}
		})
	}
}

func (f *feeds) stopReading() {
	if f.end == nil {
		return
	}
	f.end()
	f.running.Wait()
	f.end = nil
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range f.readers {
		f.before[i] = f.before[i].Plus(r.Stats())
	}
	f.readers = f.readers[:0]
}

// close withdraws the records, so that no router asks any more, and ends everything.
func (f *feeds) close() {
	f.stopReading()
	for _, one := range f.all {
		f.worker.withdrawAll(one.records)
		one.publisher.Close()
		one.socket.Close()
	}
}

// ranks is what the metrics say of the feeds.
func (f *feeds) ranks() []status.KVRank {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]status.KVRank, 0, len(f.all))
	for i, one := range f.all {
		engine, routers := f.before[i], one.publisher.Counts()
		if i < len(f.readers) {
			engine = engine.Plus(f.readers[i].Stats())
		}
		out = append(out, status.KVRank{
			Rank:        one.rank,
			Connections: engine.Connections, Batches: engine.Batches, LostBatches: engine.Lost, Resets: engine.Resets,
			Replays: engine.Replays, Skipped: engine.Skipped,
			Stored: routers.Stored, Removed: routers.Removed, Cleared: routers.Cleared, Messages: routers.Messages,
			DroppedMessages: routers.Dropped, HeldBlocks: routers.Held, Overflows: routers.Overflows,
			AnsweredEvents: routers.AnsweredEvents, AnsweredDump: routers.AnsweredDump, AnsweredRange: routers.AnsweredRange,
			AnsweredError: routers.AnsweredError,
			Blocks:        routers.Blocks[:], KeptEvents: routers.RingEvents, Subscribers: one.socket.Subscribers(), LastEvent: routers.LastEvent,
		})
	}
	return out
}
