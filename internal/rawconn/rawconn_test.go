package rawconn

import (
	"bytes"
	"io"
	"net"
	"testing"

	"golang.org/x/net/nettest"
)

// pair is a TCP connection, both ends of which are wrapped.
func pair(t testing.TB) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return Wrap(near), Wrap(far)
}

// The rules of net.Conn: deadlines, closing under a call, errors.
func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		near, far := pair(t)
		return near, far, func() { near.Close(); far.Close() }, nil
	})
}

// More than a call takes, and more than the kernel's buffers hold.
func TestLongWrite(t *testing.T) {
	near, far := pair(t)
	defer far.Close()
	sent := bytes.Repeat([]byte("remora"), 4<<20/6)
	wrote := make(chan error, 1)
	go func() {
		n, err := near.Write(sent)
		if n != len(sent) && err == nil {
			t.Errorf("wrote %d of %d", n, len(sent))
		}
		near.Close()
		wrote <- err
	}()
	got, err := io.ReadAll(far)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("read %d of %d bytes, %v", len(got), len(sent), err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}

// Unread tells what waits in the socket, and that nothing does in one that is closed.
func TestUnread(t *testing.T) {
	near, far := pair(t)
	defer far.Close()
	unread := func() int { return near.(interface{ Unread() int }).Unread() }
	if n := unread(); n != 0 {
		t.Errorf("%d bytes before any was sent", n)
	}
	if _, err := far.Write([]byte("remora")); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 1)
	if _, err := io.ReadFull(near, first); err != nil { // all six are there now
		t.Fatal(err)
	}
	if n := unread(); n != 5 {
		t.Errorf("%d bytes, want 5", n)
	}
	near.Close()
	if n := unread(); n != 0 {
		t.Errorf("%d bytes in a closed one", n)
	}
}

func TestInMemory(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if Wrap(near) != near {
		t.Error("a connection without a socket was wrapped")
	}
}

func TestNoAllocations(t *testing.T) {
	near, far := pair(t)
	defer near.Close()
	defer far.Close()
	buf := make([]byte, 64)
	if n := testing.AllocsPerRun(100, func() {
		near.Write(buf)
		far.Read(buf)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
