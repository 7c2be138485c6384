package h2

import (
	"errors"
	"fmt"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// batch is about how much the writer takes at a time, so that a long prompt does not keep it from the next one.
	batch = 64 << 10
	// maxOwed bounds the frames that wait because the peer makes us answer and does not read.
	maxOwed = 4 << 20
	path    = "/vllm.Inference/GenerateStream"
)

var errOwed = errors.New("the engine does not read")

// outbox collects frames. It is a Writer that cannot fail.
type outbox []byte

// Write appends.
func (o *outbox) Write(p []byte) (int, error) {
	*o = append(*o, p...)
	return len(p), nil
}

// note is for the errors of writes to an outbox: the Framer refuses what the protocol forbids, which would be our mistake.
// Called with mu held.
func (c *conn) note(err error) {
	if err != nil {
		c.pool.config.Log.Error("frame not written", "error", err)
	}
}

// signal tells the writer that there is something for it.
func (c *conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// write is the writer. After the connection's death it writes what is left and closes.
func (c *conn) write() {
	defer c.raw.Close()
	var spare outbox
	for range c.wake {
		for {
			c.mu.Lock()
			c.fill()
			frames, dead := c.out, c.dead
			c.out = spare[:0]
			c.mu.Unlock()
			if len(frames) > 0 {
				if _, err := c.raw.Write(frames); err != nil {
					c.fail(fmt.Errorf("write: %w", err), nil)
					return
				}
			}
			spare = frames
			if cap(spare) > 2*batch {
				spare = nil
			}
			if dead {
				return
			}
			if len(frames) == 0 {
				break
			}
		}
	}
}

// fill adds DATA frames as far as the windows go, a frame of each stream in turn. Called with mu held.
func (c *conn) fill() {
	for len(c.sending) > 0 && c.sendWindow > 0 && len(c.out) < batch {
		s := c.sending[0]
		c.sending[0] = nil
		c.sending = c.sending[1:]
		s.queued = false
		n := min(int64(len(s.body.left)), int64(c.frameSize), s.sendWindow, c.sendWindow)
		if n <= 0 {
			continue // a window update brings it back
		}
		last := int(n) == len(s.body.left)
		c.note(c.frames.WriteData(s.id, last, s.body.left[:n]))
		s.body.left = s.body.left[n:]
		s.sendWindow -= n
		c.sendWindow -= n
		if last {
			s.submitted = true
			c.pool.recycle(s.body)
			s.body = nil
			continue
		}
		c.enqueue(s)
	}
}

// enqueue lets a stream send when it is its turn. Called with mu held.
func (c *conn) enqueue(s *Stream) {
	if s.queued || s.body == nil || s.sendWindow <= 0 {
		return
	}
	s.queued = true
	c.sending = append(c.sending, s)
}

// opening is what became of a stream that was to be opened.
type opening uint8

const (
	opened  opening = iota
	skipped         // it was dropped just now, which ends it
	refused         // the connection takes no more streams; the stream is as it was
)

// open sends the headers of a stream, and lets the writer send its body. Called with Pool.mu held.
func (c *conn) open(s *Stream) opening {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.removed {
		return skipped
	}
	if c.dead || c.draining || c.nextID > lastID {
		return refused
	}
	s.id = c.nextID
	c.nextID += 2
	c.block.Reset()
	c.field(":method", "POST")
	c.field(":scheme", "http")
	c.field(":path", path)
	c.field(":authority", c.pool.config.Authority)
	c.field("content-type", contentType)
	c.field("user-agent", "remora")
	c.field("te", "trailers")
	if s.rank != "" {
		c.field("x-data-parallel-rank", s.rank)
	}
	c.note(c.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: s.id, BlockFragment: c.block.Bytes(), EndHeaders: true}))
	c.streams[s.id] = s
	s.sendWindow = c.newWindow
	c.enqueue(s)
	c.signal()
	return opened
}

// leave is for a connection that takes no more streams: lost or told to go away, which it says itself, or at the end of its
// ids.
func (c *conn) leave() {
	c.mu.Lock()
	c.draining = true
	c.mu.Unlock()
	c.pool.retire(c, errSpent)
	c.closeWhenDrained()
}

func (c *conn) field(name, value string) {
	c.note(c.fields.WriteField(hpack.HeaderField{Name: name, Value: value}))
}

// remove takes the stream off the connection and resets it, unless it has gone already: then the one who took it off says
// how it ends. It reports whether the peer may have the whole request, and whether the stream was there.
func (c *conn) remove(s *Stream, code http2.ErrCode) (submitted, there bool) {
	c.mu.Lock()
	submitted, there = c.detach(s)
	if there {
		c.note(c.frames.WriteRSTStream(s.id, code))
		c.signal()
	}
	c.mu.Unlock()
	if there {
		c.afterRemoval()
	}
	return submitted, there
}

// detach takes the stream off the connection. It reports whether the peer may have the whole request, and whether the
// stream was there. Called with mu held.
func (c *conn) detach(s *Stream) (submitted, there bool) {
	s.removed = true
	if c.streams[s.id] != s {
		return s.submitted, false
	}
	delete(c.streams, s.id)
	if s.queued {
		s.queued = false
		for i, other := range c.sending {
			if other == s {
				c.sending = append(c.sending[:i], c.sending[i+1:]...)
				break
			}
		}
	}
	c.pool.recycle(s.body)
	s.body = nil
	return s.submitted, true
}

// afterRemoval makes room for others, or ends a connection that the peer wants to see ended. Called without mu.
func (c *conn) afterRemoval() {
	c.pool.release(c)
	c.closeWhenDrained()
}

func (c *conn) closeWhenDrained() {
	c.mu.Lock()
	drained := c.draining && len(c.streams) == 0
	c.mu.Unlock()
	if drained {
		c.fail(errDrained, nil)
	}
}

// allow gives the peer window for a stream.
func (c *conn) allow(s *Stream, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[s.id] != s {
		return
	}
	c.note(c.frames.WriteWindowUpdate(s.id, uint32(n)))
	c.signal()
}
