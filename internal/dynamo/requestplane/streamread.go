package requestplane

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// EventKind is what a consumer did.
type EventKind uint8

// The events of a response stream. All but EventStop mean that the consumer is gone.
const (
	EventStop     EventKind = iota // it asks for a soft end and keeps reading
	EventKill                      // it said so
	EventEOF                       // it closed the connection
	EventReset                     // the connection broke, in reading or in writing; a kill may have been lost on the way
	EventProtocol                  // it sent what no consumer sends
)

// String returns a word for logs.
func (k EventKind) String() string {
	switch k {
	case EventStop:
		return "stop"
	case EventKill:
		return "kill"
	case EventEOF:
		return "eof"
	case EventReset:
		return "reset"
	case EventProtocol:
		return "protocol"
	default:
		return "unknown"
	}
}

// Event is one thing that the consumer did. Err gives details for logs; it is nil for stop and kill.
type Event struct {
	Kind EventKind
	Err  error
}

// Leaving tells whether nothing can be delivered any more.
func (e Event) Leaving() bool { return e.Kind != EventStop }

// maxControlWord bounds the frames that a consumer may send; the longest that means anything has six bytes.
const maxControlWord = 4 << 10

// read is the reader goroutine: it runs from the dial to the end of the connection, which it closes.
func (s *ResponseStream) read() {
	defer close(s.done)
	defer s.conn.Close()
	in := bufio.NewReaderSize(s.conn, 128)
	for {
		event := s.next(in)
		s.mu.Lock()
		quiet, failed := s.quiet, s.failed
		s.mu.Unlock()
		if quiet {
			if event.Leaving() {
				return
			}
			continue
		}
		if failed != nil && (event.Kind == EventEOF || event.Kind == EventReset) { // the write is why the reading has ended
			event = Event{EventReset, fmt.Errorf("write: %w", failed)}
		}
		s.on(event)
		if event.Leaving() {
			return
		}
	}
}

func (s *ResponseStream) next(in io.Reader) Event {
	header, body, err := readTwoPart(in, maxControlWord)
	switch {
	case errors.Is(err, ErrFraming):
		return Event{EventProtocol, err}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Event{EventEOF, err}
	case err != nil:
		return Event{EventReset, err}
	case len(body) > 0:
		return Event{EventProtocol, errUnexpectedFrame}
	}
	switch string(header) {
	case `"kill"`:
		return Event{Kind: EventKill}
	case `"stop"`:
		return Event{Kind: EventStop}
	default:
		return Event{EventProtocol, fmt.Errorf("%w: %.40q", errUnexpectedFrame, header)}
	}
}
