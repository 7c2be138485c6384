package vllmtest

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"

	"remora/internal/memnet"
)

// port is where clients dial: it outlives the servers behind it, can refuse, and knows the connections it made.
type port struct {
	mu       sync.Mutex
	target   *memnet.Listener  // guarded by mu; nil refuses
	open     map[net.Conn]bool // guarded by mu; the clients' ends
	accepted int               // guarded by mu
}

func (p *port) dial(ctx context.Context) (net.Conn, error) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	if target == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: addr{}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	raw, err := target.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	conn := &trackedConn{Conn: raw, port: p}
	p.mu.Lock()
	p.open[conn] = true
	p.accepted++
	p.mu.Unlock()
	return conn, nil
}

func (p *port) setTarget(target *memnet.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// kill closes every connection under both ends.
func (p *port) kill() {
	p.mu.Lock()
	conns := make([]net.Conn, 0, len(p.open))
	for conn := range p.open {
		conns = append(conns, conn)
	}
	p.mu.Unlock()
	for _, conn := range conns {
		conn.Close()
	}
}

func (p *port) counts() (open, accepted int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open), p.accepted
}

type trackedConn struct {
	net.Conn

	port *port
}

func (c *trackedConn) Close() error {
	c.port.mu.Lock()
	delete(c.port.open, c)
	c.port.mu.Unlock()
	return c.Conn.Close()
}

type addr struct{}

func (addr) Network() string { return "tcp" }
func (addr) String() string  { return Address }
