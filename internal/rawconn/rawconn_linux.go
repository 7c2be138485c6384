package rawconn

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxCall bounds the bytes of one system call, because the garbage collector waits for an unannounced one: copying as much
// takes some ten microseconds.
const maxCall = 64 << 10

// Wrap returns the connection with calls of its own in Read and Write, or the connection itself where there is no socket
// under it.
func Wrap(c net.Conn) net.Conn {
	source, ok := c.(syscall.Conn)
	if !ok {
		return c
	}
	raw, err := source.SyscallConn()
	if err != nil {
		return c
	}
	return newConn(c, raw)
}

func newConn(c net.Conn, raw syscall.RawConn) net.Conn {
	w := &conn{Conn: c, raw: raw}
	w.in.do, w.out.do = w.in.read, w.out.write
	return w
}

type conn struct {
	net.Conn // set once

	raw syscall.RawConn // set once; of Conn

	reading sync.Mutex
	in      transfer // guarded by reading
	writing sync.Mutex
	out     transfer // guarded by writing
}

// transfer is one Read or Write under way.
type transfer struct {
	do    func(fd uintptr) bool // read or write; made once, so that a call allocates nothing
	buf   []byte
	once  bool // EAGAIN is a result, not a reason to wait
	n     int
	errno syscall.Errno
}

func (t *transfer) read(fd uintptr) bool  { return t.call(syscall.SYS_READ, fd) }
func (t *transfer) write(fd uintptr) bool { return t.call(syscall.SYS_WRITE, fd) }

// call makes the system call and reports whether it is over; otherwise the poller says when to try again.
func (t *transfer) call(trap, fd uintptr) bool {
	for {
		size := min(len(t.buf), maxCall)
		n, _, errno := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(t.buf))), uintptr(size)) //nolint:gosec // the buffer outlives the call
		switch errno {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			t.n, t.errno = 0, errno
			return t.once
		case 0:
			t.n, t.errno = int(n), 0
		default:
			t.n, t.errno = 0, errno
		}
		return true
	}
}

func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.reading.Lock()
	defer c.reading.Unlock()
	c.in.buf = p
	err := c.raw.Read(c.in.do)
	c.in.buf = nil
	switch {
	case err != nil:
		return 0, err
	case c.in.errno != 0:
		return 0, c.failed("read", c.in.errno)
	case c.in.n == 0:
		return 0, io.EOF
	}
	return c.in.n, nil
}

func (c *conn) Write(p []byte) (int, error) { return c.write(p, false) }

// TryWrite writes what goes without waiting: fewer bytes than it was given, and no error, when the rest would have to wait.
func (c *conn) TryWrite(p []byte) (int, error) { return c.write(p, true) }

// write stops, if once is set, where the rest would have to wait.
func (c *conn) write(p []byte, once bool) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.out.once = once
	written := 0
	for written < len(p) {
		c.out.buf = p[written:]
		err := c.raw.Write(c.out.do)
		c.out.buf = nil
		switch {
		case err != nil:
			return written, err
		case c.out.errno == syscall.EAGAIN: // with once alone
			return written, nil
		case c.out.errno != 0:
			return written, c.failed("write", c.out.errno)
		}
		written += c.out.n
	}
	return written, nil
}

// Unread is how many bytes have arrived that no Read has taken yet; 0 as well where the socket is closed.
func (c *conn) Unread() int {
	n := 0
	err := c.raw.Control(func(fd uintptr) {
		if waiting, errno := unix.IoctlGetInt(int(fd), unix.TIOCINQ); errno == nil {
			n = waiting
		}
	})
	if err != nil {
		return 0
	}
	return n
}

func (c *conn) failed(op string, errno syscall.Errno) error {
	return &net.OpError{
		Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, errno),
	}
}
