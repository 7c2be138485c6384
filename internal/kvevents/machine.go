package kvevents

import (
	"fmt"
	"slices"
	"time"
)

const (
	// maxHeld and maxHeldBytes bound the messages that wait for a replay to close the gap before them. Beyond, the oldest are
	// dropped: the next replay brings them.
	maxHeld      = 4096
	maxHeldBytes = 32 << 20
	// attempts is how often a replay is asked for without getting anywhere until it counts as unavailable.
	attempts = 3
	// firstPause is that before the second attempt; it doubles.
	firstPause = 250 * time.Millisecond
	// checkPause is how long after a new connection the replay is asked once more if nothing was published meanwhile: a
	// subscription takes effect some time after it was sent, and what is published until then is lost.
	checkPause = time.Second
	// memory is how many digests are remembered, to tell a message that comes twice from a publisher that has begun anew.
	memory = 256
)

// action is what the machine wants done; the actions of one step are to be done in order.
type action struct {
	kind    actionKind
	message message       // deliver
	lost    uint64        // gap: this many messages
	why     string        // gap, reset
	ask     uint64        // ask: the number of this question, of which only the newest counts
	from    uint64        // ask: the first sequence number wanted
	pause   time.Duration // ask: to be waited before
}

type actionKind uint8

const (
	deliver actionKind = iota + 1
	gap
	reset
	ask  // forget earlier questions, then ask
	hush // forget earlier questions
)

// machine turns what arrives from a publisher and from its replay socket into one stream without holes, repeats or mixtures of
// two engines; where it cannot, it says so. It is pure: no I/O, no clock, no goroutine. Each input returns the actions to take.
//
// What was delivered belongs to one incarnation of the publisher, which counts from 0. A new connection puts that in doubt: the
// replay is asked from the last delivered message on, and if it has another message under that number, or none, the engine has
// been started anew and everything known is void. Without a replay there is no way to know, and a new connection is taken for
// a new engine.
type machine struct {
	replay bool // there is a replay socket

	next  uint64         // the sequence number that is due
	known bool           // next-1 has been delivered, in this incarnation
	doubt bool           // the publisher may be another than the one that next counts for
	seen  [memory]digest // of what was delivered, by sequence number

	up       bool   // there is a connection
	heard    bool   // something has come over it
	newest   uint64 // its latest sequence number; meaningful if heard
	held     []message
	heldSize int

	question uint64 // number of the latest question
	waiting  bool   // for its answer; what arrives is held until then
	begun    bool   // the answer has
	moved    bool   // the answer has brought something new
	tries    int    // questions since something new came

	out []action
}

type digest struct {
	seq   uint64
	value uint64
	valid bool
}

// take returns the actions of a step.
func (m *machine) take() []action {
	out := m.out
	m.out = m.out[:0]
	return out
}

// connected: there is a new connection, and the subscription is on its way.
func (m *machine) connected() []action {
	m.up, m.heard, m.tries = true, false, 0
	switch {
	case m.replay:
		m.ask(0)
	case m.doubt:
		m.void("the connection to the publisher is new, and there is no replay socket to tell whether the engine is")
	}
	return m.take()
}

// disconnected: the connection has ended.
func (m *machine) disconnected() []action {
	if m.up {
		m.up, m.doubt = false, m.known
		m.forget()
		m.out = append(m.out, action{kind: hush})
	}
	return m.take()
}

// live: a message came over the connection. Its payload is the caller's.
func (m *machine) live(msg message) []action {
	if m.heard && msg.seq <= m.newest {
		if m.remembers(msg) || m.holds(msg) {
			return m.take() // it came twice
		}
		m.void("sequence numbers went back: the publisher has begun anew")
		m.forget() // what is held is the old engine's
		if m.replay {
			m.ask(0)
		}
	}
	m.heard, m.newest = true, msg.seq
	switch {
	case m.waiting:
		m.hold(msg)
	case msg.seq < m.next:
	case msg.seq == m.next:
		m.deliver(msg)
	case m.replay:
		m.hold(msg)
		m.tries = 0
		m.ask(0)
	default:
		m.lose(msg.seq, "the engine offers no replay")
		m.deliver(msg)
	}
	return m.take()
}

// replayed: a message of the answer to a question came. Its payload is the caller's.
func (m *machine) replayed(question uint64, msg message) []action {
	if question != m.question {
		return m.take()
	}
	begun := m.begun
	m.begun = true
	if m.doubt {
		switch {
		case msg.seq < m.next-1:
			return m.take() // more than was asked for
		case msg.seq > m.next-1:
			m.void("the engine's replay does not reach back to what is known: it cannot be told whether it is another engine")
		case m.remembers(msg):
			m.doubt = false
			return m.take()
		default:
			m.void("the engine is another one: it has other events under known sequence numbers")
			m.ask(0)
			return m.take()
		}
	}
	switch {
	case msg.seq < m.next:
		return m.take()
	case msg.seq > m.next && begun && m.tries < attempts:
		m.ask(0) // a hole in the answer: engines drop what their socket cannot hold, 1000 messages or so
		return m.take()
	case msg.seq > m.next:
		m.lose(msg.seq, "they are older than what the engine keeps for a replay")
	}
	m.deliver(msg)
	m.moved, m.tries = true, 0
	return m.take()
}

// answered: the answer to a question has ended, with its end marker (err nil) or otherwise.
func (m *machine) answered(question uint64, err error) []action {
	if question != m.question {
		return m.take()
	}
	if !m.waiting { // the check after a new connection; if it failed, the next gap will tell
		return m.take()
	}
	switch {
	case err == nil && m.doubt:
		m.void("the engine has begun anew: its newest event is older than what is known")
		m.ask(0)
	case err == nil:
		m.release()
	case m.moved: // the end was lost, or the connection
		m.ask(0)
	case m.tries < attempts:
		m.askLater()
	default:
		why := fmt.Sprintf("the replay failed: %v", err)
		if m.doubt {
			m.void(why + "; it cannot be told whether the engine is another one")
		}
		m.waiting = false
		m.drain(why)
	}
	return m.take()
}

// release delivers what was held, after a complete answer.
func (m *machine) release() {
	for len(m.held) > 0 && m.held[0].seq <= m.next {
		m.unhold()
	}
	switch {
	case len(m.held) == 0:
		m.waiting = false
		if !m.heard {
			m.check()
		}
	case m.moved: // more has been lost while we asked
		m.ask(0)
	case m.tries < attempts:
		m.askLater()
	default:
		m.waiting = false
		m.drain("the engine's replay does not have them")
	}
}

// drain delivers what was held, holes or not.
func (m *machine) drain(why string) {
	for len(m.held) > 0 {
		if first := m.held[0].seq; first > m.next {
			m.lose(first, why)
		}
		m.unhold()
	}
}

// unhold delivers the first message that is held, unless it has come by replay.
func (m *machine) unhold() {
	first := m.held[0]
	m.held[0] = message{}
	m.held = m.held[1:]
	m.heldSize -= len(first.payload)
	if len(m.held) == 0 {
		m.held = nil
	}
	if first.seq == m.next {
		m.deliver(first)
	}
}

func (m *machine) hold(msg message) {
	msg.payload = append([]byte(nil), msg.payload...)
	m.held = append(m.held, msg)
	m.heldSize += len(msg.payload)
	for len(m.held) > maxHeld || m.heldSize > maxHeldBytes && len(m.held) > 1 {
		m.heldSize -= len(m.held[0].payload)
		m.held[0] = message{}
		m.held = m.held[1:]
	}
}

// forget drops what is held and what was asked.
func (m *machine) forget() {
	m.held, m.heldSize, m.waiting = nil, 0, false
	m.question++
}

// ask asks for everything from what is due on; in doubt, for the message before as well.
func (m *machine) ask(pause time.Duration) {
	m.question++
	m.tries++
	m.waiting = true
	m.askFor(pause)
}

// askLater asks again, after a pause that doubles with each attempt.
func (m *machine) askLater() { m.ask(firstPause << (max(m.tries, 1) - 1)) }

// check asks once more in a while, without holding anything back.
func (m *machine) check() {
	m.question++
	m.askFor(checkPause)
}

func (m *machine) askFor(pause time.Duration) {
	m.begun, m.moved = false, false
	from := m.next
	if m.doubt {
		from--
	}
	m.out = append(m.out, action{kind: ask, ask: m.question, from: from, pause: pause})
}

func (m *machine) deliver(msg message) {
	m.seen[msg.seq%memory] = digest{msg.seq, msg.digest, true}
	m.out = append(m.out, action{kind: deliver, message: msg})
	m.next, m.known = msg.seq+1, true
}

// lose gives up what is due before a sequence number, whose message is delivered next.
func (m *machine) lose(seq uint64, why string) {
	m.out = append(m.out, action{kind: gap, lost: seq - m.next, why: why})
	m.next = seq
}

// void ends an incarnation.
func (m *machine) void(why string) {
	if m.known {
		m.out = append(m.out, action{kind: reset, why: why})
	}
	m.next, m.known, m.doubt, m.tries = 0, false, false, 0
}

// holds reports whether this very message is held.
func (m *machine) holds(msg message) bool {
	return slices.ContainsFunc(m.held, func(h message) bool { return h.seq == msg.seq && h.digest == msg.digest })
}

// remembers reports whether this very message has been delivered, as far back as is remembered.
func (m *machine) remembers(msg message) bool {
	return m.seen[msg.seq%memory] == digest{msg.seq, msg.digest, true}
}
