package etcd

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"remora/internal/dynamo/discovery"
)

// Watch implements discovery.Store: a snapshot, then every change from its revision on. Where etcd can't tell the changes any
// more (it compacted them away while we were cut off), a new snapshot is compared with what was told.
func (s *Store) Watch(ctx context.Context, bucket discovery.Bucket) (<-chan discovery.Event, error) {
	if err := discovery.CheckBucket(ctx, bucket); err != nil {
		return nil, err
	}
	either, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	w := &watch{
		store: s, prefix: string(bucket) + "/", log: s.log.With("bucket", string(bucket)), out: make(chan discovery.Event),
		shown: make(map[string][]byte), pending: make(map[string]discovery.Event),
	}
	next, err := w.snapshot(either)
	if err != nil {
		stop()
		cancel()
		if s.ctx.Err() != nil {
			return nil, discovery.ErrClosed
		}
		return nil, fmt.Errorf("watch %s: %w", bucket, brief(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		stop()
		cancel()
		return nil, discovery.ErrClosed
	}
	s.wg.Go(func() {
		defer cancel()
		defer stop()
		defer close(w.out)
		w.run(either, next)
	})
	return w.out, nil
}

// watch is one watch. Its fields belong to its goroutine; what it holds is bounded by the bucket, because events of one key
// are merged while the reader does not take them.
type watch struct {
	store  *Store
	prefix string
	log    *slog.Logger
	out    chan discovery.Event

	shown   map[string][]byte          // what the reader knows, or will when pending is sent
	pending map[string]discovery.Event // not sent yet
	order   []string                   // the keys of pending, oldest first
}

// snapshot notes how the bucket differs from what was shown, and returns the revision from which on changes count.
func (w *watch) snapshot(ctx context.Context) (next int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := w.store.client.Get(ctx, w.prefix, clientv3.WithPrefix())
	if err != nil {
		return 0, err
	}
	present := make(map[string]struct{}, len(answer.Kvs))
	for _, kv := range answer.Kvs {
		present[strings.TrimPrefix(string(kv.GetKey()), w.prefix)] = struct{}{}
		w.put(kv)
	}
	var gone []string
	for key := range w.shown {
		if _, ok := present[key]; !ok {
			gone = append(gone, key)
		}
	}
	slices.Sort(gone)
	for _, key := range gone {
		w.removed(key)
	}
	return answer.Header.GetRevision() + 1, nil
}

func (w *watch) put(kv *mvccpb.KeyValue) {
	key := strings.TrimPrefix(string(kv.GetKey()), w.prefix)
	if !discovery.IsObject(kv.GetValue()) {
		w.log.Warn("ignoring an unreadable discovery record", "key", key) // an earlier good value stays
		return
	}
	if known, ok := w.shown[key]; ok && bytes.Equal(known, kv.GetValue()) {
		return
	}
	w.shown[key] = kv.GetValue()
	w.note(discovery.Event{Kind: discovery.Put, Key: key, Value: slices.Clone(kv.GetValue())})
}

func (w *watch) removed(key string) {
	if _, ok := w.shown[key]; !ok {
		return
	}
	delete(w.shown, key)
	w.note(discovery.Event{Kind: discovery.Removed, Key: key})
}

func (w *watch) note(e discovery.Event) {
	if _, waiting := w.pending[e.Key]; !waiting {
		w.order = append(w.order, e.Key)
	}
	w.pending[e.Key] = e
}

func (w *watch) run(ctx context.Context, next int64) {
	for {
		if !w.stream(ctx, next) {
			return
		}
		for {
			var err error
			if next, err = w.snapshot(ctx); err == nil {
				break
			}
			w.log.Warn("can't read the discovery records again", "error", brief(err))
			if !w.follow(ctx, nil, time.After(retryAfter)) {
				return
			}
		}
	}
}

// stream follows the changes from a revision on until etcd ends the watch; false when ctx ended.
func (w *watch) stream(ctx context.Context, next int64) bool {
	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	return w.follow(ctx, w.store.client.Watch(watching, w.prefix, clientv3.WithPrefix(), clientv3.WithRev(next)), nil)
}

// follow takes changes and hands them on until there are no more or until over; false when ctx ended.
func (w *watch) follow(ctx context.Context, changes clientv3.WatchChan, over <-chan time.Time) bool {
	for {
		var out chan discovery.Event
		var first discovery.Event
		if len(w.order) > 0 {
			out, first = w.out, w.pending[w.order[0]]
		}
		select {
		case out <- first:
			delete(w.pending, first.Key)
			w.order = w.order[1:]
		case answer, ok := <-changes:
			if ctx.Err() != nil {
				return false
			}
			if err := answer.Err(); !ok || err != nil {
				w.log.Warn("etcd ended the watch; reading the records again", "error", err)
				return true
			}
			w.take(answer.Events)
		case <-over:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

func (w *watch) take(events []*clientv3.Event) {
	for _, e := range events {
		if e.GetType() == clientv3.EventTypeDelete {
			w.removed(strings.TrimPrefix(string(e.GetKv().GetKey()), w.prefix))
		} else {
			w.put(e.GetKv())
		}
	}
}
