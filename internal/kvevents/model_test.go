package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// world is an engine that may be started anew, a live connection that loses messages, and a replay socket that answers badly.
type world struct {
	t       *rapid.T
	m       machine
	life    uint64 // of the engine
	sent    uint64 // messages of this life
	buffer  uint64 // how many of them a replay reaches back
	up      bool
	asked   *action // the open question
	perfect bool    // no more faults

	refusals int // of questions, or broken answers

	// What the consumer has.
	got     []uint64 // sequence numbers of the latest incarnation
	gotLife uint64
	next    uint64
	fresh   bool // nothing came since the beginning or the last reset
	lost    uint64
}

func (w *world) message(seq uint64) message { return messageOf(w.life, seq) }

func messageOf(life, seq uint64) message {
	payload := binary.BigEndian.AppendUint64(nil, life)
	payload = binary.BigEndian.AppendUint64(payload, seq)
	return message{seq, payload, life<<32 | seq}
}

// take checks the machine's actions against what it promises, and keeps its question.
func (w *world) take(actions []action) {
	for _, a := range actions {
		switch a.kind {
		case deliver:
			life := binary.BigEndian.Uint64(a.message.payload)
			seq := binary.BigEndian.Uint64(a.message.payload[8:])
			if !w.fresh && life != w.gotLife {
				w.t.Fatalf("message %d of engine %d after those of engine %d", seq, life, w.gotLife)
			}
			if seq != w.next {
				w.t.Fatalf("message %d of engine %d where %d was due", seq, life, w.next)
			}
			w.got, w.gotLife, w.next, w.fresh = append(w.got, seq), life, seq+1, false
		case gap:
			if a.lost == 0 || a.why == "" {
				w.t.Fatalf("gap of %d: %q", a.lost, a.why)
			}
			w.next += a.lost
			w.lost += a.lost
		case reset:
			if w.fresh {
				w.t.Fatal("a reset of nothing")
			}
			w.got, w.next, w.fresh, w.lost = nil, 0, true, 0
		case ask:
			w.asked = &a
		case hush:
			w.asked = nil
		}
	}
	if len(w.m.held) > maxHeld || w.m.heldSize > maxHeldBytes {
		w.t.Fatalf("%d messages, %d bytes held", len(w.m.held), w.m.heldSize)
	}
}

// chance is a fault that happens in one of n cases.
func (w *world) chance(n int, what string) bool {
	return !w.perfect && rapid.IntRange(1, n).Draw(w.t, what) == 1
}

func (w *world) publish() {
	seq := w.sent
	w.sent++
	if w.up && !w.chance(4, "live lost") {
		w.take(w.m.live(w.message(seq)))
		if w.chance(10, "live twice") {
			w.take(w.m.live(w.message(seq)))
		}
	}
}

func (w *world) connect() {
	if !w.up {
		w.up = true
		w.take(w.m.connected())
	}
}

func (w *world) disconnect() {
	w.up = false
	w.take(w.m.disconnected())
}

func (w *world) restart() {
	w.disconnect()
	w.life++
	w.sent = 0
}

// answer answers the open question, well or badly.
func (w *world) answer() {
	if w.asked == nil {
		return
	}
	q := *w.asked
	w.asked = nil
	if w.chance(4, "refused") {
		w.refusals++
		w.take(w.m.answered(q.ask, errors.New("refused")))
		return
	}
	life := w.life
	first := max(q.from, w.sent-min(w.sent, w.buffer))
	sent := w.sent
	for seq := first; seq < sent; seq++ {
		switch {
		case w.asked != nil && !w.chance(2, "goes on"): // another question has come up
			return
		case w.chance(12, "broken"):
			w.refusals++
			w.take(w.m.answered(q.ask, errors.New("broken")))
			return
		case seq > first && w.chance(8, "hole"):
			continue
		case w.chance(10, "meanwhile"):
			w.publish()
		case w.chance(20, "restarted"):
			w.restart()
			w.connect()
		}
		w.take(w.m.replayed(q.ask, messageOf(life, seq)))
		if life != w.life && w.chance(2, "hung up") {
			break
		}
	}
	w.take(w.m.answered(q.ask, nil))
}

func (w *world) settle() {
	w.perfect = true
	w.connect()
	for i := 0; w.asked != nil; i++ {
		if i > 1000 {
			w.t.Fatal("it goes on asking")
		}
		w.answer()
	}
}

// TestWorlds runs the machine through random weather. Whatever happens it keeps its promises; and when the weather is good again
// it has, of the engine's present life, all that the engine remembers.
func TestWorlds(t *testing.T) {
	for _, replay := range []bool{true, false} {
		t.Run(fmt.Sprintf("replay %v", replay), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := &world{t: t, fresh: true, life: 1, buffer: rapid.SampledFrom([]uint64{0, 1, 3, 1000}).Draw(t, "buffer")}
				w.m.replay = replay
				t.Repeat(map[string]func(*rapid.T){
					"publish":    func(*rapid.T) { w.publish() },
					"burst":      func(*rapid.T) { w.publish(); w.publish(); w.publish() },
					"connect":    func(*rapid.T) { w.connect() },
					"answer":     func(*rapid.T) { w.answer() },
					"disconnect": func(*rapid.T) { w.disconnect() },
					"restart":    func(*rapid.T) { w.restart() },
				})
				w.settle()
				w.publish()
				w.settle()
				if w.gotLife != w.life || w.next != w.sent {
					t.Fatalf("it has %d of engine %d, which has sent %d of engine %d", w.next, w.gotLife, w.sent, w.life)
				}
				if !replay {
					return
				}
				missing := w.sent - uint64(len(w.got))
				if missing != w.lost || missing > 0 && w.buffer == 1000 && w.refusals < attempts {
					t.Fatalf("%d of %d messages are missing, %d were told; %d refusals", missing, w.sent, w.lost, w.refusals)
				}
			})
		})
	}
}

// TestHeldIsBounded lets a replay hang while the engine goes on.
func TestHeldIsBounded(t *testing.T) {
	m := machine{replay: true}
	m.connected()
	payload := make([]byte, 1<<20)
	for seq := range uint64(100) {
		m.live(message{seq, payload, seq})
		if m.heldSize > maxHeldBytes {
			t.Fatalf("%d bytes held", m.heldSize)
		}
	}
	m.live(message{100, make([]byte, maxHeldBytes+1), 100})
	if len(m.held) != 1 {
		t.Errorf("%d messages held with one that is larger than all may be", len(m.held))
	}
	for seq := range uint64(2 * maxHeld) {
		m.live(message{101 + seq, nil, seq})
		if len(m.held) > maxHeld {
			t.Fatalf("%d messages held", len(m.held))
		}
	}
	if m.heldSize != 0 {
		t.Errorf("%d bytes held in empty messages", m.heldSize)
	}
}
