package kvpub

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"remora/internal/zmq"
)

// ErrConfig is wrapped by ParseConfig and Open for what makes no publisher.
var ErrConfig = errors.New("kvpub: invalid configuration")

// Names of publishers.
const (
	publisherNull = "null"
	publisherZMQ  = "zmq"
)

// Config has the fields, the names and the defaults of vLLM's kv-events-config. The zero value publishes nothing.
type Config struct {
	Enable         bool   `json:"enable_kv_cache_events"`
	Publisher      string `json:"publisher"`       // "null" or "zmq"; default: zmq when events are on
	Endpoint       string `json:"endpoint"`        // of rank 0's PUB socket; default tcp://*:5557
	ReplayEndpoint string `json:"replay_endpoint"` // of rank 0's ROUTER socket; empty: none
	BufferSteps    int    `json:"buffer_steps"`    // batches kept for replay; default 10000
	HWM            int    `json:"hwm"`             // messages kept for a subscriber that is behind; default 100000
	MaxQueueSize   int    `json:"max_queue_size"`  // told, and nothing else: there is no queue here; default 100000
	Topic          string `json:"topic"`
}

// ParseConfig reads vLLM's JSON object. Unknown keys are refused, as by vLLM.
func ParseConfig(text string) (Config, error) {
	var c Config
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Config{}, fmt.Errorf("%w: text after the object", ErrConfig)
	}
	return c.WithDefaults()
}

// WithDefaults fills in what is not set and refuses what cannot be.
func (c Config) WithDefaults() (Config, error) {
	for _, n := range []*int{&c.BufferSteps, &c.HWM, &c.MaxQueueSize} {
		if *n < 0 {
			return c, fmt.Errorf("%w: %d is negative", ErrConfig, *n)
		}
	}
	if c.Publisher == "" {
		c.Publisher = map[bool]string{false: publisherNull, true: publisherZMQ}[c.Enable]
	}
	if c.Publisher != publisherNull && c.Publisher != publisherZMQ {
		return c, fmt.Errorf("%w: publisher %q is neither null nor zmq", ErrConfig, c.Publisher)
	}
	if c.Endpoint == "" {
		c.Endpoint = "tcp://*:5557"
	}
	for n, def := range map[*int]int{&c.BufferSteps: 10_000, &c.HWM: 100_000, &c.MaxQueueSize: 100_000} {
		if *n == 0 {
			*n = def
		}
	}
	if !c.Publishes() {
		return c, nil
	}
	for _, e := range []string{c.Endpoint, c.ReplayEndpoint} {
		if e == "" {
			continue
		}
		if _, err := atRank(e, 0); err != nil {
			return c, err
		}
	}
	if !binds(c.Endpoint) {
		return c, fmt.Errorf("%w: a real engine connects its publisher to %s instead of listening, since it is no wildcard, and so reaches nobody: "+
			"write tcp://*:PORT", ErrConfig, c.Endpoint)
	}
	return c, nil
}

// Publishes says whether there are sockets at all.
func (c Config) Publishes() bool { return c.Enable && c.Publisher == publisherZMQ }

// binds is the real publisher's rule of when to listen.
func binds(endpoint string) bool {
	return strings.Contains(endpoint, "*") || strings.Contains(endpoint, "::") || strings.HasPrefix(endpoint, "ipc://")
}

// atRank gives the endpoint of a rank: the port of rank 0 plus the rank. Port 0, any free one, stays.
func atRank(endpoint string, rank uint32) (string, error) {
	rest, isTCP := strings.CutPrefix(endpoint, "tcp://")
	if !isTCP {
		if !strings.HasPrefix(endpoint, "ipc://") {
			return "", fmt.Errorf("%w: %q is neither tcp://HOST:PORT nor ipc://PATH", ErrConfig, endpoint)
		}
		if rank > 0 {
			return "", fmt.Errorf("%w: %s has no port, and so serves rank 0 alone", ErrConfig, endpoint)
		}
		return endpoint, nil
	}
	colon := strings.LastIndexByte(rest, ':')
	if colon < 0 {
		return "", fmt.Errorf("%w: %s has no port", ErrConfig, endpoint)
	}
	port, err := strconv.ParseUint(rest[colon+1:], 10, 16)
	if err != nil {
		return "", fmt.Errorf("%w: %s: the port is no number from 0 to 65535", ErrConfig, endpoint)
	}
	if port > 0 {
		port += uint64(rank)
	}
	if port > 65535 {
		return "", fmt.Errorf("%w: %s: rank %d would have port %d", ErrConfig, endpoint, rank, port)
	}
	return "tcp://" + rest[:colon+1] + strconv.FormatUint(port, 10), nil
}

// onHost replaces a wildcard by a host: a simulator that all the world can reach is wanted by nobody.
func onHost(endpoint, host string) string {
	at, err := zmq.ParseEndpoint(endpoint)
	if err != nil || !at.Wildcard() {
		return endpoint // what is wrong with it shows when it is opened
	}
	at.Host = host
	return at.String()
}

// withPort gives an endpoint the port that another one has.
func withPort(endpoint, bound string) string {
	at, from := strings.LastIndexByte(endpoint, ':'), strings.LastIndexByte(bound, ':')
	if !strings.HasPrefix(endpoint, "tcp://") || from < 0 {
		return endpoint
	}
	return endpoint[:at] + bound[from:]
}
