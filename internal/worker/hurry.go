package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"remora/internal/dynamo/discovery"
	"remora/internal/sleep"
)

// hurriedTimeout is what a call of the discovery has left once the worker is told to end at once.
const hurriedTimeout = 300 * time.Millisecond

// errHurried says that a discovery which did not answer was not asked again, because the worker had to end at once.
var errHurried = errors.New("the worker must end at once, and the discovery does not answer")

// hurriedStore is the discovery of a worker that may be told to end at once: from then on a call has little time left, and when
// one of them has used it up there are no more, for a store that does not answer would take it from each. Its lease removes what
// is left.
type hurriedStore struct {
	discovery.Store // set once

	cut    context.Context // ends when the worker must end at once; set once
	silent atomic.Bool     // a call has used up its time after the cut
}

// Create implements discovery.Store.
func (s *hurriedStore) Create(ctx context.Context, bucket discovery.Bucket, key string, value []byte) error {
	if s.silent.Load() {
		return errHurried
	}
	return s.within(ctx, func(ctx context.Context) error { return s.Store.Create(ctx, bucket, key, value) })
}

// Delete implements discovery.Store.
func (s *hurriedStore) Delete(ctx context.Context, bucket discovery.Bucket, key string) error {
	if s.silent.Load() {
		return errHurried
	}
	return s.within(ctx, func(ctx context.Context) error { return s.Store.Delete(ctx, bucket, key) })
}

// Close implements discovery.Store.
func (s *hurriedStore) Close(ctx context.Context) error { return s.within(ctx, s.Store.Close) }

// within makes one call.
func (s *hurriedStore) within(ctx context.Context, call func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan struct{})
	stop := context.AfterFunc(s.cut, func() {
		defer close(over)
		if sleep.For(ctx, hurriedTimeout) {
			s.silent.Store(true)
			cancel()
		}
	})
	err := call(ctx)
	cancel()
	if !stop() {
		<-over
	}
	return err
}
