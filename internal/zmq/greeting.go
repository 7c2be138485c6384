package zmq

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
)

// socketType is what a socket calls itself in its READY command.
type socketType string

// The socket types of this package, and their partners.
const (
	typePub    socketType = "PUB"
	typeSub    socketType = "SUB"
	typeDealer socketType = "DEALER"
	typeRouter socketType = "ROUTER"
)

// fits lists which peers a socket may have.
func (t socketType) fits(peer string) bool {
	switch t {
	case typePub:
		return peer == "SUB" || peer == "XSUB"
	case typeSub:
		return peer == "PUB" || peer == "XPUB"
	case typeDealer:
		return peer == "ROUTER" || peer == "REP" || peer == "DEALER"
	case typeRouter:
		return peer == "DEALER" || peer == "REQ" || peer == "ROUTER"
	default:
		return false
	}
}

// greetingSize is that of ZMTP 3: signature (FF, eight bytes of padding, 7F), version (major, minor), mechanism (20 bytes of
// text, filled with zeros), as-server, filler of 31 zeros.
const greetingSize = 64

// greeting is ours.
func greeting() []byte {
	out := [greetingSize]byte{0: 0xff, 9: 0x7f, 10: 3, 11: 1}
	copy(out[12:], "NULL")
	return out[:]
}

// parseGreeting returns the peer's minor version. Majors above 3 are taken: they must step down to ours.
func parseGreeting(greeting []byte) (minor byte, err error) {
	major := greeting[10]
	mechanism := string(bytes.TrimRight(greeting[12:32], "\x00"))
	switch {
	case greeting[0] != 0xff || greeting[9] != 0x7f:
		return 0, fmt.Errorf("%w: the peer's first bytes are no ZMTP greeting", ErrProtocol)
	case major < 3:
		return 0, fmt.Errorf("%w: the peer speaks ZMTP %d, which is older than 3", ErrProtocol, major)
	case mechanism != "NULL":
		return 0, fmt.Errorf("%w: the peer wants the mechanism %q; only NULL is supported", ErrProtocol, mechanism)
	case major > 3:
		return 1, nil
	default:
		return greeting[11], nil
	}
}

// appendReady appends the READY command: properties, each a name behind a length byte and a value behind four.
func appendReady(dst []byte, own socketType) []byte {
	const name = "Socket-Type"
	data := append([]byte{byte(len(name))}, name...)
	data = binary.BigEndian.AppendUint32(data, uint32(len(own)))
	return appendCommand(dst, "READY", append(data, own...))
}

// parseReady returns the peer's socket type. Property names do not depend on case; properties that mean nothing here, such as
// an identity, are passed over.
func parseReady(data []byte) (peer string, err error) {
	for len(data) > 0 {
		name, rest, ok := cutShort(data)
		if !ok || len(rest) < 4 {
			return "", fmt.Errorf("%w: a READY command that ends inside a property", ErrProtocol)
		}
		size := binary.BigEndian.Uint32(rest)
		rest = rest[4:]
		if uint64(size) > uint64(len(rest)) {
			return "", fmt.Errorf("%w: a READY command that ends inside a property", ErrProtocol)
		}
		if strings.EqualFold(string(name), "Socket-Type") {
			peer = string(rest[:size])
		}
		data = rest[size:]
	}
	return peer, nil
}

// cutShort cuts a text behind a length byte from the front.
func cutShort(data []byte) (text, rest []byte, ok bool) {
	if len(data) == 0 || len(data) < 1+int(data[0]) {
		return nil, nil, false
	}
	end := 1 + int(data[0])
	return data[1:end], data[end:], true
}

// errorReason is the text of an ERROR command.
func errorReason(data []byte) string {
	reason, _, ok := cutShort(data)
	if !ok {
		return "no reason given"
	}
	return strings.ToValidUTF8(string(reason), "?")
}
