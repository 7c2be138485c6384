package worker

import (
	"net"
	"net/netip"
	"testing"
)

// bound is a listener of which only the address is asked.
type bound struct {
	net.Listener

	at string
}

func (b bound) Addr() net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(b.at)) }

// TestStatusServerURL: frontends fetch the model's files where the status server listens, which need not be the host of the
// request plane.
func TestStatusServerURL(t *testing.T) {
	for _, c := range []struct{ bound, host, want string }{
		{"127.0.0.1:90", "192.0.2.7", "http://127.0.0.1:90"},
		{"[::1]:90", "", "http://[::1]:90"},
		{"0.0.0.0:90", "192.0.2.7", "http://192.0.2.7:90"},
		{"[::]:90", "192.0.2.7", "http://192.0.2.7:90"},
		{"0.0.0.0:90", "", "http://" + net.JoinHostPort(localHost(), "90")},
		{"0.0.0.0:90", "0.0.0.0", "http://" + net.JoinHostPort(localHost(), "90")},
	} {
		w := &worker{cfg: Config{System: bound{at: c.bound}, Host: c.host}}
		if got, err := w.systemURL(); err != nil || got != c.want {
			t.Errorf("bound to %s, host %q: %s, %v; want %s", c.bound, c.host, got, err, c.want)
		}
	}
}
