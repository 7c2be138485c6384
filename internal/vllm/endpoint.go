package vllm

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Endpoint is where an engine's gRPC server listens: plain h2c on a host and port. The zero Endpoint is no address.
type Endpoint struct {
	// Host is a name or an IP address, IPv6 without brackets.
	Host string
	// Port is 80 when the text had none, as for any http URL.
	Port uint16
}

// defaultPort is that of an http URL without one.
const defaultPort = 80

// ParseEndpoint reads host:port, http://host:port or grpc://host:port, with or without one trailing slash. TLS is refused
// because vLLM's native server is reached in clear, beside the engine.
func ParseEndpoint(text string) (Endpoint, error) {
	trimmed := strings.TrimSpace(text)
	refuse := func(format string, args ...any) (Endpoint, error) {
		return Endpoint{}, invalid("gRPC endpoint %q: %s", text, fmt.Sprintf(format, args...))
	}
	if trimmed == "" {
		return refuse("it is empty; give host:port")
	}
	rest := trimmed
	if scheme, after, found := strings.Cut(trimmed, "://"); found {
		switch scheme {
		case "http", "grpc":
			rest = after
		case "https", "grpcs":
			return refuse("TLS to the engine is not supported; give http://host:port")
		default:
			return refuse("scheme %q is not supported; give host:port, http://host:port or grpc://host:port", scheme)
		}
	}
	parsed, err := url.Parse("http://" + rest)
	if err != nil {
		return refuse("it is not a host and port (%s)", urlReason(err))
	}
	if parsed.Path != "" && parsed.Path != "/" {
		return refuse("a path (%q) has no meaning for gRPC", parsed.Path)
	}
	if reason := extras(parsed, rest); reason != "" {
		return refuse("%s", reason)
	}
	host := parsed.Hostname()
	if host == "" {
		return refuse("the host is missing")
	}
	if strings.Contains(host, ":") {
		if _, err = netip.ParseAddr(host); err != nil {
			return refuse("%q is not an IPv6 address", host)
		}
	} else if strings.IndexFunc(host, notInName) >= 0 {
		return refuse("%q is not a host name", host)
	}
	port := uint64(defaultPort)
	if strings.HasSuffix(parsed.Host, ":") {
		// An http URL may end so, but here it is the trace of an unset variable.
		return refuse("the port is empty")
	}
	if parsed.Port() != "" {
		port, err = strconv.ParseUint(parsed.Port(), 10, 16)
		if err != nil || port == 0 {
			return refuse("port %s is not in 1..65535", parsed.Port())
		}
	}
	return Endpoint{Host: host, Port: uint16(port)}, nil
}

// notInName reports runes that no resolver takes; url.Parse lets many of them pass.
func notInName(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '-', r == '_':
		return false
	default:
		return true
	}
}

// Address is host:port as dialers take it, an IPv6 host in brackets.
func (e Endpoint) Address() string { return net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port))) }

// AuthorityHost is the host as it stands in a URL: an IPv6 host in brackets.
func (e Endpoint) AuthorityHost() string {
	if strings.Contains(e.Host, ":") {
		return "[" + e.Host + "]"
	}
	return e.Host
}

// String is the normal form, http://host:port without a slash.
func (e Endpoint) String() string {
	normal := url.URL{Scheme: "http", Host: e.Address()}
	return normal.String()
}

// ParseHTTPEndpoint reads the base URL of the engine's HTTP server: http or https, a host, and a path prefix if any.
func ParseHTTPEndpoint(text string) (*url.URL, error) {
	trimmed := strings.TrimSpace(text)
	refuse := func(format string, args ...any) (*url.URL, error) {
		return nil, invalid("HTTP endpoint %q: %s", text, fmt.Sprintf(format, args...))
	}
	if trimmed == "" {
		return refuse("it is empty; give http://host:port")
	}
	if !strings.Contains(trimmed, "://") {
		return refuse("the scheme is missing; give http://host:port")
	}
	parsed, err := url.Parse(trimmed)
	if err != nil {
		return refuse("it is not a URL (%s)", urlReason(err))
	}
	if parsed.Scheme != "http" && parsed.Scheme != "https" {
		return refuse("scheme %q is not supported; give http or https", parsed.Scheme)
	}
	if reason := extras(parsed, trimmed); reason != "" {
		return refuse("%s", reason)
	}
	if parsed.Hostname() == "" {
		return refuse("the host is missing")
	}
	return parsed, nil
}

// extras names the part of a URL that no endpoint may have, if there is one. The text is looked at as well because a bare
// "?" or "#" leaves nothing in the parsed form.
func extras(parsed *url.URL, text string) string {
	switch {
	case parsed.User != nil:
		return "user and password are not supported"
	case strings.Contains(text, "#"):
		return "a fragment has no meaning here"
	case strings.Contains(text, "?"):
		return "a query has no meaning here"
	default:
		return ""
	}
}

// urlReason is a url.Parse error without the URL, which the caller's text already names and which may hold a password.
func urlReason(err error) string {
	text := err.Error()
	if parseError, ok := errors.AsType[*url.Error](err); ok {
		text = parseError.Err.Error()
	}
	return text
}
