package core

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// TestBeatTimes: at once when a request comes, then every sixth of a lease, until its KV is there.
//
// Rules: heartbeats.
func TestBeatTimes(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxSeqs = 1 })
	b.stall = true
	h := b.handOff("p", prompt(10, 1))
	begin := b.now
	b.add(b.d, decode("d", prompt(10, 1), 3, h))
	var beats []time.Duration
	watch := func(span time.Duration) {
		for end := b.now + span; b.now < end; b.now += 10 * time.Millisecond {
			plan := b.d.Schedule(b.now)
			b.carry(b.d, plan)
			if len(plan.Beats) > 0 {
				beats = append(beats, b.now-begin)
			}
			if plan.Busy {
				b.d.Apply(b.now)
			}
		}
	}
	watch(5 * time.Second)
	if !slices.Equal(beats, []time.Duration{0, 2 * time.Second, 4 * time.Second}) {
		t.Errorf("beats at %v", beats)
	}
	b.d.SetPause(PauseAll) // it has its KV and waits
	b.unstall()
	watch(5 * time.Second)
	if len(beats) != 3 || ids(b.d.queue) != "[d]" {
		t.Errorf("beats at %v, %s wait", beats, ids(b.d.queue))
	}
}

// TestLastMoment: what readers say is taken up before leases are looked at.
//
// Rules: step-order.
func TestLastMoment(t *testing.T) {
	for _, say := range []string{"", "beat", "done"} {
		b := newBench(t, nil)
		b.handOff("p", prompt(10, 1))
		b.now += 12 * time.Second
		switch say {
		case "beat":
			b.p.NoteBeat([]string{"p"})
		case "done":
			b.p.NoteDone("p")
		}
		b.step()
		s := b.p.Stats()
		if want := map[string][3]int{"": {0, 1, 0}, "beat": {1, 0, 0}, "done": {0, 0, 1}}[say]; [3]int{s.Held, s.Expired, s.Completed} != want {
			t.Errorf("%q: %+v", say, s)
		}
	}
}

// TestWrongAnswerToARead: another number of blocks, or blocks of another size, are a transfer that failed.
func TestWrongAnswerToARead(t *testing.T) {
	for name, change := range map[string]func([][]uint64) [][]uint64{
		"one less":   func(blocks [][]uint64) [][]uint64 { return blocks[1:] },
		"one more":   func(blocks [][]uint64) [][]uint64 { return append(blocks, blocks[0]) },
		"none":       func([][]uint64) [][]uint64 { return nil },
		"short ones": func(blocks [][]uint64) [][]uint64 { blocks[1] = blocks[1][1:]; return blocks },
	} {
		b := newBench(t, nil)
		b.stall = true
		h := b.handOff("p", prompt(10, 1))
		b.add(b.d, decode("d", prompt(10, 1), 3, h))
		b.step()
		blocks, err := b.p.Serve("p", h.Blocks)
		if err != nil {
			t.Fatal(err)
		}
		b.d.ReadDone("d", change(blocks))
		b.settle()
		if _, out := b.result("d"); out.Reason != Failed {
			t.Errorf("%s: ended with %v", name, out.Reason)
		}
		b.wantIdle(b.d)
	}
}

// TestServeOutsideThePool is refused as a whole.
//
// Rules: blocks-beyond.
func TestServeOutsideThePool(t *testing.T) {
	b := newBench(t, nil)
	for _, id := range []int{-1, 33, 1 << 40} {
		if blocks, err := b.p.Serve("x", []int{1, id}); !errors.Is(err, ErrNoBlock) || blocks != nil {
			t.Errorf("%d: %v %v", id, blocks, err)
		}
	}
	if _, err := b.p.Serve("x", []int{0, 32}); err != nil {
		t.Error(err)
	}
}

// TestNextDeadline is the lease that ends first, wherever it stands; with the defect it is the first one's.
//
// Rules: lease-scan.
func TestNextDeadline(t *testing.T) {
	for _, defect := range []bool{false, true} {
		b := newBench(t, func(c *Config) { c.HeadFirstExpiry = defect })
		b.handOff("a", prompt(10, 1))
		b.handOff("b", prompt(10, 2))
		second := b.p.holds[1].deadline
		b.wait(11 * time.Second)
		b.p.NoteBeat([]string{"a"})
		b.step()
		want := second
		if defect {
			want = b.p.holds[0].deadline
		}
		if at, ok := b.p.NextDeadline(); !ok || at != want {
			t.Errorf("defect %v: %v, want %v", defect, at, want)
		}
	}
}
