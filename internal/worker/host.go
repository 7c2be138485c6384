package worker

import (
	"context"
	"net"
	"net/netip"
)

// localHost is the address under which other hosts reach this one: the source address that the routing table gives towards
// the outside, IPv4 first, then any global address of an interface, then loopback. Connecting a UDP socket sends nothing.
func localHost() string {
	for _, probe := range [...]struct{ network, towards string }{
		{"udp4", "192.0.2.1:9"}, // documentation addresses: no host has them
		{"udp6", "[2001:db8::1]:9"},
	} {
		conn, err := new(net.Dialer).DialContext(context.Background(), probe.network, probe.towards)
		if err != nil {
			continue
		}
		local, err := netip.ParseAddrPort(conn.LocalAddr().String())
		_ = conn.Close()
		if err == nil && local.Addr().IsGlobalUnicast() {
			return local.Addr().WithZone("").String()
		}
	}
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, want4 := range []bool{true, false} {
			for _, a := range addrs {
				prefix, err := netip.ParsePrefix(a.String())
				if err == nil && prefix.Addr().IsGlobalUnicast() && prefix.Addr().Is4() == want4 {
					return prefix.Addr().String()
				}
			}
		}
	}
	return "127.0.0.1"
}
