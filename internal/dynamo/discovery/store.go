package discovery

import "context"

// Bucket is a folder of records; the text is its path on disk and its key prefix in etcd.
type Bucket string

// The buckets of Dynamo's discovery.
const (
	Instances     Bucket = "v1/instances"
	ModelCards    Bucket = "v1/mdc"
	EventChannels Bucket = "v1/event_channels"
	EventSources  Bucket = "v1/event_sources"
)

// valid keeps a store from making folders that no reader looks into.
func (b Bucket) valid() bool {
	switch b {
	case Instances, ModelCards, EventChannels, EventSources:
		return true
	default:
		return false
	}
}

// EventKind says what happened to a key.
type EventKind uint8

// A watch reports that a key has a (new) value, or that it has none any more.
const (
	Put EventKind = iota
	Removed
)

// Event is one change in a bucket. Value is nil for Removed, otherwise one JSON object; it is the receiver's.
type Event struct {
	Kind  EventKind
	Key   string
	Value []byte
}

// Store holds records for as long as their owner lives. All methods may be called from any goroutine.
type Store interface {
	// Create writes a record that no one has yet, and owns it from then on. ErrExists if there is one.
	Create(ctx context.Context, bucket Bucket, key string, value []byte) error
	// Delete removes a record, whoever created it; an absent one is no error.
	Delete(ctx context.Context, bucket Bucket, key string) error
	// Watch sends what is there as Put events, then every change. Changes of one key that follow each other faster than the
	// receiver reads may be merged into the last. The channel is closed when ctx ends or the store closes.
	Watch(ctx context.Context, bucket Bucket) (<-chan Event, error)
	// Close removes every record that this store created, ends its watches and waits for its goroutines. Calling it again
	// does nothing more and gives the first call's result.
	Close(ctx context.Context) error
}
