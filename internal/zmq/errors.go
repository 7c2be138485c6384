package zmq

import "errors"

// What can go wrong. They come wrapped with details.
var (
	// ErrEndpoint: the text is no endpoint of this package's transports.
	ErrEndpoint = errors.New("not a ZeroMQ endpoint")
	// ErrProtocol: the peer does not speak ZMTP 3 with the NULL mechanism, or not correctly, or is a socket of the wrong kind.
	ErrProtocol = errors.New("ZMTP protocol error")
	// ErrTooLarge: a message is beyond the limits.
	ErrTooLarge = errors.New("ZeroMQ message too large")
	// ErrClosed: the socket has been closed on our side.
	ErrClosed = errors.New("ZeroMQ socket closed")
)
