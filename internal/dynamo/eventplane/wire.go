package eventplane

import (
	"encoding/binary"
	"time"

	"github.com/tinylib/msgp/msgp"
)

// The topics of a worker's messages.
const (
	TopicKVEvents = "kv-events"
	TopicMetrics  = "kv_metrics"
)

// numbered is an event under its id. Ids are one apart; routers find losses by them.
type numbered struct {
	Event

	id uint64
}

// source says whose cache events are about. Every event of a message carries it, or routers throw the message away.
type source struct {
	worker uint64
	rank   uint32
}

// residency is what the Rust sidecar writes as residency_domain: the blocks are the worker's own.
const residency = "worker"

// appendEvents appends a list of events in MessagePack, keys in the order of the Rust sidecar.
func (s source) appendEvents(dst []byte, events []numbered) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(events)))
	for i := range events {
		dst = s.appendEvent(dst, &events[i])
	}
	return dst
}

func (s source) appendEvent(dst []byte, e *numbered) []byte {
	fields := uint32(4)
	if e.SessionID != "" {
		fields++
	}
	dst = msgp.AppendMapHeader(dst, fields)
	dst = msgp.AppendUint64(msgp.AppendString(dst, "worker_id"), s.worker)
	dst = msgp.AppendString(msgp.AppendString(dst, "storage_tier"), e.Tier.String())
	dst = msgp.AppendString(msgp.AppendString(dst, "residency_domain"), residency)
	if e.SessionID != "" {
		dst = msgp.AppendString(msgp.AppendString(dst, "session_id"), e.SessionID)
	}
	dst = msgp.AppendMapHeader(msgp.AppendString(dst, "event"), 3)
	dst = msgp.AppendUint64(msgp.AppendString(dst, "event_id"), e.id)
	dst = appendData(msgp.AppendString(dst, "data"), e)
	return msgp.AppendUint32(msgp.AppendString(dst, "dp_rank"), s.rank)
}

func appendData(dst []byte, e *numbered) []byte {
	switch e.Kind {
	case Stored:
		dst = msgp.AppendString(msgp.AppendMapHeader(dst, 1), "stored")
		dst = msgp.AppendString(msgp.AppendMapHeader(dst, 3), "parent_hash")
		if e.HasParent {
			dst = msgp.AppendUint64(dst, e.Parent)
		} else {
			dst = msgp.AppendNil(dst)
		}
		dst = msgp.AppendNil(msgp.AppendString(dst, "start_position"))
		dst = msgp.AppendArrayHeader(msgp.AppendString(dst, "blocks"), uint32(len(e.Blocks)))
		for i := range e.Blocks {
			dst = appendBlock(dst, &e.Blocks[i])
		}
	case Removed:
		dst = msgp.AppendString(msgp.AppendMapHeader(dst, 1), "removed")
		dst = msgp.AppendString(msgp.AppendMapHeader(dst, 1), "block_hashes")
		dst = msgp.AppendArrayHeader(dst, uint32(len(e.Hashes)))
		for _, hash := range e.Hashes {
			dst = msgp.AppendUint64(dst, hash)
		}
	case Cleared:
		dst = msgp.AppendString(dst, "cleared")
	}
	return dst
}

func appendBlock(dst []byte, b *Block) []byte {
	dst = msgp.AppendMapHeader(dst, 3)
	dst = msgp.AppendUint64(msgp.AppendString(dst, "block_hash"), b.Hash)
	dst = msgp.AppendUint64(msgp.AppendString(dst, "tokens_hash"), b.TokensHash)
	dst = msgp.AppendString(dst, "mm_extra_info")
	if len(b.MM) == 0 {
		return msgp.AppendNil(dst)
	}
	dst = msgp.AppendString(msgp.AppendMapHeader(dst, 1), "mm_objects")
	dst = msgp.AppendArrayHeader(dst, uint32(len(b.MM)))
	for _, hash := range b.MM {
		dst = msgp.AppendUint64(msgp.AppendString(msgp.AppendMapHeader(dst, 2), "mm_hash"), hash)
		dst = msgp.AppendArrayHeader(msgp.AppendString(dst, "offsets"), 0)
	}
	return dst
}

// envelope is what goes around a message's payload.
type envelope struct {
	topic     string
	publisher uint64
	sequence  uint64 // of the publisher's messages, from 0
	at        time.Time
}

// frameVersion is the first byte of a frame; after it come the envelope's length as four bytes, big-endian, and the envelope.
const frameVersion = 1

// appendFrame appends the last frame of a ZeroMQ message.
func (e envelope) appendFrame(dst, payload []byte) []byte {
	dst = append(dst, frameVersion, 0, 0, 0, 0)
	start := len(dst)
	dst = msgp.AppendMapHeader(dst, 5)
	dst = msgp.AppendUint64(msgp.AppendString(dst, "publisher_id"), e.publisher)
	dst = msgp.AppendUint64(msgp.AppendString(dst, "sequence"), e.sequence)
	dst = msgp.AppendUint64(msgp.AppendString(dst, "published_at"), uint64(max(e.at.UnixMilli(), 0)))
	dst = msgp.AppendString(msgp.AppendString(dst, "topic"), e.topic)
	dst = msgp.AppendBytes(msgp.AppendString(dst, "payload"), payload)
	binary.BigEndian.PutUint32(dst[start-4:], uint32(len(dst)-start))
	return dst
}

// Socket sends messages to whoever has subscribed. Publish must neither block nor keep the frames; it returns how many
// subscribers lost the message.
type Socket interface {
	Publish(frames ...[]byte) (dropped int)
}

// sender numbers and sends a publisher's messages. It belongs to whoever holds its owner's lock.
type sender struct {
	socket    Socket
	topic     []byte
	publisher uint64
	sequence  uint64
	now       func() time.Time
	frame     []byte    // reused
	numbers   [16]byte  // of frames 1 and 2
	frames    [4][]byte // reused
}

// send sends one message: its topic; the publisher's id and the message's number, eight bytes each, big-endian; the frame.
func (s *sender) send(payload []byte) (dropped int) {
	e := envelope{topic: string(s.topic), publisher: s.publisher, sequence: s.sequence, at: s.now()}
	s.frame = e.appendFrame(s.frame[:0], payload)
	binary.BigEndian.PutUint64(s.numbers[:8], s.publisher)
	binary.BigEndian.PutUint64(s.numbers[8:], s.sequence)
	s.sequence++
	s.frames = [4][]byte{s.topic, s.numbers[:8], s.numbers[8:], s.frame}
	return s.socket.Publish(s.frames[:]...)
}
