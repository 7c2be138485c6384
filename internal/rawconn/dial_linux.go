package rawconn

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Dial connects to an address over TCP, with TCP_NODELAY and keepalive probes. The context ends the attempt, and is of no
// consequence for the connection. The result is wrapped.
//
// A connection for every answer makes the dial a part of every request. This one makes the calls that it needs, unannounced
// as well: net.Dialer announces about a dozen.
func Dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	address := sockaddr(to)
	if address == nil {
		return dialPlain(ctx, to)
	}
	conn, err := dial(ctx, to, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: err}
	}
	return conn, nil
}

func dial(ctx context.Context, to netip.AddrPort, address []byte) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	family := uintptr(unix.AF_INET)
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, _, errno := syscall.RawSyscall(unix.SYS_SOCKET, family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("socket", errno)
	}
	socket := os.NewFile(fd, to.String()) // which the poller takes, because it does not block
	if err := establish(ctx, socket, address); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return newConn(&dialed{File: socket, remote: net.TCPAddrFromAddrPort(to)}, raw), nil
}

// establish connects the socket and sets its options.
func establish(ctx context.Context, socket *os.File, address []byte) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.SetWriteDeadline(time.Unix(1, 0)) })
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		// Asked again it says how the first one went, which on the same host is known at once.
		errno := connect(fd, address)
		if errno == unix.EINPROGRESS {
			errno = connect(fd, address)
		}
		switch errno {
		case 0, unix.EISCONN:
			failed = configure(fd)
		case unix.EINPROGRESS, unix.EALREADY, unix.EINTR:
			return false
		default:
			failed = os.NewSyscallError("connect", errno)
		}
		return true
	})
	if !stop() && err == nil && failed == nil {
		return context.Cause(ctx) // the deadline has been set, or is about to be
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(err, failed)
}

func connect(fd uintptr, address []byte) syscall.Errno {
	_, _, errno := syscall.RawSyscall(unix.SYS_CONNECT, fd,
		uintptr(unsafe.Pointer(unsafe.SliceData(address))), uintptr(len(address))) //nolint:gosec // it outlives the call
	return errno
}

func configure(fd uintptr) error {
	keep := keepAlive()
	for _, option := range [...]struct {
		level, name uintptr
		value       int32
	}{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int32(keep.Idle / time.Second)},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int32(keep.Interval / time.Second)},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, int32(keep.Count)},
	} {
		_, _, errno := syscall.RawSyscall6(unix.SYS_SETSOCKOPT, fd, option.level, option.name,
			uintptr(unsafe.Pointer(&option.value)), unsafe.Sizeof(option.value), 0) //nolint:gosec // the value outlives the call
		if errno != 0 {
			return os.NewSyscallError("setsockopt", errno)
		}
	}
	return nil
}

// sockaddr is an address as the kernel reads it: family, port, and of IPv6 the flow before and the scope behind it. Nil for
// one with a zone, whose name would have to be looked up.
func sockaddr(to netip.AddrPort) []byte {
	ip := to.Addr()
	family := uint16(unix.AF_INET6)
	if ip.Is4() {
		family = unix.AF_INET
	}
	sa := binary.NativeEndian.AppendUint16(nil, family)
	sa = binary.BigEndian.AppendUint16(sa, to.Port())
	switch {
	case ip.Zone() != "" || !ip.IsValid():
		return nil
	case ip.Is4():
		return append(append(sa, ip.AsSlice()...), make([]byte, 8)...)
	default:
		return append(append(append(sa, make([]byte, 4)...), ip.AsSlice()...), make([]byte, 4)...)
	}
}

// dialed is a connected socket as a net.Conn. It does not ask for its own address, which nobody has asked for.
type dialed struct {
	*os.File // set once

	remote net.Addr // set once
}

func (d *dialed) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (d *dialed) RemoteAddr() net.Addr { return d.remote }
