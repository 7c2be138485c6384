package h2

import "time"

// A sink call may block, and the reader that makes it must not. So reading is a role that passes on: the reader counts up
// when it enters a sink call and when it leaves it, and a timer that finds it in the same call twice takes the role away by
// counting up itself and starts another reader. The goroutine in the call finds the count changed when it comes back,
// sees to its stream until that is quiet, and ends. What the reader owns is only touched between two counts, so there is
// never doubt about whose it is.

const (
	// patience is how often the timer looks while streams share a connection. A sink that begins to block holds up its
	// neighbours for twice as long, once.
	patience = 10 * time.Millisecond
	// calm is how often it looks while no stream has neighbours: only pings and the like wait then.
	calm = 50 * time.Millisecond
)

// enterSink is called by the reader before a sink call. The result is for leaveSink.
func (c *conn) enterSink() uint64 { return c.turn.Add(1) }

// leaveSink reports whether the caller is still the reader.
func (c *conn) leaveSink(turn uint64) bool { return c.turn.CompareAndSwap(turn, turn+1) }

// overdue takes the role from a reader that is in the same sink call as the last time. Called by the pool's timer alone.
func (c *conn) overdue() bool {
	turn := c.turn.Load()
	inSink := turn%2 == 1
	stuck := inSink && turn == c.seen
	c.seen = turn
	return stuck && c.turn.CompareAndSwap(turn, turn+1)
}

// keepWatch sets the timer, unless it is set. Called with mu held.
func (p *Pool) keepWatch() {
	if p.watching {
		return
	}
	p.watching = true
	if p.watch == nil {
		p.watch = time.AfterFunc(p.watchInterval(), p.look)
		return
	}
	p.watch.Reset(p.watchInterval())
}

// watchInterval is called with mu held.
func (p *Pool) watchInterval() time.Duration {
	if p.streams > 1 || p.closed {
		return patience
	}
	return calm
}

// look is the timer. It rests when no stream is left that a sink could be told of.
func (p *Pool) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.live {
		if c.overdue() {
			go c.read() // counted in goroutines when the connection was made; the role carries that count
		}
	}
	if p.pending.Load() == 0 {
		p.watching = false
		return
	}
	p.watch.Reset(p.watchInterval())
}
