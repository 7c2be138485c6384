package kvpub

import (
	"remora/internal/zmq"
)

// ZeroMQ is the Network of tcp:// and ipc:// endpoints.
type ZeroMQ struct{}

// Pub listens with a PUB socket.
func (ZeroMQ) Pub(endpoint string, hwm int) (Pub, string, error) {
	at, err := zmq.ParseEndpoint(endpoint)
	if err != nil {
		return nil, "", err //nolint:wrapcheck // Open wraps it
	}
	pub, err := zmq.ListenPub(at, zmq.PubConfig{QueueMessages: hwm})
	if err != nil {
		return nil, "", err //nolint:wrapcheck // Open wraps it
	}
	return pub, pub.Endpoint().String(), nil
}

// Router listens with a ROUTER socket.
func (ZeroMQ) Router(endpoint string, answer func(request [][]byte, reply func(frames ...[]byte) error)) (Router, string, error) {
	at, err := zmq.ParseEndpoint(endpoint)
	if err != nil {
		return nil, "", err //nolint:wrapcheck // Open wraps it
	}
	router, err := zmq.ListenRouter(at, zmq.RouterConfig{}, answer)
	if err != nil {
		return nil, "", err //nolint:wrapcheck // Open wraps it
	}
	return router, router.Endpoint().String(), nil
}
