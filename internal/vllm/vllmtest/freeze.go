package vllmtest

import (
	"net"
	"sync"
)

// Freeze stops the engine like SIGSTOP does: connections stay, new ones are accepted, what clients send is buffered up to a
// bound, and nothing is answered, not even an HTTP/2 ping. Thaw ends it.
func (e *Engine) Freeze() { e.ice.set(true) }

// Thaw lets a frozen engine go on where it was.
func (e *Engine) Thaw() { e.ice.set(false) }

// ice is what a frozen engine's connections wait for.
type ice struct {
	mu     sync.Mutex
	melted chan struct{} // guarded by mu; nil while not frozen, closed when the frost ends
}

func (i *ice) set(frozen bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case frozen && i.melted == nil:
		i.melted = make(chan struct{})
	case !frozen && i.melted != nil:
		close(i.melted)
		i.melted = nil
	}
}

// wait returns when the engine is not frozen, or the connection is closed.
func (i *ice) wait(closed <-chan struct{}) {
	i.mu.Lock()
	melted := i.melted
	i.mu.Unlock()
	if melted == nil {
		return
	}
	select {
	case <-melted:
	case <-closed:
	}
}

// icyListener makes connections whose server side does nothing while the engine is frozen.
type icyListener struct {
	net.Listener

	ice *ice
}

// Accept waits for a connection, frozen or not, as the kernel does for a stopped process.
func (l icyListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &icyConn{Conn: conn, ice: l.ice, closed: make(chan struct{})}, nil
}

type icyConn struct {
	net.Conn

	ice    *ice
	once   sync.Once
	closed chan struct{} // closed by Close
}

// Read holds back what arrived while frozen.
func (c *icyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.ice.wait(c.closed)
	return n, err
}

// Write waits while frozen.
func (c *icyConn) Write(p []byte) (int, error) {
	c.ice.wait(c.closed)
	return c.Conn.Write(p)
}

// Close is net.Conn's.
func (c *icyConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
