package main

import (
	"math"
	"net/netip"
	"time"

	"remora/cmd/remora/internal/flags"
	"remora/internal/dynamo/protocol"
	"remora/internal/handoff"
	"remora/internal/translate"
	"remora/internal/vllm"
)

// sidecarFlags is what the command line and the environment say, before resolve judges it as a whole. Times in whole
// seconds stay numbers here: those too long for the clock are refused later, as the Rust sidecar does.
type sidecarFlags struct {
	discovery, requestPlane, responsePlane, eventPlane string
	namespace, component, endpoint, endpointTypes      string
	chatTemplate, toolCallParser, reasoningParser      string
	excludeTools                                       bool
	role                                               protocol.Role
	routeToEncoder, enableRL                           bool

	grpcEndpoint              vllm.Endpoint
	grpcConnections           int
	engineTransport           vllm.Backend
	attemptSecs, retrySecs    uint64
	startupSecs               uint64
	rlWorldSize               uint32
	drainDeadline             time.Duration
	handoffCheck              translate.HandoffCheck
	cancelPolicy              handoff.Policy
	lease                     time.Duration
	releaseDeclined           bool
	namespaceSuffix, fileRoot string
	stableRoutingID           string

	rpcHost                             netip.Addr
	rpcPort                             uint16
	codec                               protocol.Codec
	maxMessageSize, workerPool, queue   int
	engineLimit, engineQueue            int
	systemPort                          int // -1: off
	systemHost, healthPath, livePath    string
	startReady, selfHost                bool
	grace, total, prefillDrain, runtime time.Duration

	etcd etcdSettings
	nats natsSettings

	lora, healthCheck, zmqBrokerOn bool
	topology                       bool
	healthPayload, zmqBroker       string
	tls                            tlsSettings

	log logSettings
}

// table binds the flags to s. Names, defaults and meanings of the first group are those of the Rust sidecar 1.6.1.
func (s *sidecarFlags) table() *flags.Set {
	return &flags.Set{
		Command: "remora sidecar",
		Summary: "Make a vLLM engine a Dynamo worker: connect to its native gRPC services, register its model, and serve the " +
			"requests of Dynamo's frontends with it.",
		Groups: []flags.Group{
			{Title: "Options", Flags: s.rustFlags()},
			{Title: "Remora's own options", Note: "The Rust sidecar does not have these.", Flags: s.ownFlags()},
			{Title: "Environment without a flag", Note: "Set but empty counts as not set.", Variables: s.runtimeVariables()},
			{Title: "etcd", Note: "With --discovery-backend etcd.", Variables: s.etcd.variables()},
			{Title: "NATS", Note: "With --request-plane nats.", Variables: s.nats.variables()},
			{Title: "Logging", Variables: s.log.variables()},
			{Title: "Not supported yet", Note: "These are known so that a setting is never lost in silence: the start is refused where one " +
				"would change what the worker does.", Variables: s.unsupportedVariables()},
		},
	}
}

func (s *sidecarFlags) rustFlags() []flags.Flag {
	words := func(dst *string, all ...string) flags.Value { return flags.OneOf(dst, wordChoices(all)...) }
	eventWords := append(wordChoices([]string{"nats", "zmq"}), flags.Choice[string]{Hidden: true}) // the empty word is taken, as by the Rust sidecar
	return []flags.Flag{
		{Name: "discovery-backend", Env: "DYN_DISCOVERY_BACKEND", Value: words(&s.discovery, "kubernetes", "etcd", "file", "mem"),
			Help: "Where workers and frontends find each other. etcd if not set, at ETCD_ENDPOINTS; file needs no service, only DYN_FILE_KV, a folder shared with the frontend. mem serves tests within one process. kubernetes is not supported yet."},
		{Name: "request-plane", Env: "DYN_REQUEST_PLANE", Value: words(&s.requestPlane, "tcp", "nats").AnyCase(),
			Help: "How requests reach the worker; the frontend must use the same. tcp if not set. nats takes them from the server at NATS_SERVER; answers go to the frontend over TCP in any case."},
		{Name: "response-plane", Env: "DYN_RESPONSE_PLANE", Value: words(&s.responsePlane, "tcp", "quic"),
			Help: "How answers return; the frontend must use the same. tcp if not set; quic is not supported yet."},
		{Name: "event-plane", Env: "DYN_EVENT_PLANE", Value: flags.OneOf(&s.eventPlane, eventWords...),
			Help: "How KV events reach the routers. zmq if not set; nats is not supported yet."},
		{Name: "namespace", Env: "DYN_NAMESPACE", Default: "dynamo", Value: flags.Text(&s.namespace),
			Help: "The namespace to register in. DYN_NAMESPACE_WORKER_SUFFIX is appended to it."},
		{Name: "component", Env: "DYN_COMPONENT", Default: "backend", Value: flags.Text(&s.component),
			Help: "The component within the namespace, for aggregated workers. A prefill worker is always in prefill, a decode worker in backend."},
		{Name: "endpoint", Env: "DYN_ENDPOINT", Default: "generate", Value: flags.Text(&s.endpoint),
			Help: "The name of the endpoint that serves requests."},
		{Name: "endpoint-types", Env: "DYN_ENDPOINT_TYPES", Default: "chat,completions", Value: flags.Text(&s.endpointTypes),
			Help: "What the frontend offers for the model: chat, completions, or both separated by a comma. A chat model needs a chat template."},
		{Name: "custom-jinja-template", Env: "DYN_CUSTOM_JINJA_TEMPLATE", Value: flags.Path(&s.chatTemplate),
			Help: "Path of a chat template to use instead of the model's own."},
		{Name: "dyn-tool-call-parser", Env: "DYN_TOOL_CALL_PARSER", Value: flags.Text(&s.toolCallParser),
			Help: "Name of the frontend's tool-call parser for this model: one that Dynamo 1.6.1 knows, since a frontend takes any other for none."},
		{Name: "dyn-reasoning-parser", Env: "DYN_REASONING_PARSER", Value: flags.Text(&s.reasoningParser),
			Help: "Name of the frontend's reasoning parser for this model."},
		{Name: "exclude-tools-when-tool-choice-none", Env: "DYN_EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE", Default: "true", Value: flags.Bool(&s.excludeTools),
			Help: "Whether the chat template is kept from seeing the tools when tool_choice is none."},
		{Name: "disaggregation-mode", Env: "DYN_DISAGGREGATION_MODE", Default: "agg", Help: "The worker's role.", Value: flags.OneOf(&s.role,
			flags.Choice[protocol.Role]{Word: "agg", Value: protocol.Aggregated, Help: "prefill and decode in one engine"},
			flags.Choice[protocol.Role]{Word: "aggregated", Value: protocol.Aggregated, Hidden: true},
			flags.Choice[protocol.Role]{Word: "prefill", Value: protocol.Prefill, Help: "prefill only; a decode worker fetches the KV cache"},
			flags.Choice[protocol.Role]{Word: "decode", Value: protocol.Decode, Help: "decode, from a KV cache that a prefill worker made"},
			flags.Choice[protocol.Role]{Word: "encode", Value: protocol.Encode, Help: "multimodal encoder; not supported yet"})},
		{Name: "route-to-encoder", Env: "DYN_ROUTE_TO_ENCODER", Value: flags.Switch(&s.routeToEncoder),
			Help: "Declare that the worker needs an encode worker. Not supported yet."},
		{Name: "enable-rl", Env: "DYN_ENABLE_RL", Value: flags.Switch(&s.enableRL),
			Help: "Publish the engine's control routes for reinforcement learning. Not supported yet."},
		{Name: "grpc-endpoint", Env: "DYN_SIDECAR_GRPC_ENDPOINT", Required: true, Value: flags.Func(func(text string) (err error) {
			s.grpcEndpoint, err = vllm.ParseEndpoint(text)
			return err //nolint:wrapcheck // the engine of flags names the flag
		}), Help: "Where the engine's gRPC server listens: host:port, http://host:port or grpc://host:port, in clear."},
		{Name: "grpc-connections", Env: "DYN_SIDECAR_GRPC_CONNECTIONS", Default: "8", Value: flags.Number(&s.grpcConnections, 1, maxConnections),
			Help: "How many connections to the engine to keep."},
		{Name: "grpc-connect-attempt-timeout-secs", Env: "DYN_SIDECAR_GRPC_CONNECT_ATTEMPT_TIMEOUT_SECS", Default: "30",
			Value: flags.Number(&s.attemptSecs, 1, math.MaxUint64),
			Help:  "How long one attempt to connect may take, in seconds."},
		{Name: "grpc-retry-interval-secs", Env: "DYN_SIDECAR_GRPC_RETRY_INTERVAL_SECS", Default: "1", Value: flags.Number(&s.retrySecs, 1, math.MaxUint64),
			Help: "The pause between attempts to connect, in seconds."},
		{Name: "grpc-startup-deadline-secs", Env: "DYN_SIDECAR_GRPC_STARTUP_DEADLINE_SECS", Default: "1800", Value: flags.Number(&s.startupSecs, 1, math.MaxUint64),
			Help: "How long each phase of the start may take, in seconds."},
		{Name: "vllm-http-endpoint", Env: "VLLM_HTTP_ENDPOINT", Value: flags.Func(func(text string) error {
			_, err := vllm.ParseHTTPEndpoint(text)
			return err //nolint:wrapcheck // as above
		}), Help: "Base URL of the engine's HTTP server. It is only published together with --enable-rl, so for now it is checked and has no effect."},
		{Name: "vllm-rl-world-size", Env: "DYN_VLLM_RL_WORLD_SIZE", Value: flags.Number(&s.rlWorldSize, 1, math.MaxUint32),
			Help: "How many processes take part in reinforcement learning. Not supported yet."},
	}
}

// maxConnections bounds what a slip of the keyboard can cost; HTTP/2 carries many requests on each.
const maxConnections = 1024

func (s *sidecarFlags) ownFlags() []flags.Flag {
	return []flags.Flag{
		{Name: "drain-deadline", Env: "REMORA_DRAIN_DEADLINE", Default: "30", Value: seconds(&s.drainDeadline, time.Millisecond),
			Help: "How long a decode request goes on after its client left, so that the engine can take over the prefill worker's KV cache and release it, in seconds from the cancel."},
		{Name: "handoff-check", Env: "REMORA_HANDOFF_CHECK", Default: "strict", Help: "How closely hand-off parameters are looked at before a decode request reaches the engine.", Value: flags.OneOf(&s.handoffCheck,
			flags.Choice[translate.HandoffCheck]{Word: "strict", Value: translate.HandoffStrict, Help: "keys and kinds, and as many blocks as the prompt needs"},
			flags.Choice[translate.HandoffCheck]{Word: "shape", Value: translate.HandoffShape, Help: "keys and kinds only"},
			flags.Choice[translate.HandoffCheck]{Word: "off", Value: translate.HandoffOff, Help: "not at all"})},
		{Name: "cancel-policy", Env: "REMORA_CANCEL_POLICY", Default: "drain", Help: "How a decode request whose client left lets go of the prefill worker's KV cache.", Value: flags.OneOf(&s.cancelPolicy,
			flags.Choice[handoff.Policy]{Word: "drain", Value: handoff.Drain, Help: "go on until the engine has taken it over"},
			flags.Choice[handoff.Policy]{Word: "release", Value: handoff.Release, Help: "abort as soon as the engine knows the request, which frees it even where the queue is long; needs vLLM 0.32 or later"})},
		{Name: "kv-lease", Env: "REMORA_KV_LEASE", Default: "30", Value: seconds(&s.lease, time.Second),
			Help: "How long a prefill engine keeps KV blocks that nobody asks for, in seconds: the kv_lease_duration of its connector. A decode worker refuses hand-offs that are too old for it."},
		{Name: "release-declined", Env: "REMORA_RELEASE_DECLINED", Default: "true", Value: flags.Bool(&s.releaseDeclined),
			Help: "Whether the hand-off of a decode request that is declined for another reason is fetched once, so that the prefill engine frees its KV blocks. Without effect below vLLM 0.32."},
		{Name: "engine-transport", Env: "REMORA_ENGINE_TRANSPORT", Default: "h2", Help: "What carries generation streams from the engine.", Value: flags.OneOf(&s.engineTransport,
			flags.Choice[vllm.Backend]{Word: "h2", Value: vllm.BackendH2, Help: "a transport of Remora's own, of half the cost; --grpc-connections is how many connections it begins with"},
			flags.Choice[vllm.Backend]{Word: "grpc", Value: vllm.BackendGRPC, Help: "grpc-go, on the connections of --grpc-connections"})},
	}
}

// wordChoices are words that mean themselves.
func wordChoices(words []string) []flags.Choice[string] {
	choices := make([]flags.Choice[string], len(words))
	for i, w := range words {
		choices[i] = flags.Choice[string]{Word: w, Value: w}
	}
	return choices
}
