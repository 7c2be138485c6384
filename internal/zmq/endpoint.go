package zmq

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Endpoint is where a socket listens, or where it connects to. The zero Endpoint is none.
type Endpoint struct {
	// Network is "tcp" or "unix".
	Network string
	// Host is a name or an IP address, IPv6 without brackets; empty for the wildcard "*". Only for tcp.
	Host string
	// Port is 0 where the text had 0 or "*": any free port, which makes sense for listeners only. Only for tcp.
	Port uint16
	// Path is the socket's file, or "@" and its name in the abstract name space. Only for unix.
	Path string
}

// maxUnixPath is what a socket address holds on Linux, without the closing zero.
const maxUnixPath = 107

// ParseEndpoint reads "tcp://host:port", with "*" for any local address or any free port, or "ipc://path". The text is not
// trimmed: libzmq takes no blanks either.
func ParseEndpoint(text string) (Endpoint, error) {
	refuse := func(format string, args ...any) (Endpoint, error) {
		return Endpoint{}, fmt.Errorf("%w: %q: %s", ErrEndpoint, text, fmt.Sprintf(format, args...))
	}
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		return refuse("the scheme is missing; give tcp://host:port or ipc://path")
	}
	switch scheme {
	case "ipc":
		switch {
		case rest == "" || rest == "@":
			return refuse("the path is empty")
		case rest == "*":
			return refuse("a path is needed in place of the wildcard")
		case len(rest) > maxUnixPath:
			return refuse("the path has %d bytes; the system takes %d", len(rest), maxUnixPath)
		case strings.ContainsRune(rest, 0):
			return refuse("the path holds a zero byte")
		}
		return Endpoint{Network: "unix", Path: rest}, nil
	case "tcp":
	default:
		return refuse("transport %q is not supported; give tcp://host:port or ipc://path", scheme)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return refuse("%q is not host:port", rest)
	}
	if host == "" {
		return refuse("the host is missing")
	}
	if strings.ContainsFunc(host, notInHost) && host != "*" {
		return refuse("%q is not a host", host)
	}
	out := Endpoint{Network: "tcp", Host: host}
	if host == "*" {
		out.Host = ""
	}
	if port != "*" {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || port[0] == '+' {
			return refuse("port %q is not a number up to 65535", port)
		}
		out.Port = uint16(number)
	}
	return out, nil
}

// notInHost reports what stands in no host name and no IP address, zones included.
func notInHost(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return false
	default:
		return !strings.ContainsRune(".-_:%", r)
	}
}

// Wildcard reports whether the endpoint stands for every local address: *, 0.0.0.0 or [::].
func (e Endpoint) Wildcard() bool {
	if e.Network != "tcp" {
		return false
	}
	ip := net.ParseIP(e.Host)
	return e.Host == "" || ip != nil && ip.IsUnspecified()
}

// dialable says why one cannot connect to the endpoint; nil when one can.
func (e Endpoint) dialable() error {
	switch {
	case e.Network == "":
		return fmt.Errorf("%w: it is empty", ErrEndpoint)
	case e.Wildcard():
		return fmt.Errorf("%w: %s: one cannot connect to a wildcard", ErrEndpoint, e)
	case e.Network == "tcp" && e.Port == 0:
		return fmt.Errorf("%w: %s: one cannot connect without a port", ErrEndpoint, e)
	default:
		return nil
	}
}

// address is the form that dialers and listeners take.
func (e Endpoint) address() string {
	if e.Network == "unix" {
		return e.Path
	}
	return net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
}

// String is the form that ParseEndpoint reads.
func (e Endpoint) String() string {
	switch e.Network {
	case "unix":
		return "ipc://" + e.Path
	case "tcp":
		host, port := e.Host, strconv.Itoa(int(e.Port))
		if host == "" {
			host = "*"
		}
		if e.Port == 0 {
			port = "*"
		}
		return "tcp://" + net.JoinHostPort(host, port)
	default:
		return ""
	}
}
