package routing

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"remora/internal/dynamo/discovery"
)

// withdrawTimeout bounds the removal of all records together, from the first one on: a store that does not answer must not keep a
// worker with many ranks from ending.
const withdrawTimeout = 5 * time.Second

// record is one by which routers find a feed.
type record struct {
	bucket discovery.Bucket
	key    string
	value  []byte
}

// registry is the store as the feeds use it. Its methods are for one goroutine at a time.
type registry struct {
	store discovery.Store
	log   *slog.Logger
	by    time.Time // when the withdrawals must be over; zero until the first
}

// publish writes records in their order.
func (r *registry) publish(ctx context.Context, records []record) error {
	for _, one := range records {
		if err := r.store.Create(ctx, one.bucket, one.key, one.value); err != nil {
			return err
		}
	}
	return nil
}

// withdraw removes records, the last first.
func (r *registry) withdraw(records []record) {
	if r.by.IsZero() {
		r.by = time.Now().Add(withdrawTimeout)
	}
	ctx, end := context.WithDeadline(context.Background(), r.by)
	defer end()
	for _, one := range slices.Backward(records) {
		if err := r.store.Delete(ctx, one.bucket, one.key); err != nil {
			r.log.Error("a record can't be removed now", "bucket", one.bucket, "key", one.key, "error", err)
		}
	}
}
