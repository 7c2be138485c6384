package memnet

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		c1, c2 = Pipe(1 << 10)
		return c1, c2, func() { c1.Close(); c2.Close() }, nil
	})
}

func TestListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Listen(4)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			conn.Write([]byte("more than fits"))
		}()
		conn, err := l.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if all, err := io.ReadAll(conn); string(all) != "more than fits" || err != nil {
			t.Errorf("read %q, %v", all, err)
		}
		l.Close()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept after Close: %v", err)
		}
		if _, err := l.Dial(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Dial after Close: %v", err)
		}
	})
}

// A deadline costs the bubble's time, and one that was moved in time does not fire.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe(1)
		defer far.Close()
		defer near.Close()
		start := time.Now()
		near.SetReadDeadline(start.Add(time.Second))
		near.SetReadDeadline(start.Add(time.Minute))
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("read: %v after %v", err, time.Since(start))
		}
		near.SetWriteDeadline(time.Now().Add(time.Second))
		if n, err := near.Write(make([]byte, 2)); n != 1 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %d, %v", n, err)
		}
	})
}
