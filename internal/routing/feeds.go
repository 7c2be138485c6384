package routing

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"remora/internal/dynamo/eventplane"
	"remora/internal/kvevents"
	"remora/internal/kvrelay"
)

// Feeds is all that a worker tells routers and frontends. Open, Follow and Close are for one goroutine at a time.
type Feeds struct {
	cfg     Config // set once
	records registry
	all     []*feed   // set by Open; one a rank that publishes KV events
	load    *loadFeed // set by Open; nil: none is told

	// These belong to whoever follows engines.
	engine  string             // instance whose events are read
	sources []kvevents.Source  // where
	end     context.CancelFunc // ends the readers; nil: none run
	running sync.WaitGroup

	mu      sync.Mutex
	readers []*kvevents.Reader // guarded by mu; in the order of all
	before  []kvevents.Stats   // guarded by mu; what earlier readers have counted, likewise
}

// Open tells routers of a feed for each of the sources of an engine, and of the load. engine is as in Follow; it may have no
// sources. ctx bounds the publication alone. After an error nothing is left.
func Open(ctx context.Context, cfg Config, engine string, sources []kvevents.Source) (*Feeds, error) {
	f, err := newFeeds(cfg, sources)
	if err != nil {
		return nil, err
	}
	cfg.Metrics.Register(newCollector(f.ranks))
	if err = f.publish(ctx); err == nil {
		err = f.Follow(engine, sources)
	}
	if err == nil && cfg.BlockSize > 0 {
		err = f.openLoad(ctx)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// newFeeds makes a feed for each source. Nobody knows of them before publish.
func newFeeds(cfg Config, sources []kvevents.Source) (*Feeds, error) {
	f := &Feeds{cfg: cfg, records: registry{store: cfg.Store, log: cfg.Log}, before: make([]kvevents.Stats, len(sources))}
	turns := make(chan struct{}, queriesAtOnce)
	for _, source := range sources {
		one, err := openFeed(&f.cfg, source.Rank, turns)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("KV events of rank %d: %w", source.Rank, err)
		}
		f.all = append(f.all, one)
	}
	return f, nil
}

// publish tells routers of the feeds.
func (f *Feeds) publish(ctx context.Context) error {
	for _, one := range f.all {
		if err := f.records.publish(ctx, one.records); err != nil {
			return fmt.Errorf("publish the KV events of rank %d: %w", one.rank, err)
		}
		f.cfg.Log.Info("publishing KV events", "dp_rank", one.rank, "publisher", strconv.FormatUint(one.id, 16), "endpoint", one.at)
	}
	return nil
}

// openLoad tells frontends of the load, from now on.
func (f *Feeds) openLoad(ctx context.Context) error {
	load, err := newLoadFeed(&f.cfg)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	f.load = load
	if err := f.records.publish(ctx, load.records); err != nil {
		return fmt.Errorf("publish the load: %w", err)
	}
	load.start()
	return nil
}

// sourceOf is the index of a rank's source, below 0 without one.
func sourceOf(rank uint32, sources []kvevents.Source) int {
	return slices.IndexFunc(sources, func(s kvevents.Source) bool { return s.Rank == rank })
}

// fits tells whether there is a source for each feed, and no other.
func (f *Feeds) fits(sources []kvevents.Source) bool {
	return len(sources) == len(f.all) && !slices.ContainsFunc(f.all, func(one *feed) bool { return sourceOf(one.rank, sources) < 0 })
}

// Follow reads the events of an engine from now on, unless it does so already. engine is the instance that it says it is; one
// that does not say is another one each time. What an earlier engine held is void, and routers are told so before they can send
// anything to the new one: the caller puts the worker back into routing after that. The error is ErrOtherRanks, and changes
// nothing.
func (f *Feeds) Follow(engine string, sources []kvevents.Source) error {
	if !f.fits(sources) {
		return fmt.Errorf("%w: of %d now, and of %d before", ErrOtherRanks, len(sources), len(f.all))
	}
	if f.end != nil && engine != "" && engine == f.engine && slices.Equal(sources, f.sources) {
		return nil
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
		events := f.reader(sources[sourceOf(one.rank, sources)], one.publisher)
		f.readers = append(f.readers, events)
		f.running.Go(func() {
			if err := events.Run(ctx); err != nil {
				f.cfg.Log.Error("the engine's KV events can't be read", "dp_rank", one.rank, "error", err)
			}
		})
	}
	return nil
}

// reader brings the engine's events of one rank to its publisher.
func (f *Feeds) reader(source kvevents.Source, p *eventplane.Publisher) *kvevents.Reader {
	relay := kvrelay.New(kvrelay.Config{Rank: source.Rank, BlockSize: f.cfg.BlockSize, Log: f.cfg.Log}, p)
	return kvevents.NewReader(source, &counted{Relay: relay, metrics: f.cfg.Metrics}, f.cfg.Log)
}

func (f *Feeds) stopReading() {
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

// Close withdraws the records, so that no router asks any more, and ends everything. Frontends hear that there is no load.
func (f *Feeds) Close() {
	if f.load != nil {
		f.load.stop()
		f.records.withdraw(f.load.records)
		f.load.socket.Close()
	}
	f.stopReading()
	for _, one := range f.all {
		f.records.withdraw(one.records)
		one.close()
	}
}

// ranks is what the metrics are made of.
func (f *Feeds) ranks() []rankCounts {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]rankCounts, 0, len(f.all))
	for i, one := range f.all {
		counts := rankCounts{one.rank, f.before[i], one.publisher.Counts(), one.socket.Subscribers()}
		if i < len(f.readers) {
			counts.engine = counts.engine.Plus(f.readers[i].Stats())
		}
		out = append(out, counts)
	}
	return out
}
