package h2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"

	"remora/internal/vllm/decode"
	pb "remora/proto/vllm"
)

// Sink receives the life of one call. The calls never overlap: at most one OnHeaders, any number of OnMessages, one OnEnd,
// which is the last. A call that must wait for anything calls Stream.Yield before: until it returns or does so, it holds up
// the other streams of its connection. The messages are valid during the call only. more says that the next call follows at once.
type Sink interface {
	OnHeaders(more bool)
	OnMessages(messages []*pb.GenerateResponse, more bool)
	OnEnd(end End)
}

// End is how a call ended. The zero End is OK.
type End struct {
	Code      codes.Code
	Message   string
	Dropped   bool // by our own Drop
	Transport bool // no peer wrote this; the connection could not be had, or it or the stream broke
	NotSent   bool // the peer is known not to have the whole request, so it has done nothing for it
}

const (
	// streamWindow is how much of a stream may lie unread here. It bounds what one sink that does not return can hold.
	streamWindow = 256 << 10
	// keepBytes is the largest buffer that stays with a stream while it is empty.
	keepBytes = 4 << 10
	// asideFor is how many deliveries of a stream go past the reader after one that had to wait.
	asideFor = 64
)

// Stream is one call. The zero Stream is for Pool.Open, once. Drop may be called before that, too.
type Stream struct {
	pool *Pool  // set once by Open
	sink Sink   // set once by Open
	rank string // set once by Open

	// Guarded by the mu of the connection that the stream is on, and Open's before it is on one.
	id         uint32
	body       *body // nil when all of it is with the writer
	sendWindow int64
	queued     bool // waits for its turn to send
	submitted  bool // the end of the body is with the writer, so the peer may have the request
	removed    bool // must not be opened any more

	mu       sync.Mutex
	request  *pb.GenerateRequest // guarded by mu; nil when it can't have to be sent once more: it may be large
	conn     *conn               // guarded by mu; nil until there is one for it
	dropped  bool                // guarded by mu
	retried  bool                // guarded by mu
	headers  bool                // guarded by mu; arrived
	told     bool                // guarded by mu; the sink has been told of them
	encoding string              // guarded by mu; of the messages, as the headers say
	inbox    []byte              // guarded by mu; arrived and not taken
	window   int                 // guarded by mu; what the peer may still send
	padding  int                 // guarded by mu; bytes that arrived and mean nothing, to be given back
	ended    bool                // guarded by mu; OnEnd follows when the inbox is empty
	end      End                 // guarded by mu
	busy     bool                // guarded by mu; a goroutine delivers, and sees to all that comes meanwhile
	aside    int                 // guarded by mu; deliveries that the reader leaves to another goroutine

	touched bool // the reader's: listed in conn.touched

	// The rest belongs to the goroutine that made the stream busy.
	reader *conn  // whose reader that is; nil: it is none, or has given that up
	tail   []byte // beginning of a message
	spare  []byte // the inbox before this one
	credit int    // bytes taken and not yet given back as window
}

// Drop resets the stream without waiting. OnEnd follows, not from inside this call. It is idempotent.
func (s *Stream) Drop() {
	s.mu.Lock()
	if s.dropped {
		s.mu.Unlock()
		return
	}
	s.dropped = true
	on, opened, answered := s.conn, s.sink != nil, s.headers
	s.mu.Unlock()
	if !opened {
		return // Open sees it
	}
	submitted := false
	if on != nil {
		submitted, _ = on.remove(s, http2.ErrCodeCancel)
	}
	s.pool.forget(s)
	s.finish(droppedEnd(submitted || answered))
	s.wake()
}

func droppedEnd(submitted bool) End {
	return End{Code: codes.Canceled, Message: "dropped", Dropped: true, NotSent: !submitted}
}

// finish sets the end, if there is none yet.
func (s *Stream) finish(end End) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.ended, s.end = true, end
	}
}

// overrule sets the end because of what the sink must not see any more.
func (s *Stream) overrule(end End) {
	s.mu.Lock()
	on := s.conn
	s.mu.Unlock()
	on.remove(s, http2.ErrCodeCancel)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inbox = nil
	if !s.dropped { // else Drop has said how it ends, or is about to
		s.ended, s.end = true, end
	}
}

// claim makes the stream busy for the caller, who must then call deliver. It reports false when somebody delivers already.
func (s *Stream) claim() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy {
		return false
	}
	s.busy = true
	return true
}

// wake has a goroutine of the stream's own deliver, unless somebody does already.
func (s *Stream) wake() {
	if s.claim() {
		go s.deliverAside()
	}
}

func (s *Stream) deliverAside() {
	decoder := s.pool.decoder()
	_ = s.deliver(decoder)
	s.pool.decoders.Put(decoder)
}

// isAside takes one from what the reader must leave to others, and reports whether there was any.
func (s *Stream) isAside() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.aside == 0 {
		return false
	}
	s.aside--
	return true
}

// Yield is called by a sink, from inside a call, before it waits for anything: the streams that share its connection must
// not wait with it. It costs a goroutine, so not for each call.
func (s *Stream) Yield() {
	if s.reader == nil {
		return
	}
	reader := s.reader
	s.reader = nil
	s.mu.Lock()
	s.aside = asideFor
	s.mu.Unlock()
	go reader.read() // counted in goroutines when the connection was made; the role carries that count
}

// deliver tells the sink all there is to tell, and reports whether a caller that was a reader still is. The stream is the
// caller's until it returns.
func (s *Stream) deliver(decoder *decode.Decoder) bool {
	for {
		s.mu.Lock()
		switch {
		case s.headers && !s.told && !s.dropped:
			s.told = true
			more := holdsMessage(s.inbox) || s.ended
			s.mu.Unlock()
			s.sink.OnHeaders(more)
		case len(s.inbox) > 0 && !s.dropped:
			taken := s.inbox
			s.inbox, s.spare = s.spare, nil
			more := s.ended
			s.mu.Unlock()
			s.take(decoder, taken, more)
		case s.ended:
			end := s.end
			s.inbox = nil
			s.mu.Unlock()
			if end.Code == codes.OK && len(s.tail) > 0 {
				end = End{Code: codes.Internal, Message: "the stream ended within a message"}
			}
			s.tail, s.spare = nil, nil
			s.sink.OnEnd(end)
			return s.reader != nil // busy for ever
		default:
			reads := s.reader != nil
			s.reader, s.busy = nil, false
			s.mu.Unlock()
			return reads
		}
	}
}

// holdsMessage reports whether a whole message is at the beginning: a flag, its length in four bytes, and as many bytes.
func holdsMessage(data []byte) bool {
	const prefix = 5
	return len(data) >= prefix && uint32(len(data)-prefix) >= binary.BigEndian.Uint32(data[1:])
}

// take hands on the messages that are complete with these bytes.
func (s *Stream) take(decoder *decode.Decoder, taken []byte, more bool) {
	count, data := len(taken), taken
	if len(s.tail) > 0 {
		s.tail = append(s.tail, taken...)
		data = s.tail
	}
	messages, rest, err := decoder.Batch(data)
	if len(messages) > 0 {
		s.sink.OnMessages(messages, more)
	}
	if err != nil {
		s.overrule(s.unreadable(err))
		return
	}
	s.keep(rest, len(messages) > 0)
	if cap(taken) <= keepBytes {
		s.spare = taken[:0]
	}
	// Only now: a sink that has not returned holds back its stream. Of a message that is not complete nothing is held back,
	// or one that is larger than the window would never come.
	s.giveBack(count)
}

// keep stores the beginning of a message for the next time. It is part of what was taken, or of the tail.
func (s *Stream) keep(rest []byte, cut bool) {
	switch {
	case len(s.tail) > 0 && !cut: // all of the tail is rest
	case cap(s.tail) > keepBytes && len(rest) <= keepBytes:
		s.tail = append([]byte(nil), rest...) // what a large message took is free again
	default:
		s.tail = append(s.tail[:0], rest...)
	}
}

// giveBack returns window to the peer, not for each message.
func (s *Stream) giveBack(count int) {
	s.credit += count
	if s.credit < streamWindow/4 {
		return
	}
	s.mu.Lock()
	on, ended := s.conn, s.ended
	s.window += s.credit
	s.mu.Unlock()
	if !ended {
		on.allow(s, s.credit)
	}
	s.credit = 0
}

// unreadable is the end because of what the decoder says.
func (s *Stream) unreadable(err error) End {
	s.mu.Lock()
	encoding := s.encoding
	s.mu.Unlock()
	end := End{Code: codes.DataLoss, Message: "grpc: " + err.Error()}
	switch {
	case errors.Is(err, decode.ErrCompressed) && encoding != "" && encoding != "identity":
		end.Code, end.Message = codes.Unimplemented, fmt.Sprintf("grpc: no decompressor for grpc-encoding %q", encoding)
	case errors.Is(err, decode.ErrCompressed), errors.Is(err, decode.ErrFlag):
		end.Code = codes.Internal
	}
	return end
}
