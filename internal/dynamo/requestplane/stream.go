package requestplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"remora/internal/dynamo/protocol"
)

// ResponseStream is the worker's end of one response.
//
// Prologue, ErrorPrologue, Write, WriteValue and End belong to one goroutine at a time. Close and Wait may be called by anyone
// at any moment, also from within the event callback (Wait not from there).
//
// The callback gets what the consumer does: EventStop, perhaps several times, and then at most one of the others, which is the
// last event and means that nothing can be delivered any more. None comes after End, ErrorPrologue or Close has been called:
// that consumers hang up then is normal. A failed write closes the connection and is reported like a reset. The callback runs
// on the reader goroutine, so it must not block.
type ResponseStream struct {
	conn    net.Conn       // set once
	codec   protocol.Codec // set once
	on      func(Event)    // set once; called by the reader goroutine alone
	linger  time.Duration  // set once
	buffers *sync.Pool     // set once
	done    chan struct{}  // closed by the reader goroutine when it has closed the connection
	opened  bool           // prologue written or in the buffer; owned by the writing goroutine
	ended   bool           // owned by the writing goroutine
	mu      sync.Mutex     //
	quiet   bool           // ended or closed: the consumer may leave; guarded by mu
	failed  error          // first failed write; guarded by mu
}

// sentinel ends a response.
const sentinel = `"sentinel"`

// Prologue announces that the response will come. A streaming client gets its HTTP 200 now. Write and End do it themselves,
// in the same write as their frames, where it has not been done.
func (s *ResponseStream) Prologue() error {
	return s.write(func(dst []byte) []byte { return dst })
}

// ErrorPrologue refuses the request instead of Prologue, and ends the response.
func (s *ResponseStream) ErrorPrologue(refusal *protocol.Error) error {
	if s.opened {
		return fmt.Errorf("error prologue: %w: the good one has been sent", ErrEnded)
	}
	s.opened = true
	return s.end(func(dst []byte) []byte {
		return appendHeaderFrame(dst, func(dst []byte) []byte { return protocol.AppendPrologue(dst, refusal) })
	})
}

// Write sends items, all in one write.
func (s *ResponseStream) Write(items []protocol.Item) error {
	return s.write(func(dst []byte) []byte {
		for i := range items {
			dst = appendBodyFrame(dst, func(dst []byte) []byte { return protocol.AppendItem(dst, s.codec, &items[i]) })
		}
		return dst
	})
}

// WriteValue sends one item of another type than protocol.Item.
func (s *ResponseStream) WriteValue(v protocol.Value) error {
	return s.write(func(dst []byte) []byte {
		return appendBodyFrame(dst, func(dst []byte) []byte { return protocol.AppendValueItem(dst, s.codec, v) })
	})
}

// End sends what completes the response and returns. The connection is closed when the consumer has closed its side, at the
// latest after the dialer's Linger.
func (s *ResponseStream) End() error { return s.EndWith(nil) }

// EndWith is Write and End in one write.
func (s *ResponseStream) EndWith(items []protocol.Item) error {
	return s.end(func(dst []byte) []byte {
		dst = s.appendPrologue(dst)
		for i := range items {
			dst = appendBodyFrame(dst, func(dst []byte) []byte { return protocol.AppendItem(dst, s.codec, &items[i]) })
		}
		return appendBodyFrame(dst, func(dst []byte) []byte { return protocol.AppendFinal(dst, s.codec) })
	})
}

// Finish is End and Wait.
func (s *ResponseStream) Finish() error {
	err := s.End()
	s.Wait()
	return err
}

// Close closes the connection at once and unblocks a write that hangs. Nothing more is reported.
func (s *ResponseStream) Close() {
	s.mu.Lock()
	s.quiet = true
	s.mu.Unlock()
	_ = s.conn.Close()
}

// Wait returns when the connection is closed and the reader goroutine has ended.
func (s *ResponseStream) Wait() { <-s.done }

// Done is closed when Wait would return.
func (s *ResponseStream) Done() <-chan struct{} { return s.done }

func (s *ResponseStream) appendPrologue(dst []byte) []byte {
	if s.opened {
		return dst
	}
	s.opened = true
	return appendHeaderFrame(dst, func(dst []byte) []byte { return protocol.AppendPrologue(dst, nil) })
}

func (s *ResponseStream) write(frames func([]byte) []byte) error {
	if s.ended {
		return ErrEnded
	}
	return s.send(func(dst []byte) []byte { return frames(s.appendPrologue(dst)) })
}

func (s *ResponseStream) end(frames func([]byte) []byte) error {
	if s.ended {
		return ErrEnded
	}
	s.ended = true
	// Quiet comes before the last bytes: a consumer may leave as soon as it has read them.
	s.mu.Lock()
	s.quiet = true
	s.mu.Unlock()
	err := s.send(func(dst []byte) []byte {
		return appendHeaderFrame(frames(dst), func(dst []byte) []byte { return append(dst, sentinel...) })
	})
	_ = s.conn.SetReadDeadline(time.Now().Add(s.linger)) // ends the reader, which closes the connection
	return err
}

// maxPooled keeps a single huge item from staying in memory.
const maxPooled = 64 << 10

func (s *ResponseStream) send(frames func([]byte) []byte) error {
	buf, ok := s.buffers.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	*buf = frames((*buf)[:0])
	var err error
	if len(*buf) > 0 {
		_, err = s.conn.Write(*buf)
	}
	if cap(*buf) <= maxPooled {
		s.buffers.Put(buf)
	}
	if err == nil {
		return nil
	}
	s.mu.Lock()
	if s.failed == nil {
		s.failed = err
	}
	s.mu.Unlock()
	_ = s.conn.Close() // wakes the reader, which reports it
	return fmt.Errorf("%w: %w", ErrGone, err)
}

func appendHeaderFrame(dst []byte, header func([]byte) []byte) []byte {
	start := len(dst)
	dst = header(appendTwoPartPrefix(dst, 0, 0))
	binary.BigEndian.PutUint64(dst[start:], uint64(len(dst)-start-twoPartPrefix))
	return dst
}

func appendBodyFrame(dst []byte, body func([]byte) []byte) []byte {
	start := len(dst)
	dst = body(appendTwoPartPrefix(dst, 0, 0))
	binary.BigEndian.PutUint64(dst[start+8:], uint64(len(dst)-start-twoPartPrefix))
	return dst
}

var errUnexpectedFrame = errors.New("unexpected frame from the consumer")
