package kvpub

import (
	"encoding/binary"

	"github.com/tinylib/msgp/msgp"

	"remora/internal/sim/core"
)

// Form says how batches are written. The zero value is what releases from 0.24 on write by default.
type Form struct {
	// Arrays: events are arrays with their class name first, as before 0.24, instead of maps.
	Arrays bool
	// Bytes: block hashes are 32 bytes, as with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0, instead of the last 8 of them as a
	// number.
	Bytes bool
}

// medium is where the blocks of all events are. A real engine without a GPU says the same (measured, 0.32.0).
const medium = "GPU"

// batch is one message's payload: [seconds since 1970, events, data-parallel rank]. Of the fields that have a default, those
// are written that 0.32.0 was seen to write.
func (f Form) batch(seconds float64, events []core.Event, blockSize int, rank uint32) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, seconds)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for i := range events {
		b = f.event(b, &events[i], blockSize)
	}
	return msgp.AppendUint32(b, rank)
}

func (f Form) event(b []byte, ev *core.Event, blockSize int) []byte {
	w := eventWriter{Form: f, b: b}
	switch ev.Kind {
	case core.Stored:
		w.begin("BlockStored", 11, 8)
		w.hashes("block_hashes", ev.Hashes)
		w.key("parent_block_hash")
		if ev.Parent == nil {
			w.b = msgp.AppendNil(w.b)
		} else {
			w.hash(*ev.Parent)
		}
		w.key("token_ids")
		w.b = msgp.AppendArrayHeader(w.b, uint32(len(ev.Tokens)))
		for _, token := range ev.Tokens {
			w.b = msgp.AppendUint32(w.b, token)
		}
		w.key("block_size")
		w.b = msgp.AppendInt(w.b, blockSize)
		w.key("lora_id")
		w.b = msgp.AppendNil(w.b)
		w.medium()
		w.key("lora_name")
		w.b = msgp.AppendNil(w.b)
		if !f.Arrays {
			w.extraKeys(ev)
			w.group()
			w.key("kv_cache_spec_kind")
			w.b = msgp.AppendString(w.b, "full_attention")
		}
	case core.Removed:
		w.begin("BlockRemoved", 4, 3)
		w.hashes("block_hashes", ev.Hashes)
		w.medium()
		if !f.Arrays {
			w.group()
		}
	case core.Cleared:
		w.begin("AllBlocksCleared", 1, 1)
	}
	return w.b
}

// eventWriter appends one event.
type eventWriter struct {
	Form

	b []byte
}

// begin opens a map with so many keys, or an array of so many elements, both with the class name.
func (w *eventWriter) begin(class string, keys, elements uint32) {
	if w.Arrays {
		w.b = msgp.AppendArrayHeader(w.b, elements)
	} else {
		w.b = msgp.AppendMapHeader(w.b, keys)
	}
	w.key("type")
	w.b = msgp.AppendString(w.b, class)
}

// key names the next value, where values have names.
func (w *eventWriter) key(name string) {
	if !w.Arrays {
		w.b = msgp.AppendString(w.b, name)
	}
}

func (w *eventWriter) hashes(key string, hashes []uint64) {
	w.key(key)
	w.b = msgp.AppendArrayHeader(w.b, uint32(len(hashes)))
	for _, h := range hashes {
		w.hash(h)
	}
}

// hash writes a block's name. The engine core has only the last 8 bytes of a digest; the others are made up of them.
func (w *eventWriter) hash(h uint64) {
	if !w.Bytes {
		w.b = msgp.AppendUint64(w.b, h)
		return
	}
	var digest [32]byte
	for i := range 3 {
		binary.BigEndian.PutUint64(digest[8*i:], (h+uint64(i))*0x9E3779B97F4A7C15)
	}
	binary.BigEndian.PutUint64(digest[24:], h)
	w.b = msgp.AppendBytes(w.b, digest[:])
}

func (w *eventWriter) medium() {
	w.key("medium")
	w.b = msgp.AppendString(w.b, medium)
}

func (w *eventWriter) group() {
	w.key("group_idx")
	w.b = msgp.AppendInt(w.b, 0)
}

// extraKeys are what makes a block's hash differ besides its tokens: the media that reach into it, each with its place, and in
// the first block of a prompt the cache salt.
func (w *eventWriter) extraKeys(ev *core.Event) {
	w.key("extra_keys")
	w.b = msgp.AppendArrayHeader(w.b, uint32(len(ev.Hashes)))
	for i := range ev.Hashes {
		var media []core.MediaKey
		if ev.Media != nil {
			media = ev.Media[i]
		}
		n := len(media)
		salted := i == 0 && ev.Salt != ""
		if salted {
			n++
		}
		if n == 0 {
			w.b = msgp.AppendNil(w.b)
			continue
		}
		w.b = msgp.AppendArrayHeader(w.b, uint32(n))
		for _, key := range media {
			w.b = msgp.AppendArrayHeader(w.b, 2)
			w.b = msgp.AppendString(w.b, key.ID)
			w.b = msgp.AppendInt(w.b, key.Offset)
		}
		if salted {
			w.b = msgp.AppendString(w.b, ev.Salt)
		}
	}
}
