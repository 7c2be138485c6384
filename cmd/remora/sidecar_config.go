package main

import (
	"net/netip"
	"time"

	"remora/cmd/remora/internal/logging"
	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/discovery/etcd"
	"remora/internal/dynamo/modelcard"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane/natsplane"
	"remora/internal/handoff"
	"remora/internal/translate"
	"remora/internal/vllm"
)

// sidecarConfig is all that a sidecar is told, read and judged. Every field is set: zero values mean what their comments
// say, never "look elsewhere".
type sidecarConfig struct {
	Role    protocol.Role     // Aggregated, Prefill or Decode
	Address discovery.Address // the namespace with its suffix; the component that the role demands
	Device  string            // device_type of the instance record: cuda or cpu
	Card    cardConfig
	Engine  engineConfig

	Discovery    discoveryConfig
	RequestPlane requestPlaneConfig
	System       systemConfig
	Shutdown     shutdownConfig
	Handoff      handoffConfig

	Log     logging.Options
	Notices []string // what was set and has another effect than its reader may expect; for the log, at start
}

// cardConfig is what the model card says beyond the engine's own answers.
type cardConfig struct {
	EndpointTypes              modelcard.EndpointTypes // at least one. A prefill worker's card does not say them
	ChatTemplate               string                  // path of a Jinja template; empty: the model's own
	ToolCallParser             string                  // name of the frontend's parser; empty: none
	ReasoningParser            string                  // likewise
	ExcludeToolsWhenChoiceNone bool
	StableRoutingID            string // a name of the worker for routers; empty: none
}

// engineConfig is how the engine is reached.
type engineConfig struct {
	Endpoint        vllm.Endpoint
	Backend         vllm.Backend  // what carries generation streams
	Connections     int           // at least 1
	AttemptTimeout  time.Duration // of one connection attempt
	RetryInterval   time.Duration // between attempts
	StartupDeadline time.Duration // of each phase of the start
}

// discoveryBackend is where records are kept.
type discoveryBackend uint8

const (
	discoverEtcd   discoveryBackend = iota // etcd, Dynamo's default
	discoverFile                           // a folder shared with the frontend
	discoverMemory                         // nowhere: one process, for tests
)

type discoveryConfig struct {
	Backend  discoveryBackend
	FileRoot string      // the folder of discoverFile
	Etcd     etcd.Config // of discoverEtcd; its lease is known when the worker is
}

// requestPlaneConfig is how requests arrive.
type requestPlaneConfig struct {
	NATS           *natsplane.Config // nil: over TCP
	Host           netip.Addr        // bound and advertised; invalid: the host's own address
	Port           uint16            // 0: any
	Codec          protocol.Codec
	MaxMessageSize int // bytes of a whole request frame
	WorkerPool     int // requests that run at once, whatever the engine's limit
	WorkQueue      int // requests that wait for the pool
	EngineLimit    int // requests that the engine is given at once; 0: no limit
	EngineQueue    int // requests that wait for the engine's limit; of no effect without one
}

// systemConfig is the system status server.
type systemConfig struct {
	Enabled              bool
	Host                 string
	Port                 uint16 // 0: any
	HealthPath, LivePath string
	StartReady           bool // /health says ready before the engine does
	SelfHostMetadata     bool // the model's files are served to frontends on other hosts; needs Enabled
}

// shutdownConfig is how long a stop may take, each from its own beginning.
type shutdownConfig struct {
	Grace        time.Duration // requests are still admitted, because routers lag
	Total        time.Duration // of all after the grace
	PrefillDrain time.Duration // a prefill worker's wait for its blocks to be fetched
	Runtime      time.Duration // of the handlers that are left after that
}

// handoffConfig is how hand-offs are looked at and let go of.
type handoffConfig struct {
	Check         translate.HandoffCheck
	DrainDeadline time.Duration // of a cancelled decode, counted from the cancel
	Policy        handoff.Policy
	Lease         time.Duration // how long the prefill engine keeps blocks that nobody asks for
	// ReleaseDeclined: hand-offs of declined decodes are fetched once, so that their blocks are freed.
	ReleaseDeclined bool
}
