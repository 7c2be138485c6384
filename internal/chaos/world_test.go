package chaos

import (
	"container/heap"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// world is the one queue of everything that will happen, and the source of all randomness. Two worlds with one seed and one
// plan do the same in the same order.
type world struct {
	now   time.Duration
	rng   *rand.Rand
	out   io.Writer // the trace; nil: none
	queue queue
	seq   uint64
	done  int // events so far
}

// event is something that will happen, unless it is called off.
type event struct {
	at  time.Duration
	seq uint64 // events of one moment keep the order in which they were made
	do  func() // nil: called off
}

func newWorld(seed uint64, out io.Writer) *world {
	return &world{rng: rand.New(rand.NewPCG(seed, 0x5eed)), out: out}
}

// at makes do happen at a time, which is not in the past.
func (w *world) at(at time.Duration, do func()) *event {
	w.seq++
	ev := &event{at: max(at, w.now), seq: w.seq, do: do}
	heap.Push(&w.queue, ev)
	return ev
}

func (w *world) after(d time.Duration, do func()) *event { return w.at(w.now+d, do) }

// off calls an event off, if there is one and it is still to come.
func (ev *event) off() {
	if ev != nil {
		ev.do = nil
	}
}

// run makes things happen until none is left, the time is over or there were too many. It says whether none is left.
func (w *world) run(until time.Duration, most int) bool {
	for len(w.queue) > 0 {
		next := w.queue[0]
		if next.do != nil && (next.at > until || w.done >= most) {
			return false
		}
		heap.Pop(&w.queue)
		if next.do == nil {
			continue
		}
		w.now = next.at
		w.done++
		next.do()
	}
	return true
}

// hop is the time that a message takes between two processes of one site; now and then it is caught in a queue.
func (w *world) hop() time.Duration {
	if w.chance(2) {
		return w.between(3*time.Millisecond, 60*time.Millisecond)
	}
	return w.between(50*time.Microsecond, 3*time.Millisecond)
}

func (w *world) between(low, high time.Duration) time.Duration {
	return low + time.Duration(w.rng.Int64N(int64(high-low)+1))
}

// chance is true in percent of cases.
func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

// pick draws one of the values.
func pick[T any](w *world, values ...T) T { return values[w.rng.IntN(len(values))] }

// logf writes one line of the trace.
func (w *world) logf(who, format string, args ...any) {
	if w.out != nil {
		fmt.Fprintf(w.out, "%12.6fs  %-14s %s\n", w.now.Seconds(), who, fmt.Sprintf(format, args...))
	}
}

// queue is a heap by time and then by order of making.
type queue []*event

func (q *queue) Len() int      { return len(*q) }
func (q *queue) Swap(i, j int) { (*q)[i], (*q)[j] = (*q)[j], (*q)[i] }
func (q *queue) Less(i, j int) bool {
	a, b := (*q)[i], (*q)[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}
func (q *queue) Push(x any) { *q = append(*q, x.(*event)) }
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return last
}
