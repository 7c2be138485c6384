//go:build linux

package rawconn

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"
	"golang.org/x/sys/unix"
)

func dialPair(t testing.TB, host string) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = Dial(t.Context(), netip.MustParseAddrPort(l.Addr().String())); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

func TestDialedConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		near, far := dialPair(t, "127.0.0.1")
		return near, far, func() { near.Close(); far.Close() }, nil
	})
}

func TestDial(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		near, far := dialPair(t, host)
		if near.RemoteAddr().String() != far.LocalAddr().String() {
			t.Errorf("%s: dialled %v, accepted by %v", host, near.RemoteAddr(), far.LocalAddr())
		}
		near.Write([]byte("hello"))
		near.Close()
		if got, err := io.ReadAll(far); string(got) != "hello" || err != nil {
			t.Errorf("%s: read %q, %v", host, got, err)
		}
		far.Close()
	}
}

// Small frames leave at once, and a dead host is noticed.
func TestDialOptions(t *testing.T) {
	near, far := dialPair(t, "127.0.0.1")
	defer far.Close()
	defer near.Close()
	raw, err := near.(*conn).Conn.(*dialed).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	want := keepAlive()
	err = raw.Control(func(fd uintptr) {
		for name, option := range map[string][3]int{
			"TCP_NODELAY":   {unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
			"SO_KEEPALIVE":  {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			"TCP_KEEPIDLE":  {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(want.Idle / time.Second)},
			"TCP_KEEPINTVL": {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(want.Interval / time.Second)},
			"TCP_KEEPCNT":   {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, want.Count},
		} {
			if got, errGet := unix.GetsockoptInt(int(fd), option[0], option[1]); errGet != nil || got != option[2] {
				t.Errorf("%s is %d, want %d; %v", name, got, option[2], errGet)
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
	if most := want.Idle + time.Duration(want.Count)*want.Interval; most > time.Minute {
		t.Errorf("a dead host is noticed after %v", most)
	}
}

func TestDialRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := Dial(t.Context(), netip.MustParseAddrPort(l.Addr().String())); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialled a closed port: %v", err)
	}
}

func TestDialCancelled(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Dial(ctx, netip.MustParseAddrPort(l.Addr().String())); !errors.Is(err, context.Canceled) {
		t.Errorf("dialled without an end to wait for: %v", err)
	}
}

// The mapped form of an IPv4 address is that address.
func TestDialMapped(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := netip.MustParseAddrPort(l.Addr().String()).Port()
	conn, err := Dial(t.Context(), netip.AddrPortFrom(netip.MustParseAddr("::ffff:127.0.0.1"), port))
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// An attempt that hangs, as one to a host that is gone, ends with its context.
func TestDialHangs(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(name.(*unix.SockaddrInet4).Port))
	for range 100 { // until its queue, which nobody empties, is full
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		conn, err := Dial(ctx, to)
		cancel()
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a dial that hangs: %v", err)
			}
			return
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Error("the queue of a listener never fills")
}
