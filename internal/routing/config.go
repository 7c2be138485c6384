package routing

import (
	"iter"
	"log/slog"
	"net"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
)

// Config says whose cache and load are told, and by which means. All fields are needed unless a comment says otherwise.
type Config struct {
	// Instance is the worker's own record; its transport is of no matter.
	Instance discovery.Instance
	// Store takes the records.
	Store discovery.Store
	// Attach begins to take the requests of another endpoint of the worker, and returns how its instance record says to call it.
	Attach func(a discovery.Address, id uint64, h requestplane.Handler) (discovery.Transport, error)
	// Listen opens one more socket, and tells the host and port under which other hosts reach it.
	Listen func() (listener net.Listener, advertised string, err error)
	// Dialer connects to routers that have asked.
	Dialer  *requestplane.Dialer
	Metrics *status.Metrics
	Log     *slog.Logger

	// BlockSize is the number of tokens of a block, as on the model's card. 0: not known; blocks of every size are told of, and
	// no load.
	BlockSize uint32
	// FirstRank and Ranks say which ranks are here.
	FirstRank, Ranks uint32
	// Capacity is how many blocks a rank's cache has. 0: not known.
	Capacity uint64
	// Requests gives those that are at the engine now. It is called once a second.
	Requests iter.Seq[Request]
}

// Request is one that is at the engine, as far as its load goes.
type Request struct {
	Tokens int     // of its prompt, and of its answer so far
	Rank   *uint32 // nil: the engine chose it
	Prompt *Prompt
}

func (c *Config) address() discovery.Address {
	return discovery.Address{Namespace: c.Instance.Namespace, Component: c.Instance.Component, Endpoint: c.Instance.Endpoint}
}
