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
	window   int64 // what the peer will still take
	informed bool  // prompt_info has been sent
	sent     uint32
	owed     uint32 // paced tokens that are due and not sent
	done     bool
}

// produce sends a stream's next message if the windows allow it. The connection's mu is held.
func (c *conn) produce(s *stream, stamp uint32) bool {
	const most = grpcPrefix + 32 // the largest message
	if s.done || s.window < most || c.window < most {
		return false
	}
	before := len(c.out)
	var msg [32]byte
	switch last := s.sent+1 == s.request.tokens; {
	case !s.informed:
		s.informed = true
		c.out = appendMessage(c.out, s.id, appendPromptInfo(msg[:0], s.request.prompt))
	case last:
		s.sent++
		c.out = appendMessage(c.out, s.id, appendLastToken(msg[:0], stamp, s.sent))
	default:
		s.sent++
		c.out = append(appendFrame(c.out, frameData, 0, s.id, grpcPrefix+tokenSize), 0, 0, 0, 0, tokenSize)
		c.out = appendToken(c.out, stamp)
	}
	size := int64(len(c.out) - before - frameHeaderSize)
	s.window -= size
	c.window -= size
	if s.sent == s.request.tokens {
		c.end(s)
	}
	return true
}

const frameHeaderSize = 9

// pay sends what a paced stream owes. The connection's mu is held.
func (c *conn) pay(s *stream) {
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
		var msg [32]byte
		c.out = appendMessage(c.out, s.id, appendAborted(msg[:0], s.sent))
		c.end(s)
	}
	c.mu.Unlock()
	c.flush()
}

// end sends a stream's trailers and forgets it. The connection's mu is held.
func (c *conn) end(s *stream) {
	c.out = appendHeaders(c.out, s.id, flagEndStream, blockDone)
	c.forget(s)
}

// forget drops a stream. The connection's mu is held.
func (c *conn) forget(s *stream) {
	s.done, s.owed = true, 0
	delete(c.streams, s.id)
	if s.request.id != "" {
		c.server.forget(s)
	}
}
