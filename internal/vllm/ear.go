package vllm

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// answerTime is what an engine gets to answer a health check, from the moment when the question has left this process.
const answerTime = 500 * time.Millisecond

// excusesMost is how many checks in a row may run out of time without a verdict: a process that moves bytes and never answers
// is not alive for ever.
const excusesMost = 10

// ear listens to the engine's connections while it is asked for its health, so that a check which ran out of time is not held
// against an engine that has something to say, has answered, or was hardly asked. Sidecar and engine may both be short of CPU:
// one that does not run sees no answer, and finds its deadlines passed all the same.
type ear struct {
	bytes atomic.Uint64 // counts the reads that brought something, on streams' connections (of BackendH2) and aside

	mu    sync.Mutex
	aside net.Conn  // guarded by mu; the latest
	since uint64    // guarded by mu; bytes, at attend
	until time.Time // guarded by mu; the end of the check: what is written later takes the question back
	asked time.Time // guarded by mu; of the last write aside in the check; zero: there was none
	used  int       // guarded by mu; excuses in a row
}

// wrap returns the connection aside as the ear hears it.
func (e *ear) wrap(conn net.Conn) net.Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.aside = conn
	return heardConn{Conn: conn, ear: e}
}

// attend begins a check.
func (e *ear) attend() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.since, e.asked, e.until = e.bytes.Load(), time.Time{}, time.Now().Add(checkTimeout)
}

// answered ends a check that did not run out of time.
func (e *ear) answered() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.used = 0
}

// excuses ends a check that did, and tells whether that says nothing of the engine: something came from it meanwhile, its answer
// waits to be read, or the question has only just left.
func (e *ear) excuses() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	socket, ok := e.aside.(interface{ Unread() int })
	excused := e.bytes.Load() != e.since || ok && socket.Unread() > 0 || !e.asked.IsZero() && time.Since(e.asked) < answerTime
	if !excused || e.used == excusesMost {
		return false
	}
	e.used++
	return true
}

// heardConn is the connection aside.
type heardConn struct {
	net.Conn

	ear *ear
}

// Read notes that the engine lives.
func (c heardConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.ear.bytes.Add(1)
	}
	return n, err
}

// Write notes when something was said.
func (c heardConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.ear.mu.Lock()
	defer c.ear.mu.Unlock()
	if now := time.Now(); now.Before(c.ear.until) {
		c.ear.asked = now
	}
	return n, err
}
