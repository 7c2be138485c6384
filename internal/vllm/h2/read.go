package h2

import (
	"errors"
	"fmt"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"

	"remora/internal/vllm/decode"
)

// read is the reader: it reads what has arrived, then tells the streams of it, and so on. It ends with the connection, or
// when a sink had to wait and another goroutine reads now.
func (c *conn) read() {
	decoder := &decode.Decoder{Limit: maxMessage}
	for {
		if !c.tell(decoder) {
			return
		}
		if err := c.burst(); err != nil {
			c.lose(err)
			for c.served < len(c.touched) { // to goroutines of their own: nothing more comes to be read here
				c.touched[c.served].wake()
				c.served++
			}
			c.pool.mu.Lock()
			delete(c.pool.live, c)
			c.pool.mu.Unlock()
			c.pool.goroutines.Done()
			return
		}
	}
}

// lose ends the connection for an error of burst.
func (c *conn) lose(err error) {
	if fault, ok := errors.AsType[http2.ConnectionError](err); ok {
		code := http2.ErrCode(fault)
		if detail := c.framer.ErrorDetail(); detail != nil {
			err = fmt.Errorf("%w: %w", err, detail)
		}
		c.fail(readCause(err, c.settled), &code)
		return
	}
	if errors.Is(err, http2.ErrFrameTooLarge) {
		code := http2.ErrCodeFrameSize
		c.fail(readCause(err, c.settled), &code)
		return
	}
	c.fail(readCause(err, c.settled), nil)
}

// tell delivers to the streams that have something to tell. It reports whether the caller is still the reader.
func (c *conn) tell(decoder *decode.Decoder) bool {
	for c.served < len(c.touched) {
		s := c.touched[c.served]
		c.touched[c.served] = nil
		c.served++
		s.touched = false
		if s.isAside() {
			s.wake()
			continue
		}
		if !s.claim() {
			continue // whoever delivers sees what came
		}
		s.reader = c
		if !s.deliver(decoder) {
			return false
		}
	}
	c.touched, c.served = c.touched[:0], 0
	return true
}

// touch notes that a stream has something to tell.
func (c *conn) touch(s *Stream) {
	if !s.touched {
		s.touched = true
		c.touched = append(c.touched, s)
	}
}

// burst reads a frame, and all others that are buffered whole.
func (c *conn) burst() error {
	for {
		if err := c.frame(); err != nil {
			return err
		}
		if !c.another() {
			return nil
		}
	}
}

const frameHeader = 9

// another reports whether a whole frame is buffered.
func (c *conn) another() bool {
	if c.in.Buffered() < frameHeader {
		return false
	}
	head, err := c.in.Peek(3)
	return err == nil && c.in.Buffered() >= frameHeader+(int(head[0])<<16|int(head[1])<<8|int(head[2]))
}

func (c *conn) frame() error {
	frame, err := c.framer.ReadFrame()
	if err != nil {
		fault, ok := errors.AsType[http2.StreamError](err)
		if !ok || !c.settled {
			return err
		}
		return c.onStreamError(fault)
	}
	if !c.settled {
		if f, ok := frame.(*http2.SettingsFrame); !ok || f.IsAck() {
			return fmt.Errorf("the first frame is %v, not SETTINGS: %w", frame.Header().Type, http2.ConnectionError(http2.ErrCodeProtocol))
		}
	}
	switch f := frame.(type) {
	case *http2.DataFrame:
		return c.onData(f)
	case *http2.MetaHeadersFrame:
		return c.onHeaders(f)
	case *http2.RSTStreamFrame:
		return c.onReset(f)
	case *http2.SettingsFrame:
		return c.onSettings(f)
	case *http2.PingFrame:
		return c.onPing(f)
	case *http2.GoAwayFrame:
		return c.onGoAway(f)
	case *http2.WindowUpdateFrame:
		return c.onWindowUpdate(f)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol) // it was told not to
	default:
		return nil // priorities, and kinds that are not known yet
	}
}

// stream finds an open stream. Nil without an error is one that has ended; a stream that never was is the peer's fault.
func (c *conn) stream(id uint32) (*Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id%2 == 0 || id >= c.nextID {
		return nil, fmt.Errorf("frame of stream %d, which was not opened: %w", id, http2.ConnectionError(http2.ErrCodeProtocol))
	}
	return c.streams[id], nil
}

func (c *conn) onData(f *http2.DataFrame) error {
	size := int(f.Length)
	c.arrived(size)
	s, err := c.stream(f.StreamID)
	if s == nil || err != nil {
		return err
	}
	back, fault := s.put(f.Data(), size)
	if fault != nil {
		c.giveUp(s, fault.code, End{Code: codes.Internal, Message: fault.text})
		return nil
	}
	if back > 0 {
		c.allow(s, back)
	}
	if len(f.Data()) > 0 {
		c.touch(s)
	}
	if f.StreamEnded() {
		c.ended(s, End{Code: codes.Internal, Message: "server closed the stream without sending trailers"})
	}
	return nil
}

// arrived gives the connection's window back. That nobody sends beyond it is not looked at: nothing is kept for it, the windows
// of the streams bound what is.
func (c *conn) arrived(size int) {
	c.unreturned += size
	if c.unreturned < connWindow/4 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(c.frames.WriteWindowUpdate(0, uint32(c.unreturned)))
	c.signal()
	c.unreturned = 0
}

// fault is a peer's breach of the rules of one stream.
type fault struct {
	code http2.ErrCode
	text string
}

// put adds bytes to the inbox. size counts padding, too, which waits for no sink: back is what of it must be given back now.
func (s *Stream) put(data []byte, size int) (back int, breach *fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.headers {
		return 0, &fault{http2.ErrCodeProtocol, "DATA before the response headers"}
	}
	s.window -= size
	if s.window < 0 {
		return 0, &fault{http2.ErrCodeFlowControl, fmt.Sprintf("received more than the stream's window of %d bytes", streamWindow)}
	}
	s.padding += size - len(data)
	if s.padding >= streamWindow/4 {
		back, s.padding = s.padding, 0
		s.window += back
	}
	if !s.dropped {
		s.inbox = append(s.inbox, data...)
	}
	return back, nil
}

// giveUp resets a stream because of what its peer did.
func (c *conn) giveUp(s *Stream, code http2.ErrCode, end End) {
	if _, there := c.remove(s, code); there {
		s.finish(end)
		c.touch(s)
	}
}

// ended is for a stream that the peer has ended.
func (c *conn) ended(s *Stream, end End) {
	c.mu.Lock()
	_, there := c.detach(s)
	if there && !s.submitted {
		// The answer was there before the request: nobody needs the rest of it.
		c.note(c.frames.WriteRSTStream(s.id, http2.ErrCodeNo))
		c.signal()
	}
	c.mu.Unlock()
	if there {
		c.afterRemoval()
		s.finish(end)
		c.touch(s)
	}
}

func (c *conn) onHeaders(f *http2.MetaHeadersFrame) error {
	s, err := c.stream(f.StreamID)
	if s == nil || err != nil {
		return err
	}
	s.mu.Lock()
	initial := !s.headers
	s.mu.Unlock()
	last := f.StreamEnded()
	var a answer
	switch {
	case !initial && !last:
		a = verdict(codes.Internal, "a HEADERS frame cannot appear in the middle of a stream")
	case f.Truncated:
		a = verdict(codes.Internal, "peer header list size exceeded limit")
	default:
		a = readHeaders(f.Fields, initial, last)
	}
	switch {
	case a.ignore:
	case a.headers:
		s.mu.Lock()
		s.headers, s.encoding, s.request = true, a.encoding, nil
		s.mu.Unlock()
		c.touch(s)
	case a.broken:
		c.giveUp(s, http2.ErrCodeProtocol, a.end)
	default:
		c.ended(s, a.end)
	}
	return nil
}

// onStreamError is for a frame that breaks the rules of one stream.
func (c *conn) onStreamError(err http2.StreamError) error {
	s, unknown := c.stream(err.StreamID)
	if s == nil || unknown != nil {
		return unknown
	}
	text := "received invalid frame"
	if detail := c.framer.ErrorDetail(); detail != nil {
		text = detail.Error()
	}
	c.giveUp(s, http2.ErrCodeProtocol, End{Code: resetEnd(err.Code).Code, Message: text})
	return nil
}

func (c *conn) onReset(f *http2.RSTStreamFrame) error {
	s, err := c.stream(f.StreamID)
	if s == nil || err != nil {
		return err
	}
	c.mu.Lock()
	_, there := c.detach(s)
	c.mu.Unlock()
	if !there {
		return nil
	}
	c.afterRemoval()
	end := resetEnd(f.ErrCode)
	if f.ErrCode == http2.ErrCodeRefusedStream {
		c.pool.retry(s, end)
		return nil
	}
	s.finish(end)
	c.touch(s)
	return nil
}
