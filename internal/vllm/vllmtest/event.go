package vllmtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "remora/proto/vllm"
)

// Kind says what an Event is.
type Kind int

// The kinds of Event.
const (
	Received    Kind = iota // a GenerateStream request reached its handler
	HeadersSent             // its headers were sent by a Headers step
	Sent                    // a message was handed to the transport
	Dropped                 // the stream ended from outside while its script ran: the client's RST, or a broken connection
	Ended                   // the script ended the stream; Event.Err is its status
	Aborted                 // Control.Abort named the id
	Checked                 // a health check; Event.ID is the service's name
	Watched                 // a health watch; Event.ID is the service's name
	Discovered              // GetModelInfo or GetServerInfo; Event.ID is the method's name
)

// String is the kind's name, for failure texts.
func (k Kind) String() string {
	names := [...]string{"received", "headers", "sent", "dropped", "ended", "aborted", "checked", "watched", "discovered"}
	if k < 0 || int(k) >= len(names) {
		return fmt.Sprintf("kind %d", int(k))
	}
	return names[k]
}

// Event is one thing that the engine saw or did. Order in the log is order of happening at the engine.
type Event struct {
	Kind    Kind
	ID      string // request id, or as the kind says
	At      time.Time
	Request *pb.GenerateRequest  // of Received
	Rank    string               // of Received: x-data-parallel-rank, empty when absent
	Message *pb.GenerateResponse // of Sent
	Err     error                // of Ended
}

// String is "kind id".
func (e Event) String() string { return e.Kind.String() + " " + e.ID }

func (e *Engine) record(event Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	event.At = time.Now()
	e.events = append(e.events, event)
	close(e.changed)
	e.changed = make(chan struct{})
}

// Events returns the log so far.
func (e *Engine) Events() []Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.events)
}

// Of returns the events of one request so far, as text ("received r1", "sent r1" ...), with runs of sent made one.
func (e *Engine) Of(id string) string {
	var names []string
	for _, event := range e.Events() {
		if event.ID != id {
			continue
		}
		name := event.Kind.String()
		if event.Kind == Sent && len(names) > 0 && names[len(names)-1] == name {
			continue
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// Count returns how many events of the kind the log holds; an empty id counts all.
func (e *Engine) Count(kind Kind, id string) int {
	n := 0
	for _, event := range e.Events() {
		if event.Kind == kind && (id == "" || event.ID == id) {
			n++
		}
	}
	return n
}

// Await waits until the log has an event of the kind and id and returns the first; an empty id takes any. It fails the test
// when ten seconds pass (in the bubble's time when there is one) or the test ends.
func (e *Engine) Await(tb testing.TB, kind Kind, id string) Event {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	for seen := 0; ; {
		e.mu.Lock()
		events, changed := e.events, e.changed
		e.mu.Unlock()
		for ; seen < len(events); seen++ {
			if event := events[seen]; event.Kind == kind && (id == "" || event.ID == id) {
				return event
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			tb.Fatalf("engine never saw %v %q; it saw %v", kind, id, events)
		}
	}
}

// Live returns how many GenerateStream handlers run now.
func (e *Engine) Live() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, calls := range e.calls {
		n += len(calls)
	}
	return n
}
