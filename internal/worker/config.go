package worker

import (
	"context"
	"log/slog"
	"net"
	"time"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/modelcard"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/status"
	"remora/internal/handoff"
	"remora/internal/translate"
	"remora/internal/vllm"
)

// Config is everything a worker needs to know. Fields without a note on their zero value must be set.
type Config struct {
	Role protocol.Role
	// Address names the endpoint. Frontends look for prefill workers in the component "prefill"; the others are free.
	Address discovery.Address
	// EndpointTypes is what the model card offers; without effect for prefill.
	EndpointTypes modelcard.EndpointTypes
	// Codec is what the worker advertises for bodies; the frontend obeys.
	Codec protocol.Codec
	// DeviceType goes into the instance record: "cpu" or "cuda".
	DeviceType string

	// Engine says how to reach the engine; StartupDeadline bounds each of the two looks at it.
	Engine          vllm.Config
	StartupDeadline time.Duration

	// InstanceID names the worker in discovery; 0: Run draws one. Whoever opens a store that needs it gives both the same.
	InstanceID uint64
	// Store holds the worker's records. OpenStore, where it is set, opens it instead, when the status server is up: that may take
	// its time. Run closes it.
	Store     discovery.Store
	OpenStore func(ctx context.Context) (discovery.Store, error)
	// OpenPlane opens the request plane, likewise; nil: the TCP plane, on Host and Port.
	OpenPlane func(ctx context.Context) (Plane, error)
	// Host and Port of the request plane: bound and advertised. Host "": the local address. Port 0: any. A host that stands for
	// all addresses (0.0.0.0, ::) is bound, and the local address is advertised.
	Host string
	Port uint16
	// Listen opens the request plane's listener, DialBack the connections to frontends; nil: TCP. Tests without ports set them.
	Listen   func(network, address string) (net.Listener, error)
	DialBack func(ctx context.Context, network, address string) (net.Conn, error)
	// MaxMessage bounds a request frame, in bytes. 0: 32 MiB.
	MaxMessage int
	// Running and Waiting bound the admitted requests; beyond both the worker answers "overloaded". Running 0: 10,000 and 40,000.
	Running, Waiting int

	// System is the status server's listener; nil: no status server. Run closes it.
	System net.Listener
	// Metrics of the worker; nil: Run makes them.
	Metrics *status.Metrics
	// StartReady makes /health say ready before the worker is.
	StartReady bool
	// HealthPath and LivePath of the status server; "": /health and /live.
	HealthPath, LivePath string
	// SelfHost serves the model's files to frontends from the status server; without one the card names local paths.
	SelfHost bool

	// ChatTemplate is the file of --custom-jinja-template; "": the model's own.
	ChatTemplate               string
	ToolCallParser             string // "": none
	ReasoningParser            string // "": none
	ExcludeToolsWhenChoiceNone bool
	StableRoutingID            string // published as it is; "": none
	HandoffCheck               translate.HandoffCheck
	DrainDeadline              time.Duration // M3; 0: 30 s
	// Policy is how a cancelled decode lets go of its hand-off. Release needs an engine from 0.32 on.
	Policy handoff.Policy
	// Lease is how long the prefill engine keeps blocks that nobody asks for; 0: 30 s, the engine's default.
	Lease time.Duration
	// ReleaseDeclined has the engine fetch the hand-offs of declined decodes once, so that the prefill engine frees its blocks.
	// Without effect below engine 0.32.
	ReleaseDeclined bool
	GracePeriod     time.Duration // after the instance record is gone, requests are still taken
	ShutdownTimeout time.Duration // after the grace, answers may run on
	Log             *slog.Logger
	OnReady         func(Ready) // called once when the worker is registered; nil: not told
}

// Ready tells what a registered worker is.
type Ready struct {
	Model      string // served name
	InstanceID uint64
	Address    string // of the request plane: host:port, or the NATS subject
}

// The stock limits of a worker's requests, the default start-up and drain deadlines, and the stock grace.
const (
	defaultRunning  = 10_000
	defaultWaiting  = 40_000
	defaultStartup  = 30 * time.Minute
	defaultDeadline = 30 * time.Second
	defaultLease    = 30 * time.Second
)

func (c Config) withDefaults() Config {
	if c.Running <= 0 {
		c.Running, c.Waiting = defaultRunning, defaultWaiting
	}
	if c.StartupDeadline <= 0 {
		c.StartupDeadline = defaultStartup
	}
	if c.DrainDeadline <= 0 {
		c.DrainDeadline = defaultDeadline
	}
	if c.InstanceID == 0 {
		c.InstanceID = discovery.NewID()
	}
	if c.Metrics == nil {
		c.Metrics = status.NewMetrics()
	}
	if c.Listen == nil {
		c.Listen = net.Listen
	}
	if c.Lease <= 0 {
		c.Lease = defaultLease
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}
