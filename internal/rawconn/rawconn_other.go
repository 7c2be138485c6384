//go:build !linux

package rawconn

import (
	"context"
	"net"
	"net/netip"
)

// Wrap returns the connection as it is: only Linux has system calls without the C library between.
func Wrap(c net.Conn) net.Conn { return c }

// Dial connects to an address over TCP, with TCP_NODELAY and keepalive probes. The context ends the attempt.
func Dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) { return dialPlain(ctx, to) }
