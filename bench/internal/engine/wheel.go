package engine

import (
	"sync"
	"time"
)

// The wheel turns once a millisecond where anything is due, and sleeps where nothing is. maxInterval keeps a stream within one
// turn.
const (
	slots       = 4096
	tick        = time.Millisecond
	maxInterval = (slots - 1) * tick
)

// wheel is the clock of all paced streams: a slot for each millisecond with the streams that are due then.
type wheel struct {
	start time.Time     // set once; slot 0
	wake  chan struct{} // has room for one: the sleep may be too long now

	mu    sync.Mutex
	slot  [slots][]*stream // guarded by mu
	count int              // guarded by mu; streams in all slots
	at    int64            // guarded by mu; the last tick that was served
	until int64            // guarded by mu; the tick that is slept for
}

func newWheel() *wheel { return &wheel{start: time.Now(), wake: make(chan struct{}, 1)} }

// add puts a stream where it is due.
func (w *wheel) add(s *stream) {
	w.mu.Lock()
	at := max(w.tickOf(s.due), w.at+1)
	w.slot[at%slots] = append(w.slot[at%slots], s)
	w.count++
	early := at < w.until
	w.mu.Unlock()
	if early {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// tickOf is the first tick that is not before t.
func (w *wheel) tickOf(t time.Time) int64 { return int64((t.Sub(w.start) + tick - 1) / tick) }

// run serves what is due, for ever.
func (w *wheel) run() {
	timer := time.NewTimer(0)
	var due []*stream
	dirty := map[*conn]struct{}{}
	for {
		select {
		case <-timer.C:
		case <-w.wake:
		}
		due = w.take(due[:0], time.Now())
		for _, s := range due {
			dirty[s.conn] = struct{}{}
			if s.conn.beat(s) {
				s.due = s.due.Add(s.interval)
				w.add(s)
			}
		}
		for c := range dirty {
			c.flush()
		}
		clear(dirty)
		timer.Reset(time.Until(w.start.Add(time.Duration(w.next()) * tick)))
	}
}

// take removes and returns the streams of all ticks up to now.
func (w *wheel) take(due []*stream, now time.Time) []*stream {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := int64(now.Sub(w.start) / tick)
	for w.at < last && w.count > 0 {
		w.at++
		s := &w.slot[w.at%slots]
		due = append(due, *s...)
		w.count -= len(*s)
		clear(*s)
		*s = (*s)[:0]
	}
	w.at = max(w.at, last)
	return due
}

// next finds the tick to sleep for.
func (w *wheel) next() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.until = w.at + slots
	if w.count > 0 {
		for at := w.at + 1; at < w.at+slots; at++ {
			if len(w.slot[at%slots]) > 0 {
				w.until = at
				break
			}
		}
	}
	return w.until
}
