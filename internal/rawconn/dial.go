package rawconn

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// keepAlive finds out within 35 s that the host of a peer is gone.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}
}

// dialPlain is for what Dial can't do itself.
func dialPlain(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	conn, err := (&net.Dialer{KeepAliveConfig: keepAlive()}).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return Wrap(conn), nil
}
