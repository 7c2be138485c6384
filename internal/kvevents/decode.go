package kvevents

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// Decoder reads batches. The zero value is ready. It allocates less than 100 bytes for each byte of a payload, and reuses the
// memory of batches of an ordinary size. It belongs to one goroutine at a time.
type Decoder struct {
	events []Event
	hashes []uint64
	tokens []uint32
	next   []uint32
	keys   []ExtraKey
	extra  [][]ExtraKey
}

// reuse empties a slice, or drops it when a batch of rare size has made it large.
func reuse[T any](s []T) []T {
	if cap(s) > 1<<17 {
		return nil
	}
	return s[:0]
}

// Decode reads a batch: [timestamp, events, rank], where the rank may be nil or missing and more may follow. An event is a map
// with its kind under "type" (vLLM 0.24 and later) or an array that begins with it. Unknown keys and surplus elements are
// passed over; an event that is not understood is skipped and counted, and costs nothing but itself. The error is of kind
// ErrBatch: the payload is broken or something else altogether.
func (d *Decoder) Decode(seq uint64, payload []byte) (Batch, error) {
	d.events, d.hashes, d.tokens, d.next = reuse(d.events), reuse(d.hashes), reuse(d.tokens), reuse(d.next)
	d.keys, d.extra = reuse(d.keys), reuse(d.extra)
	out := Batch{Seq: seq}
	if len(payload) == 0 {
		return Batch{}, fmt.Errorf("%w: it is empty", ErrBatch)
	}
	items, b, err := msgp.ReadArrayHeaderBytes(payload)
	if err != nil || items < 2 {
		return Batch{}, fmt.Errorf("%w: it is not an array of timestamp, events and rank", ErrBatch)
	}
	if out.Timestamp, b, err = readTimestamp(b); err != nil {
		return Batch{}, fmt.Errorf("%w: timestamp: %w", ErrBatch, err)
	}
	count, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return Batch{}, fmt.Errorf("%w: its events are no array", ErrBatch)
	}
	for i := range count {
		if len(b) == 0 {
			return Batch{}, fmt.Errorf("%w: it ends after %d of %d events", ErrBatch, i, count)
		}
		var event Event
		rest, why := d.event(&event, b)
		if why == nil {
			d.events = append(d.events, event)
			b = rest
			continue
		}
		if b, err = msgp.Skip(b); err != nil {
			return Batch{}, fmt.Errorf("%w: event %d: %w", ErrBatch, i, why)
		}
		if out.Skipped++; out.Skipped == 1 {
			out.SkippedWhy = fmt.Sprintf("event %d: %s", i, why)
		}
	}
	out.Events = d.events
	if items > 2 {
		if rank, ok := readWhole(b); ok {
			out.Rank, out.HasRank = rank, true
		}
	}
	return out, nil
}

// event reads one event in either form, or the bare name of an event that has no fields.
func (d *Decoder) event(e *Event, b []byte) (rest []byte, err error) {
	switch msgp.NextType(b) {
	case msgp.MapType:
		return d.mapEvent(e, b)
	case msgp.ArrayType:
		return d.arrayEvent(e, b)
	case msgp.StrType:
		if rest, err = readKind(e, b); err == nil && e.Kind != Cleared {
			err = e.check(1 << fieldType)
		}
		return rest, err
	default:
		return nil, errForm
	}
}

// field is one of the fields that events have.
type field uint8

const (
	fieldNone field = iota // of no interest
	fieldType
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoRAID
	fieldMedium
	fieldLoRAName
	fieldExtraKeys
	fieldGroup
	fieldSpecKind
	fieldSlidingWindow
	fieldLocality
	fieldOwnership
	fieldSession
)

// storedOrder and removedOrder are the fields after the kind in the array form.
var (
	storedOrder = [...]field{
		fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoRAID, fieldMedium, fieldLoRAName, fieldExtraKeys,
		fieldGroup, fieldSpecKind, fieldSlidingWindow, fieldLocality, fieldOwnership, fieldSession,
	}
	removedOrder = [...]field{fieldHashes, fieldMedium, fieldGroup, fieldLocality, fieldOwnership}
)

// fieldOf is the field of a key in the map form.
func fieldOf(key []byte) field {
	switch string(key) {
	case "type":
		return fieldType
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoRAID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoRAName
	case "extra_keys":
		return fieldExtraKeys
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldSpecKind
	case "kv_cache_spec_sliding_window":
		return fieldSlidingWindow
	case "locality":
		return fieldLocality
	case "ownership":
		return fieldOwnership
	case "session_id":
		return fieldSession
	default:
		return fieldNone
	}
}

func kindOf(name []byte) Kind {
	switch string(name) {
	case "BlockStored":
		return Stored
	case "BlockRemoved":
		return Removed
	case "AllBlocksCleared":
		return Cleared
	default:
		return 0
	}
}

// seen is the set of fields that an event had.
type seen uint32

func (s seen) has(f field) bool { return s&(1<<f) != 0 }

func (d *Decoder) mapEvent(e *Event, b []byte) ([]byte, error) {
	count, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return nil, err
	}
	var had seen
	for range count {
		var f field
		if msgp.NextType(b) == msgp.StrType {
			var key []byte
			if key, b, err = msgp.ReadStringZC(b); err != nil {
				return nil, err
			}
			f = fieldOf(key)
		} else if b, err = msgp.Skip(b); err != nil {
			return nil, err
		}
		if b, err = d.field(e, f, b); err != nil {
			return nil, err
		}
		had |= 1 << f
	}
	return b, e.check(had)
}

func (d *Decoder) arrayEvent(e *Event, b []byte) ([]byte, error) {
	count, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return nil, err
	}
	if count == 0 {
		return nil, errForm
	}
	if b, err = d.field(e, fieldType, b); err != nil {
		return nil, err
	}
	var order []field
	switch e.Kind {
	case Stored:
		order = storedOrder[:]
	case Removed:
		order = removedOrder[:]
	case Cleared:
	}
	had := seen(1 << fieldType)
	for i := range count - 1 {
		f := fieldNone
		if int(i) < len(order) {
			f = order[i]
		}
		if b, err = d.field(e, f, b); err != nil {
			return nil, err
		}
		had |= 1 << f
	}
	return b, e.check(had)
}

// check says what an event lacks. Fields that do not belong to its kind are of no harm.
func (e *Event) check(had seen) error {
	switch {
	case !had.has(fieldType):
		return errNoKind
	case e.Kind == Cleared:
		return nil
	case !had.has(fieldHashes):
		return missing(e.Kind, "block_hashes")
	case e.Kind == Removed:
		return nil
	case !had.has(fieldTokens):
		return missing(e.Kind, "token_ids")
	case !had.has(fieldBlockSize):
		return missing(e.Kind, "block_size")
	default:
		return nil
	}
}

func missing(kind Kind, name string) error {
	return fmt.Errorf("%s without %s", kind, name)
}
