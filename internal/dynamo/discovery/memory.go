package discovery

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
)

// Memory is discovery inside one process: every store opened on it sees the others' records. The zero Memory is ready.
type Memory struct {
	mu       sync.Mutex
	buckets  map[Bucket]map[string][]byte // guarded by mu
	watchers map[*memoryWatch]struct{}    // guarded by mu
}

// Open gives a store of its own on the shared records; closing it removes only what it created.
func (m *Memory) Open() *MemoryStore {
	ctx, cancel := context.WithCancel(context.Background())
	return &MemoryStore{hub: m, ctx: ctx, cancel: cancel, owned: make(map[recordID]struct{})}
}

// MemoryStore is one participant's view of a Memory.
type MemoryStore struct {
	hub    *Memory
	ctx    context.Context // set once; ends at Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // the watches; Add only under hub.mu while open

	owned  map[recordID]struct{} // guarded by hub.mu
	closed bool                  // guarded by hub.mu
}

var _ Store = (*MemoryStore)(nil)

// recordID names a record across buckets.
type recordID struct {
	bucket Bucket
	key    string
}

// Create implements Store.
func (s *MemoryStore) Create(ctx context.Context, bucket Bucket, key string, value []byte) error {
	if err := CheckRecord(ctx, bucket, key, value); err != nil {
		return err
	}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if _, exists := s.hub.buckets[bucket][key]; exists {
		return fmt.Errorf("%w: %s/%s", ErrExists, bucket, key)
	}
	if s.hub.buckets == nil {
		s.hub.buckets = make(map[Bucket]map[string][]byte)
	}
	if s.hub.buckets[bucket] == nil {
		s.hub.buckets[bucket] = make(map[string][]byte)
	}
	s.hub.buckets[bucket][key] = bytes.Clone(value)
	s.owned[recordID{bucket, key}] = struct{}{}
	s.hub.tell(bucket, Event{Kind: Put, Key: key, Value: value})
	return nil
}

// Delete implements Store.
func (s *MemoryStore) Delete(ctx context.Context, bucket Bucket, key string) error {
	if err := CheckBucket(ctx, bucket); err != nil {
		return err
	}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	s.remove(recordID{bucket, key})
	return nil
}

// remove is called with hub.mu held.
func (s *MemoryStore) remove(id recordID) {
	delete(s.owned, id)
	if _, exists := s.hub.buckets[id.bucket][id.key]; exists {
		delete(s.hub.buckets[id.bucket], id.key)
		s.hub.tell(id.bucket, Event{Kind: Removed, Key: id.key})
	}
}

// Watch implements Store.
func (s *MemoryStore) Watch(ctx context.Context, bucket Bucket) (<-chan Event, error) {
	if err := CheckBucket(ctx, bucket); err != nil {
		return nil, err
	}
	w := &memoryWatch{bucket: bucket, wake: make(chan struct{}, 1), pending: make(map[string]Event)}
	out := make(chan Event)

	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	for key, value := range s.hub.buckets[bucket] {
		w.add(Event{Kind: Put, Key: key, Value: value})
	}
	slices.Sort(w.order)
	if s.hub.watchers == nil {
		s.hub.watchers = make(map[*memoryWatch]struct{})
	}
	s.hub.watchers[w] = struct{}{}
	s.wg.Go(func() {
		defer close(out)
		defer s.hub.forget(w)
		w.run(ctx, s.ctx, s.hub, out)
	})
	return out, nil
}

// Close implements Store.
func (s *MemoryStore) Close(context.Context) error {
	s.hub.mu.Lock()
	s.closed = true
	for id := range s.owned {
		s.remove(id)
	}
	s.hub.mu.Unlock()
	s.cancel()
	s.wg.Wait()
	return nil
}

// tell is called with mu held.
func (m *Memory) tell(bucket Bucket, e Event) {
	for w := range m.watchers {
		if w.bucket == bucket {
			w.add(e)
		}
	}
}

func (m *Memory) forget(w *memoryWatch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.watchers, w)
}

// memoryWatch holds what one watch still has to send: at most one event a key, so a slow reader costs no more than the
// bucket itself.
type memoryWatch struct {
	bucket  Bucket
	wake    chan struct{}    // holds one token while pending is not empty
	pending map[string]Event // guarded by Memory.mu
	order   []string         // guarded by Memory.mu; the keys of pending, oldest change first
}

// add is called with Memory.mu held.
func (w *memoryWatch) add(e Event) {
	if _, waiting := w.pending[e.Key]; !waiting {
		w.order = append(w.order, e.Key)
	}
	e.Value = bytes.Clone(e.Value)
	w.pending[e.Key] = e
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take removes the oldest pending event.
func (w *memoryWatch) take(m *Memory) (e Event, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(w.order) == 0 {
		return Event{}, false
	}
	e = w.pending[w.order[0]]
	delete(w.pending, w.order[0])
	w.order = w.order[1:]
	return e, true
}

func (w *memoryWatch) run(ctx, store context.Context, m *Memory, out chan<- Event) {
	for {
		e, ok := w.take(m)
		if !ok {
			select {
			case <-w.wake:
				continue
			case <-ctx.Done():
				return
			case <-store.Done():
				return
			}
		}
		select {
		case out <- e:
		case <-ctx.Done():
			return
		case <-store.Done():
			return
		}
	}
}
