package eventplanetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/tinylib/msgp/msgp"

	"remora/internal/dynamo/eventplane"
)

// ErrMessage marks bytes that a router would throw away.
var ErrMessage = errors.New("undecodable message")

// Message is one ZeroMQ message of a publisher.
type Message struct {
	Topic       string
	PublisherID uint64
	Sequence    uint64
	PublishedAt uint64 // ms since 1970
	Payload     []byte
}

// DecodeMessage reads the four frames of a message, whose first three must say the same as the envelope in the fourth.
func DecodeMessage(frames [][]byte) (Message, error) {
	if len(frames) != 4 || len(frames[1]) != 8 || len(frames[2]) != 8 || len(frames[3]) < 5 {
		return Message{}, fmt.Errorf("%w: %d frames", ErrMessage, len(frames))
	}
	frame := frames[3]
	if frame[0] != 1 || uint64(binary.BigEndian.Uint32(frame[1:])) != uint64(len(frame)-5) {
		return Message{}, fmt.Errorf("%w: frame header %x", ErrMessage, frame[:5])
	}
	var m Message
	rest, err := object(frame[5:], func(key string, b []byte) (_ []byte, err error) {
		switch key {
		case "publisher_id":
			m.PublisherID, b, err = msgp.ReadUint64Bytes(b)
		case "sequence":
			m.Sequence, b, err = msgp.ReadUint64Bytes(b)
		case "published_at":
			m.PublishedAt, b, err = msgp.ReadUint64Bytes(b)
		case "topic":
			m.Topic, b, err = msgp.ReadStringBytes(b)
		case "payload":
			m.Payload, b, err = msgp.ReadBytesBytes(b, nil)
		default:
			b, err = msgp.Skip(b)
		}
		return b, err
	})
	switch {
	case err != nil:
		return Message{}, fmt.Errorf("%w: envelope: %w", ErrMessage, err)
	case len(rest) > 0, m.Topic != string(frames[0]), m.PublisherID != binary.BigEndian.Uint64(frames[1]),
		m.Sequence != binary.BigEndian.Uint64(frames[2]):
		return Message{}, fmt.Errorf("%w: frames and envelope differ", ErrMessage)
	}
	return m, nil
}

// RouterEvent is one event as it is sent.
type RouterEvent struct {
	eventplane.Event

	WorkerID  uint64
	Rank      uint32
	ID        uint64
	TierWord  string
	Residency string
}

// DecodeEvents reads the payload of a kv-events message.
func DecodeEvents(payload []byte) ([]RouterEvent, error) {
	events, rest, err := list(payload, readEvent)
	if err != nil || len(rest) > 0 {
		return nil, fmt.Errorf("%w: events: %w, %d bytes behind them", ErrMessage, err, len(rest))
	}
	return events, nil
}

// Load is the payload of a kv_metrics message; nil fields were nil.
type Load struct {
	WorkerID uint64
	Rank     uint32
	Used     *uint64
}

// DecodeLoad reads the payload of a kv_metrics message.
func DecodeLoad(payload []byte) (Load, error) {
	var l Load
	rest, err := object(payload, func(key string, b []byte) (_ []byte, err error) {
		switch {
		case key == "worker_id":
			l.WorkerID, b, err = msgp.ReadUint64Bytes(b)
		case key == "dp_rank":
			l.Rank, b, err = msgp.ReadUint32Bytes(b)
		case key == "kv_used_blocks" && !msgp.IsNil(b):
			l.Used = new(uint64)
			*l.Used, b, err = msgp.ReadUint64Bytes(b)
		default:
			b, err = msgp.Skip(b)
		}
		return b, err
	})
	if err != nil || len(rest) > 0 {
		return Load{}, fmt.Errorf("%w: load: %w", ErrMessage, err)
	}
	return l, nil
}

// Answer is the answer to a recovery query.
type Answer struct {
	Kind   string // "Events", "TreeDump", ...
	Events []RouterEvent
	Last   uint64
	Scope  string
	Fields map[string]uint64 // of TooNew and InvalidRange
	Error  string
}

// DecodeAnswer reads an answer in MessagePack.
func DecodeAnswer(b []byte) (Answer, error) {
	var a Answer
	rest, err := object(b, func(key string, b []byte) ([]byte, error) {
		a.Kind = key
		if key == "Error" {
			var err error
			a.Error, b, err = msgp.ReadStringBytes(b)
			return b, err
		}
		a.Fields = map[string]uint64{}
		return object(b, func(key string, b []byte) (_ []byte, err error) {
			switch key {
			case "events":
				a.Events, b, err = list(b, readEvent)
			case "last_event_id":
				a.Last, b, err = msgp.ReadUint64Bytes(b)
			case "reset_scope":
				a.Scope, b, err = msgp.ReadStringBytes(b)
			default:
				a.Fields[key], b, err = msgp.ReadUint64Bytes(b)
			}
			return b, err
		})
	})
	if err != nil || len(rest) > 0 {
		return Answer{}, fmt.Errorf("%w: answer: %w, %d bytes behind it", ErrMessage, err, len(rest))
	}
	return a, nil
}

func readEvent(b []byte) (e RouterEvent, rest []byte, err error) {
	rest, err = object(b, func(key string, b []byte) (_ []byte, err error) {
		switch key {
		case "worker_id":
			e.WorkerID, b, err = msgp.ReadUint64Bytes(b)
		case "storage_tier":
			e.TierWord, b, err = msgp.ReadStringBytes(b)
		case "residency_domain":
			e.Residency, b, err = msgp.ReadStringBytes(b)
		case "session_id":
			e.SessionID, b, err = msgp.ReadStringBytes(b)
		case "event":
			return object(b, e.readInner)
		default:
			b, err = msgp.Skip(b)
		}
		return b, err
	})
	tier := slices.IndexFunc([]eventplane.Tier{0, 1, 2, 3}, func(t eventplane.Tier) bool { return t.String() == e.TierWord })
	if err == nil && tier < 0 {
		err = fmt.Errorf("%w: tier %q", ErrMessage, e.TierWord)
	}
	e.Tier = eventplane.Tier(max(tier, 0))
	return e, rest, err
}

func (e *RouterEvent) readInner(key string, b []byte) ([]byte, error) {
	var err error
	switch {
	case key == "event_id":
		e.ID, b, err = msgp.ReadUint64Bytes(b)
	case key == "dp_rank":
		e.Rank, b, err = msgp.ReadUint32Bytes(b)
	case key == "data" && msgp.NextType(b) == msgp.StrType:
		var word string
		if word, b, err = msgp.ReadStringBytes(b); err == nil && word != "cleared" {
			err = fmt.Errorf("%w: data %q", ErrMessage, word)
		}
		e.Kind = eventplane.Cleared
	case key == "data":
		return object(b, e.readData)
	default:
		b, err = msgp.Skip(b)
	}
	return b, err
}

func (e *RouterEvent) readData(key string, b []byte) ([]byte, error) {
	switch key {
	case "stored":
		e.Kind = eventplane.Stored
		return object(b, func(key string, b []byte) (_ []byte, err error) {
			switch {
			case key == "parent_hash" && !msgp.IsNil(b):
				e.HasParent = true
				e.Parent, b, err = msgp.ReadUint64Bytes(b)
			case key == "blocks":
				e.Blocks, b, err = list(b, readBlock)
			default:
				b, err = msgp.Skip(b)
			}
			return b, err
		})
	case "removed":
		e.Kind = eventplane.Removed
		return object(b, func(_ string, b []byte) (_ []byte, err error) {
			e.Hashes, b, err = list(b, msgp.ReadUint64Bytes)
			return b, err
		})
	}
	return b, fmt.Errorf("%w: data %q", ErrMessage, key)
}

func readBlock(b []byte) (block eventplane.Block, rest []byte, err error) {
	rest, err = object(b, func(key string, b []byte) (_ []byte, err error) {
		switch {
		case key == "block_hash":
			block.Hash, b, err = msgp.ReadUint64Bytes(b)
		case key == "tokens_hash":
			block.TokensHash, b, err = msgp.ReadUint64Bytes(b)
		case key == "mm_extra_info" && !msgp.IsNil(b):
			return object(b, func(_ string, b []byte) (_ []byte, err error) {
				block.MM, b, err = list(b, readMedia)
				return b, err
			})
		default:
			b, err = msgp.Skip(b)
		}
		return b, err
	})
	return block, rest, err
}

func readMedia(b []byte) (hash uint64, rest []byte, err error) {
	rest, err = object(b, func(key string, b []byte) (_ []byte, err error) {
		if key == "mm_hash" {
			hash, b, err = msgp.ReadUint64Bytes(b)
			return b, err
		}
		return msgp.Skip(b)
	})
	return hash, rest, err
}

// object reads a map; field must consume the value.
func object(b []byte, field func(key string, b []byte) ([]byte, error)) ([]byte, error) {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return b, err
	}
	for range n {
		var key string
		if key, b, err = msgp.ReadStringBytes(b); err != nil {
			return b, err
		}
		if b, err = field(key, b); err != nil {
			return b, fmt.Errorf("%s: %w", key, err)
		}
	}
	return b, nil
}

// list reads a list. It grows with the elements that are there, not with the number that is claimed.
func list[T any](b []byte, element func([]byte) (T, []byte, error)) ([]T, []byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return nil, b, err
	}
	var out []T
	for range n {
		var e T
		if e, b, err = element(b); err != nil {
			return nil, b, err
		}
		out = append(out, e)
	}
	return out, b, nil
}
