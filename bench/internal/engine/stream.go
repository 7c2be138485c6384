package engine

import (
	"time"
)

// stream is one open call. Its fields are guarded by its connection's mu unless they say otherwise.
type stream struct {
	conn     *conn         // set once
	id       uint32        // set once
	interval time.Duration // set before the wheel knows it
	due      time.Time     // of the wheel's goroutine, once it knows the stream

	method string
	body   []byte // of the request, with its gRPC prefix

	request  request
	window   int64  // what the peer will still take
	informed bool   // prompt_info has been sent
	sent     uint32 // tokens
	owed     uint32 // paced tokens that are due and not sent
	reply    []byte // a message that comes before all others: the answer of a unary call, or the end of an aborted stream
	last     bool   // reply ends the stream
	done     bool
}

// produce sends a stream's next message if the windows allow it. The connection's mu is held.
func (c *conn) produce(s *stream, stamp uint32) bool {
	if s.done || s.reply == nil && s.request.tokens == 0 {
		return false
	}
	const most = 32 // bytes of a message that is no reply
	if need := int64(grpcPrefix + max(most, len(s.reply))); s.window < need || c.window < need {
		c.starved = true
		return false
	}
	before := len(c.out)
	var msg [most]byte
	over := false
	switch last := s.sent+1 == s.request.tokens; {
	case s.reply != nil:
		c.out = appendMessage(c.out, s.id, s.reply)
		s.reply, over = nil, s.last
	case !s.informed:
		s.informed = true
		c.out = appendMessage(c.out, s.id, appendPromptInfo(msg[:0], s.request.prompt))
	case last:
		s.sent++
		over = true
		c.out = appendMessage(c.out, s.id, appendLastToken(msg[:0], stamp, s.sent))
	default:
		s.sent++
		c.out = append(appendFrame(c.out, frameData, 0, s.id, grpcPrefix+tokenSize), 0, 0, 0, 0, tokenSize)
		c.out = appendToken(c.out, stamp)
	}
	size := int64(len(c.out) - before - frameHeaderSize)
	s.window -= size
	c.window -= size
	if over {
		c.out = appendHeaders(c.out, s.id, flagEndStream, blockDone)
		c.forget(s)
	}
	return true
}

const frameHeaderSize = 9

// pay sends what a stream owes: its reply, or the tokens that are due where it has a pace. The connection's mu is held.
func (c *conn) pay(s *stream) {
	if s.reply != nil && !c.produce(s, 0) {
		return
	}
	for s.owed > 0 {
		informed := s.informed
		if !c.produce(s, Stamp()) {
			return
		}
		if informed {
			s.owed--
		}
	}
}

// beat is one turn of the wheel for a stream: it owes a token more. False means that it is over.
func (c *conn) beat(s *stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.done || s.sent+s.owed >= s.request.tokens {
		return false
	}
	s.owed++
	c.pay(s)
	return !s.done
}

// abort ends a stream as the engine does that was told to.
func (c *conn) abort(s *stream) {
	c.mu.Lock()
	if !s.done {
		s.reply, s.last = appendAborted(nil, s.sent), true
		c.pay(s)
	}
	c.mu.Unlock()
	c.flush()
}

// forget drops a stream. The connection's mu is held.
func (c *conn) forget(s *stream) {
	s.done, s.owed, s.reply = true, 0, nil
	delete(c.streams, s.id)
	if s.request.id != "" {
		c.server.forget(s)
	}
}
