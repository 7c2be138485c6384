package eventplane

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/tinylib/msgp/msgp"

	"remora/internal/dynamo/protocol"
)

// QueryEndpoint names the endpoint, in the worker's namespace and component, at which a publisher's recovery queries arrive.
func QueryEndpoint(publisherID uint64) string {
	return "worker_kv_query_source_" + strconv.FormatUint(publisherID, 16)
}

// maxDump bounds a dump, in bytes of MessagePack: half a million blocks. Blocks beyond it are left out, with all behind them;
// to a router they are then as good as not cached, while an answer that it cannot read would freeze the rank.
const maxDump = 28 << 20

// query is a router's question. Fields that are absent, null or make no sense count as not given: a question that is not
// answered at all keeps the router from hearing of the rank's cache for as long as it asks.
type query struct {
	worker, rank *uint64
	start, end   *uint64 // start nil: everything
	kind         string  // "": recovery
}

func parseQuery(codec protocol.Codec, body []byte) (query, error) {
	v, err := protocol.ParseValue(codec, body)
	if err != nil {
		return query{}, err
	}
	if v.Kind != protocol.KindMap {
		return query{}, fmt.Errorf("%w: it is no map", ErrQuery)
	}
	number := func(key string) *uint64 {
		f, _ := v.Get(key)
		switch {
		case f.Kind == protocol.KindUint:
			return &f.Uint
		case f.Kind == protocol.KindInt && f.Int >= 0:
			n := uint64(f.Int)
			return &n
		}
		return nil
	}
	kind, _ := v.Get("kind")
	return query{worker: number("worker_id"), rank: number("dp_rank"), start: number("start_event_id"), end: number("end_event_id"), kind: kind.Str}, nil
}

// Answer answers a router's recovery query, in its codec; the answer is always one that the router understands:
//
//	{"Events":{"events":[...],"last_event_id":n}}   the events from start_event_id to the newest, as they were sent
//	{"TreeDump":{"events":[...],"last_event_id":n,"reset_scope":"all"}}
//	                                                everything, where the start is null, 0 or older than what is kept, and as
//	                                                long as there was no event
//	{"TooNew":{"requested_start":n,"requested_end":n,"newest_available":n}}   the start has not happened yet
//	{"InvalidRange":{"start_id":n,"end_id":n}}      the end is before the start; it has no other meaning
//	{"Error":"..."}                                 a question for another worker or rank, of another kind, or no question
func (p *Publisher) Answer(codec protocol.Codec, body []byte) []byte {
	q, err := parseQuery(codec, body)
	if err == nil {
		err = p.mine(q)
	}
	p.answering.Lock()
	defer p.answering.Unlock()
	var answer []byte
	if err != nil {
		answer = p.refuse(err)
	} else {
		answer = p.recover(q)
	}
	if codec == protocol.MsgPack {
		return answer
	}
	var text bytes.Buffer
	text.Grow(2 * len(answer))
	if _, err := msgp.UnmarshalAsJSON(&text, answer); err != nil { // what we encoded ourselves decodes
		return protocol.AppendValue(nil, codec, protocol.Map(protocol.Member{Key: "Error", Value: protocol.String(err.Error())}))
	}
	return text.Bytes()
}

// mine tells whether the question is for this publisher.
func (p *Publisher) mine(q query) error {
	if q.worker != nil && *q.worker != p.source.worker {
		return fmt.Errorf("%w: it is for worker %d, this is worker %d", ErrQuery, *q.worker, p.source.worker)
	}
	if q.rank != nil && *q.rank != uint64(p.source.rank) {
		return fmt.Errorf("%w: it is for rank %d, this is rank %d", ErrQuery, *q.rank, p.source.rank)
	}
	if q.kind != "" && q.kind != "recovery" {
		return fmt.Errorf("%w: kind %q is not known", ErrQuery, q.kind)
	}
	return nil
}

func (p *Publisher) refuse(err error) []byte {
	p.mu.Lock()
	p.counts.AnsweredError++
	p.mu.Unlock()
	return msgp.AppendString(msgp.AppendString(msgp.AppendMapHeader(nil, 1), "Error"), err.Error())
}

// recover answers a sound question. What it tells is copied under the lock and encoded without it.
func (p *Publisher) recover(q query) []byte {
	start := uint64(0)
	if q.start != nil {
		start = *q.start
	}
	p.mu.Lock()
	last := p.last
	switch {
	case start == 0 || last == 0:
	case q.end != nil && *q.end < start:
		p.counts.AnsweredRange++
		p.mu.Unlock()
		b := msgp.AppendString(msgp.AppendMapHeader(nil, 1), "InvalidRange")
		b = msgp.AppendUint64(msgp.AppendString(msgp.AppendMapHeader(b, 2), "start_id"), start)
		return msgp.AppendUint64(msgp.AppendString(b, "end_id"), *q.end)
	case start > last:
		p.counts.AnsweredRange++
		p.mu.Unlock()
		end := last
		if q.end != nil {
			end = *q.end
		}
		b := msgp.AppendString(msgp.AppendMapHeader(nil, 1), "TooNew")
		b = msgp.AppendUint64(msgp.AppendString(msgp.AppendMapHeader(b, 3), "requested_start"), start)
		b = msgp.AppendUint64(msgp.AppendString(b, "requested_end"), end)
		return msgp.AppendUint64(msgp.AppendString(b, "newest_available"), last)
	default:
		if events, ok := p.ring.since(start); ok {
			p.counts.AnsweredEvents++
			p.mu.Unlock()
			b := msgp.AppendString(msgp.AppendMapHeader(nil, 1), "Events")
			b = msgp.AppendString(msgp.AppendMapHeader(b, 2), "events")
			b = p.source.appendEvents(b, events)
			return msgp.AppendUint64(msgp.AppendString(b, "last_event_id"), last)
		}
	}
	p.counts.AnsweredDump++
	var events []numbered
	p.cache.dump(func(e Event) { events = append(events, numbered{e, uint64(len(events))}) })
	p.mu.Unlock()
	return p.source.appendDump(nil, events, last)
}

// appendDump appends a whole tree, the events under ids of their own from 0 on. What does not fit is left out.
func (s source) appendDump(dst []byte, events []numbered, last uint64) []byte {
	start := len(dst)
	dst = msgp.AppendString(msgp.AppendMapHeader(dst, 1), "TreeDump")
	dst = msgp.AppendString(msgp.AppendMapHeader(dst, 3), "events")
	dst = msgp.AppendArrayHeader(dst, uint32(len(events)))
	for i := range events {
		dst = s.appendEvent(dst, &events[i])
		if len(dst)-start > maxDump {
			return s.appendDump(dst[:start], events[:i], last)
		}
	}
	dst = msgp.AppendUint64(msgp.AppendString(dst, "last_event_id"), last)
	return msgp.AppendString(msgp.AppendString(dst, "reset_scope"), "all")
}
