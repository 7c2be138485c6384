package main

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"

	"remora/cmd/remora/internal/flags"
	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/modelcard"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane/natsplane"
)

// parseSidecar reads and judges all that a sidecar is told.
func parseSidecar(args []string, lookup func(string) (string, bool)) (sidecarConfig, error) {
	var read sidecarFlags
	from, err := read.table().Parse(args, lookup)
	if err != nil {
		return sidecarConfig{}, err //nolint:wrapcheck // conclude tells the kinds apart
	}
	if err = read.refuse(from); err != nil {
		return sidecarConfig{}, err
	}
	config, err := read.resolve(from, lookup)
	if err != nil {
		return sidecarConfig{}, err
	}
	return config, nil
}

// refuse names the first setting that asks for what Remora does not have yet, and what to set instead.
func (s *sidecarFlags) refuse(from flags.Sources) error {
	for _, c := range []struct {
		when bool
		say  refusal
	}{
		{
			s.discovery == "kubernetes",
			"--discovery-backend kubernetes is not supported yet: set --discovery-backend etcd, or file and DYN_FILE_KV to a folder " +
				"shared with the frontend, on the frontend too",
		},
		{s.responsePlane == "quic", "--response-plane quic is not supported yet: set --response-plane tcp, on the frontend too"},
		{s.eventPlane == "nats", "--event-plane nats is not supported yet: set --event-plane zmq, on the frontend too"},
		{
			s.zmqBroker != "" || s.zmqBrokerOn,
			"a ZeroMQ broker is not supported: unset DYN_ZMQ_BROKER_URL and DYN_ZMQ_BROKER_ENABLED, on the frontend too; workers publish directly then",
		},
		{s.role == protocol.Encode, "--disaggregation-mode encode is not supported yet: set agg, prefill or decode"},
		{s.routeToEncoder, "--route-to-encoder is not supported yet: leave it out, or set DYN_ROUTE_TO_ENCODER=false"},
		{s.enableRL, "--enable-rl is not supported yet: leave it out, or set DYN_ENABLE_RL=false"},
		{from["vllm-rl-world-size"] != 0, "--vllm-rl-world-size is not supported yet: leave it out and unset DYN_VLLM_RL_WORLD_SIZE"},
		{s.topology, "pairing by topology is not supported yet: unset DYN_TOPOLOGY_ENABLED or set it to false"},
		{s.lora, "LoRA adapters are not supported yet: unset DYN_LORA_ENABLED or set it to false"},
		{s.tls.first() != "", refusal("TLS on the request plane is not supported yet: unset " + s.tls.first())},
	} {
		if c.when {
			return c.say
		}
	}
	return nil
}

// tlsSettings are the variables of TLS on the request plane as they are read.
type tlsSettings struct {
	cert, key, ca                   string
	clientCert, clientKey, clientCA string
	server                          string
	insecure                        bool
}

// first names the first of them that is set, or is empty.
func (t *tlsSettings) first() string {
	for _, c := range []struct {
		set  bool
		name string
	}{
		{t.cert != "", "DYN_TCP_TLS_CERT_PATH"},
		{t.key != "", "DYN_TCP_TLS_KEY_PATH"},
		{t.ca != "", "DYN_TCP_TLS_CA_CERT_PATH"},
		{t.clientCert != "", "DYN_TCP_TLS_CLIENT_CERT_PATH"},
		{t.clientKey != "", "DYN_TCP_TLS_CLIENT_KEY_PATH"},
		{t.clientCA != "", "DYN_TCP_TLS_CLIENT_CA_CERT_PATH"},
		{t.server != "", "DYN_TCP_TLS_SERVER_NAME"},
		{t.insecure, "DYN_TCP_TLS_INSECURE"},
	} {
		if c.set {
			return c.name
		}
	}
	return ""
}

// resolve makes the configuration out of settings that are all supported.
func (s *sidecarFlags) resolve(from flags.Sources, lookup func(string) (string, bool)) (sidecarConfig, error) {
	address := discovery.Address{Namespace: s.suffixedNamespace(), Component: s.roleComponent(), Endpoint: s.endpoint}
	if err := address.Validate(); err != nil {
		return sidecarConfig{}, fmt.Errorf("%w: see --namespace, --component, --endpoint and DYN_NAMESPACE_WORKER_SUFFIX", err)
	}
	card := cardConfig{
		ChatTemplate: s.chatTemplate, ToolCallParser: s.toolCallParser, ReasoningParser: s.reasoningParser,
		ExcludeToolsWhenChoiceNone: s.excludeTools, StableRoutingID: s.stableRoutingID,
	}
	engine := engineConfig{
		Endpoint: s.grpcEndpoint, Backend: s.engineTransport, Connections: s.grpcConnections,
		AttemptTimeout: wholeSeconds(s.attemptSecs), RetryInterval: wholeSeconds(s.retrySecs), StartupDeadline: wholeSeconds(s.startupSecs),
	}
	found, err := s.discoveryConfig(lookup)
	if err != nil {
		return sidecarConfig{}, err
	}
	var viaNATS *natsplane.Config
	if s.requestPlane == "nats" {
		if viaNATS, err = s.nats.config(); err != nil {
			return sidecarConfig{}, err
		}
	}
	if s.startupSecs >= math.MaxInt64 { // the Rust sidecar's clock ends about there
		return sidecarConfig{}, refusal(fmt.Sprintf("--grpc-startup-deadline-secs %d is beyond the range of the clock: set at most %d",
			s.startupSecs, math.MaxInt64-1))
	}
	if err = card.setTypes(s.endpointTypes); err != nil && s.role != protocol.Prefill { // whose card does not say them
		return sidecarConfig{}, err
	}
	if err = checkToolCallParser(s.toolCallParser); err != nil {
		return sidecarConfig{}, err
	}
	if err = s.checkPaths(); err != nil {
		return sidecarConfig{}, err
	}
	return sidecarConfig{
		Role: s.role, Address: address, Device: deviceType(lookup), Card: card, Engine: engine,
		Discovery: found,
		RequestPlane: requestPlaneConfig{
			NATS: viaNATS, Host: s.rpcHost, Port: s.rpcPort, Codec: s.codec, MaxMessageSize: s.maxMessageSize,
			WorkerPool: s.workerPool, WorkQueue: s.queue, EngineLimit: s.engineLimit, EngineQueue: s.engineQueue,
		},
		System: systemConfig{
			Enabled: s.systemPort >= 0, Host: s.systemHost, Port: uint16(max(s.systemPort, 0)),
			HealthPath: s.healthPath, LivePath: s.livePath, StartReady: s.startReady, SelfHostMetadata: s.selfHost && s.systemPort >= 0,
		},
		Shutdown: shutdownConfig{Grace: s.grace, Total: s.total, PrefillDrain: s.prefillDrain, Runtime: s.runtime},
		Handoff: handoffConfig{
			Check: s.handoffCheck, DrainDeadline: s.drainDeadline, Policy: s.cancelPolicy, Lease: s.lease, ReleaseDeclined: s.releaseDeclined,
		},
		Log:     s.log.options(from),
		Notices: s.notices(),
	}, nil
}

func (s *sidecarFlags) suffixedNamespace() string {
	suffix := "-" + s.namespaceSuffix
	if s.namespaceSuffix == "" || strings.HasSuffix(s.namespace, suffix) {
		return s.namespace
	}
	return s.namespace + suffix
}

// roleComponent is the component's name. Only aggregated workers choose theirs: frontends pair the others by role.
func (s *sidecarFlags) roleComponent() string {
	switch s.role {
	case protocol.Prefill:
		return "prefill"
	case protocol.Decode:
		return "backend"
	case protocol.Encode:
		return "encode"
	case protocol.Aggregated:
	}
	return s.component
}

// setTypes reads the endpoint types: words in any case, separated by commas, blank ones skipped.
func (c *cardConfig) setTypes(text string) error {
	for word := range strings.SplitSeq(text, ",") {
		switch strings.ToLower(strings.TrimSpace(word)) {
		case "":
		case "chat":
			c.EndpointTypes |= modelcard.Chat
		case "completions":
			c.EndpointTypes |= modelcard.Completions
		default:
			return refusal(fmt.Sprintf("--endpoint-types has %q, which is not supported: set chat, completions or both", strings.TrimSpace(word)))
		}
	}
	if c.EndpointTypes == 0 {
		return refusal("--endpoint-types is empty: set chat, completions or both")
	}
	return nil
}

// wholeSeconds turns a number of seconds into a duration. What no duration holds, 292 years and more, is the longest one.
func wholeSeconds(n uint64) time.Duration { return time.Duration(min(n, maxSeconds)) * time.Second }

func (s *sidecarFlags) checkPaths() error {
	if s.healthPath == s.livePath || s.healthPath == "/metrics" || s.livePath == "/metrics" {
		return refusal("DYN_SYSTEM_HEALTH_PATH, DYN_SYSTEM_LIVE_PATH and /metrics must differ")
	}
	return nil
}

func (s *sidecarFlags) discoveryConfig(lookup func(string) (string, bool)) (discoveryConfig, error) {
	switch s.discovery {
	case "mem":
		return discoveryConfig{Backend: discoverMemory}, nil
	case "file":
		root := s.fileRoot
		if root == "" {
			temp, _ := lookup("TMPDIR")
			if temp == "" {
				temp = "/tmp"
			}
			root = filepath.Join(temp, "dynamo_store_kv")
		}
		return discoveryConfig{Backend: discoverFile, FileRoot: root}, nil
	}
	found, err := s.etcd.config()
	return discoveryConfig{Backend: discoverEtcd, Etcd: found}, err
}

// notices are the settings that are taken without the effect they have elsewhere.
func (s *sidecarFlags) notices() []string {
	var notices []string
	if s.healthCheck || s.healthPayload != "" {
		notices = append(notices, "DYN_HEALTH_CHECK_ENABLED and DYN_HEALTH_CHECK_PAYLOAD: no canary requests are sent; "+
			"/health follows the engine's own health service")
	}
	if s.selfHost && s.systemPort < 0 {
		notices = append(notices, "DYN_SYSTEM_PORT is not set: the model card names local paths, so frontends on other hosts cannot read the model's files")
	}
	return notices
}
