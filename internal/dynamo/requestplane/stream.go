package requestplane

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// ResponseStream is the worker's end of one response.
//
// WriteFrames and EndFrames belong to one goroutine at a time. Close and Wait are for anyone at any moment; from within the
// event callback only Close.
//
// The callback gets what the consumer does: EventStop, perhaps several times, and then at most one of the others, which is the
// last event and means that nothing can be delivered any more. None comes once the response has been ended or closed: that
// consumers hang up then is normal. A failed write closes the connection and is reported like a reset. The callback runs on the
// reader goroutine, so it must not block; it may run before Dial has returned.
type ResponseStream struct {
	conn   net.Conn      // set once
	on     func(Event)   // set once; called by the reader goroutine alone
	linger time.Duration // set once
	done   chan struct{} // closed by the reader goroutine when it has closed the connection

	ended bool // EndFrames has been called; owned by the writing goroutine

	mu     sync.Mutex
	quiet  bool  // ended or closed: the consumer may leave; guarded by mu
	failed error // first failed write; guarded by mu
}

// WriteFrames sends frames of a response that is not complete with them, as they are. It blocks while the consumer does not
// read, after a call of wait, if there is one; Close unblocks it. It keeps no reference to frames.
func (s *ResponseStream) WriteFrames(frames []byte, wait func()) error {
	if s.ended {
		return ErrEnded
	}
	return s.write(frames, wait)
}

// EndFrames is WriteFrames for the frames up to the sentinel. It does not wait for the consumer to close its side: the
// connection is closed when it has, at the latest after the dialer's Linger; Wait waits for that.
func (s *ResponseStream) EndFrames(frames []byte, wait func()) error {
	if s.ended {
		return ErrEnded
	}
	s.ended = true
	s.mu.Lock()
	s.quiet = true // before the last bytes: a consumer may leave as soon as it has read them
	s.mu.Unlock()
	if err := s.write(frames, wait); err != nil {
		return err
	}
	_ = s.conn.SetReadDeadline(time.Now().Add(s.linger)) // the reader will close the connection
	return nil
}

// tryWrite writes what goes without waiting: nothing where the connection can't say how much that is.
func tryWrite(conn net.Conn, p []byte) (int, error) {
	if trier, ok := conn.(interface{ TryWrite(p []byte) (int, error) }); ok {
		return trier.TryWrite(p) //nolint:wrapcheck // the caller says what for
	}
	return 0, nil
}

// write sends frames. A failure ends the stream.
func (s *ResponseStream) write(frames []byte, wait func()) error {
	n, err := tryWrite(s.conn, frames)
	if err == nil && n < len(frames) {
		if wait != nil {
			wait()
		}
		_, err = s.conn.Write(frames[n:])
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

// Close closes the connection at once and unblocks a write that hangs. Nothing more is reported.
func (s *ResponseStream) Close() {
	s.mu.Lock()
	s.quiet = true
	s.mu.Unlock()
	_ = s.conn.Close()
}

// Wait returns when the connection is closed and the reader goroutine has ended.
func (s *ResponseStream) Wait() { <-s.done }
