package requestplane

import (
	"fmt"
	"net"
	"sync"
	"time"

	"remora/internal/dynamo/protocol"
)

// ResponseStream is the worker's end of one response.
//
// Writing methods (Prologue to Flush) belong to one goroutine at a time. Close, Wait and Done are for anyone at any moment; from
// within the event callback only Close.
//
// The callback gets what the consumer does: EventStop, perhaps several times, and then at most one of the others, which is the
// last event and means that nothing can be delivered any more. None comes once the response has been ended or closed: that
// consumers hang up then is normal. A failed write closes the connection and is reported like a reset. The callback runs on the
// reader goroutine, so it must not block; it may run before Dial has returned.
type ResponseStream struct {
	conn    net.Conn       // set once
	codec   protocol.Codec // set once
	on      func(Event)    // set once; called by the reader goroutine alone
	linger  time.Duration  // set once
	buffers *sync.Pool     // set once
	done    chan struct{}  // closed by the reader goroutine when it has closed the connection

	opened bool   // the prologue has been written; owned by the writing goroutine
	ended  bool   // the response is complete; owned by the writing goroutine
	unsent []byte // what the connection has not taken yet; owned by the writing goroutine
	try    tryWriter

	mu     sync.Mutex
	quiet  bool  // ended or closed: the consumer may leave; guarded by mu
	failed error // first failed write; guarded by mu
}

// sentinel ends a response.
const sentinel = `"sentinel"`

// Prologue announces that the response will come. A streaming client gets its HTTP 200 now. The other writing methods send it
// along with their own frames where it has not been sent.
func (s *ResponseStream) Prologue() error {
	if s.ended {
		return ErrEnded
	}
	_, err := s.send(s.appendPrologue, true)
	return err
}

// ErrorPrologue refuses the request instead of Prologue, and ends the response.
func (s *ResponseStream) ErrorPrologue(refusal *protocol.Error) error {
	if s.opened || s.ended {
		return fmt.Errorf("error prologue: %w", ErrEnded)
	}
	return s.EndFrames(AppendSentinel(AppendErrorPrologue(nil, refusal)))
}

// Write sends items, all in one write, and waits until the connection has taken them.
func (s *ResponseStream) Write(items []protocol.Item) error {
	_, err := s.items(items, true)
	return err
}

// TryWrite is Write for a goroutine that must not wait for a slow consumer. Where done is false the stream keeps what the
// connection has not taken, and the caller should have another goroutine call Flush before it writes any more; a writing method
// that comes earlier waits.
func (s *ResponseStream) TryWrite(items []protocol.Item) (done bool, err error) {
	return s.items(items, false)
}

// WriteValue sends one item of another type than protocol.Item.
func (s *ResponseStream) WriteValue(v protocol.Value) error {
	if s.ended {
		return ErrEnded
	}
	_, err := s.send(func(dst []byte) []byte {
		return appendBodyFrame(s.appendPrologue(dst), func(dst []byte) []byte {
			return protocol.AppendValueItem(dst, s.codec, v)
		})
	}, true)
	return err
}

// End sends the last items, if any, and what completes a response, in one write. It does not wait for the consumer: the
// connection is closed when that has closed its side, at the latest after the dialer's Linger.
func (s *ResponseStream) End(last []protocol.Item) error {
	_, err := s.end(func() (bool, error) { return s.send(func(dst []byte) []byte { return s.appendLast(dst, last) }, true) })
	return err
}

// TryEnd is to End what TryWrite is to Write.
func (s *ResponseStream) TryEnd(last []protocol.Item) (done bool, err error) {
	return s.end(func() (bool, error) { return s.send(func(dst []byte) []byte { return s.appendLast(dst, last) }, false) })
}

// Finish is End and Wait.
func (s *ResponseStream) Finish() error {
	err := s.End(nil)
	s.Wait()
	return err
}

// Flush waits until the connection has taken everything.
func (s *ResponseStream) Flush() error {
	_, err := s.send(func(dst []byte) []byte { return dst }, true)
	if s.ended {
		s.awaitConsumer()
	}
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

func (s *ResponseStream) items(items []protocol.Item, wait bool) (done bool, err error) {
	if s.ended {
		return false, ErrEnded
	}
	return s.send(func(dst []byte) []byte { return s.appendItems(s.appendPrologue(dst), items) }, wait)
}

// end runs the last write of a response.
func (s *ResponseStream) end(write func() (done bool, err error)) (done bool, err error) {
	if s.ended {
		return false, ErrEnded
	}
	s.ended = true
	s.mu.Lock()
	s.quiet = true // before the last bytes: a consumer may leave as soon as it has read them
	s.mu.Unlock()
	if done, err = write(); done || err != nil {
		s.awaitConsumer()
	}
	return done, err
}

// awaitConsumer gives the reader, which will close the connection, its time limit.
func (s *ResponseStream) awaitConsumer() { _ = s.conn.SetReadDeadline(time.Now().Add(s.linger)) }

func (s *ResponseStream) appendPrologue(dst []byte) []byte {
	if s.opened {
		return dst
	}
	s.opened = true
	return AppendPrologue(dst)
}

func (s *ResponseStream) appendItems(dst []byte, items []protocol.Item) []byte {
	for i := range items {
		dst = AppendItem(dst, s.codec, &items[i])
	}
	return dst
}

func (s *ResponseStream) appendLast(dst []byte, items []protocol.Item) []byte {
	dst = s.appendItems(s.appendPrologue(dst), items)
	return AppendSentinel(AppendFinal(dst, s.codec))
}
