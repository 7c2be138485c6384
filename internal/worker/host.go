package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// systemURL is where frontends reach the status server: at the address that it was bound to, unless that stands for all.
func (w *worker) systemURL() (string, error) {
	addr, err := netip.ParseAddrPort(w.cfg.System.Addr().String())
	if err != nil {
		return "", fmt.Errorf("address of the status server: %w", err)
	}
	host := addr.Addr().String()
	if addr.Addr().IsUnspecified() {
		host = w.publicHost()
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(int(addr.Port()))), nil
}

func (w *worker) host() string {
	if w.cfg.Host == "" {
		return localHost()
	}
	return w.cfg.Host
}

// listenAnywhere opens a listener on any port, and tells where it is reached.
func (w *worker) listenAnywhere() (net.Listener, string, error) { return w.listenAt(0) }

func (w *worker) listenAt(port uint16) (net.Listener, string, error) {
	listener, err := w.cfg.Listen("tcp", net.JoinHostPort(w.host(), strconv.Itoa(int(port))))
	if err != nil {
		return nil, "", err
	}
	at, err := w.advertised(listener.Addr().String())
	if err != nil {
		return nil, "", errors.Join(err, listener.Close())
	}
	return listener, at, nil
}

// publicHost is where other hosts reach this one.
func (w *worker) publicHost() string {
	host := w.host()
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		return localHost()
	}
	return host
}

// advertised is a listener's address for the records. Frontends take literal addresses only, so a host that was
// given as a name shows as the address that was bound.
func (w *worker) advertised(bound string) (string, error) {
	addr, err := netip.ParseAddrPort(bound)
	if err != nil {
		return "", fmt.Errorf("address of a listener: %w", err)
	}
	if addr.Addr().IsUnspecified() {
		return net.JoinHostPort(w.publicHost(), strconv.Itoa(int(addr.Port()))), nil
	}
	return addr.String(), nil
}

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
