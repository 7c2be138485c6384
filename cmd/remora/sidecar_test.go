package main

import (
	"errors"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"remora/cmd/remora/internal/flags"
	"remora/cmd/remora/internal/logging"
	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/modelcard"
	"remora/internal/dynamo/protocol"
	"remora/internal/handoff"
	"remora/internal/translate"
	"remora/internal/vllm"
)

// environment is a set of variables as os.LookupEnv gives them.
type environment map[string]string

func (e environment) lookup(name string) (string, bool) {
	value, set := e[name]
	return value, set
}

// baseArgs is the shortest command line that starts.
var baseArgs = []string{"--grpc-endpoint=127.0.0.1:50051", "--discovery-backend=file"}

// baseConfig is what baseArgs mean.
func baseConfig() sidecarConfig {
	return sidecarConfig{
		Role:    protocol.Aggregated,
		Address: discovery.Address{Namespace: "dynamo", Component: "backend", Endpoint: "generate"},
		Device:  "cuda",
		Card:    cardConfig{EndpointTypes: modelcard.Chat | modelcard.Completions, ExcludeToolsWhenChoiceNone: true},
		Engine: engineConfig{
			Endpoint: vllm.Endpoint{Host: "127.0.0.1", Port: 50051}, Connections: 8,
			AttemptTimeout: 30 * time.Second, RetryInterval: time.Second, StartupDeadline: 30 * time.Minute,
		},
		Discovery: discoveryConfig{Backend: discoverFile, FileRoot: "/tmp/dynamo_store_kv"},
		RequestPlane: requestPlaneConfig{
			Codec: protocol.MsgPack, MaxMessageSize: 32 << 20, WorkerPool: 10_000, WorkQueue: 40_000, EngineQueue: 16,
		},
		System:   systemConfig{Host: "0.0.0.0", HealthPath: "/health", LivePath: "/live"},
		Shutdown: shutdownConfig{Grace: 5 * time.Second, Total: 30 * time.Second, PrefillDrain: 30 * time.Second, Runtime: 15 * time.Minute},
		Handoff:  handoffConfig{Check: translate.HandoffStrict, DrainDeadline: 30 * time.Second, Lease: 30 * time.Second, ReleaseDeclined: true},
		Log:      logging.Options{},
		Notices:  []string{"DYN_SYSTEM_PORT is not set: the model card names local paths, so frontends on other hosts cannot read the model's files"},
	}
}

// settingCases has an entry for each flag and variable that changes the configuration: how it may be said, and what changes.
var settingCases = []struct {
	flag, env, value string // flag without dashes; either may be empty
	change           func(*sidecarConfig)
}{
	{"discovery-backend", "DYN_DISCOVERY_BACKEND", "mem", func(c *sidecarConfig) { c.Discovery = discoveryConfig{Backend: discoverMemory} }},
	{"discovery-backend", "DYN_DISCOVERY_BACKEND", "etcd", func(c *sidecarConfig) { c.Discovery = baseEtcd() }},
	{"request-plane", "DYN_REQUEST_PLANE", "tcp", nil},
	{"request-plane", "DYN_REQUEST_PLANE", "Tcp", nil},
	{"request-plane", "DYN_REQUEST_PLANE", "nats", func(c *sidecarConfig) { c.RequestPlane.NATS = baseNATS() }},
	{"response-plane", "DYN_RESPONSE_PLANE", "tcp", nil},
	{"event-plane", "DYN_EVENT_PLANE", "zmq", nil},
	{"event-plane", "DYN_EVENT_PLANE", "", nil},
	{"namespace", "DYN_NAMESPACE", "other", func(c *sidecarConfig) { c.Address.Namespace = "other" }},
	{"namespace", "DYN_NAMESPACE", "Team.A", func(c *sidecarConfig) { c.Address.Namespace = "Team.A" }},
	{"component", "DYN_COMPONENT", "mine", func(c *sidecarConfig) { c.Address.Component = "mine" }},
	{"endpoint", "DYN_ENDPOINT", "serve", func(c *sidecarConfig) { c.Address.Endpoint = "serve" }},
	{"endpoint-types", "DYN_ENDPOINT_TYPES", " Chat,,", func(c *sidecarConfig) { c.Card.EndpointTypes = modelcard.Chat }},
	{"endpoint-types", "DYN_ENDPOINT_TYPES", "completions", func(c *sidecarConfig) { c.Card.EndpointTypes = modelcard.Completions }},
	{"custom-jinja-template", "DYN_CUSTOM_JINJA_TEMPLATE", "/t.jinja", func(c *sidecarConfig) { c.Card.ChatTemplate = "/t.jinja" }},
	{"dyn-tool-call-parser", "DYN_TOOL_CALL_PARSER", "hermes", func(c *sidecarConfig) { c.Card.ToolCallParser = "hermes" }},
	{"dyn-reasoning-parser", "DYN_REASONING_PARSER", "qwen3", func(c *sidecarConfig) { c.Card.ReasoningParser = "qwen3" }},
	{"exclude-tools-when-tool-choice-none", "DYN_EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE", "false", func(c *sidecarConfig) { c.Card.ExcludeToolsWhenChoiceNone = false }},
	{"disaggregation-mode", "DYN_DISAGGREGATION_MODE", "agg", nil},
	{"disaggregation-mode", "DYN_DISAGGREGATION_MODE", "aggregated", nil},
	{"disaggregation-mode", "DYN_DISAGGREGATION_MODE", "prefill", func(c *sidecarConfig) { c.Role, c.Address.Component = protocol.Prefill, "prefill" }},
	{"disaggregation-mode", "DYN_DISAGGREGATION_MODE", "decode", func(c *sidecarConfig) { c.Role = protocol.Decode }},
	{"grpc-endpoint", "DYN_SIDECAR_GRPC_ENDPOINT", "grpc://[::1]:7/", func(c *sidecarConfig) { c.Engine.Endpoint = vllm.Endpoint{Host: "::1", Port: 7} }},
	{"grpc-connections", "DYN_SIDECAR_GRPC_CONNECTIONS", "1", func(c *sidecarConfig) { c.Engine.Connections = 1 }},
	{"grpc-connect-attempt-timeout-secs", "DYN_SIDECAR_GRPC_CONNECT_ATTEMPT_TIMEOUT_SECS", "2", func(c *sidecarConfig) { c.Engine.AttemptTimeout = 2 * time.Second }},
	{"grpc-retry-interval-secs", "DYN_SIDECAR_GRPC_RETRY_INTERVAL_SECS", "3", func(c *sidecarConfig) { c.Engine.RetryInterval = 3 * time.Second }},
	{"grpc-startup-deadline-secs", "DYN_SIDECAR_GRPC_STARTUP_DEADLINE_SECS", "9223372036", func(c *sidecarConfig) { c.Engine.StartupDeadline = 9223372036 * time.Second }},
	{"grpc-startup-deadline-secs", "DYN_SIDECAR_GRPC_STARTUP_DEADLINE_SECS", "9223372036854775806", func(c *sidecarConfig) { c.Engine.StartupDeadline = 9223372036 * time.Second }},
	{"grpc-connect-attempt-timeout-secs", "DYN_SIDECAR_GRPC_CONNECT_ATTEMPT_TIMEOUT_SECS", "18446744073709551615", func(c *sidecarConfig) { c.Engine.AttemptTimeout = 9223372036 * time.Second }},
	{"grpc-retry-interval-secs", "DYN_SIDECAR_GRPC_RETRY_INTERVAL_SECS", "9223372037", func(c *sidecarConfig) { c.Engine.RetryInterval = 9223372036 * time.Second }},
	{"vllm-http-endpoint", "VLLM_HTTP_ENDPOINT", "http://h:8000/v1", nil},
	{"drain-deadline", "REMORA_DRAIN_DEADLINE", "0.5", func(c *sidecarConfig) { c.Handoff.DrainDeadline = 500 * time.Millisecond }},
	{"handoff-check", "REMORA_HANDOFF_CHECK", "shape", func(c *sidecarConfig) { c.Handoff.Check = translate.HandoffShape }},
	{"handoff-check", "REMORA_HANDOFF_CHECK", "off", func(c *sidecarConfig) { c.Handoff.Check = translate.HandoffOff }},
	{"cancel-policy", "REMORA_CANCEL_POLICY", "release", func(c *sidecarConfig) { c.Handoff.Policy = handoff.Release }},
	{"kv-lease", "REMORA_KV_LEASE", "12", func(c *sidecarConfig) { c.Handoff.Lease = 12 * time.Second }},
	{"release-declined", "REMORA_RELEASE_DECLINED", "false", func(c *sidecarConfig) { c.Handoff.ReleaseDeclined = false }},
	{"engine-transport", "REMORA_ENGINE_TRANSPORT", "h2", nil},
	{"engine-transport", "REMORA_ENGINE_TRANSPORT", "grpc", func(c *sidecarConfig) { c.Engine.Backend = vllm.BackendGRPC }},
	{"", "DYN_ROUTE_TO_ENCODER", "false", nil},
	{"", "DYN_ENABLE_RL", "false", nil},
	{"", "DYN_FILE_KV", "/kv", func(c *sidecarConfig) { c.Discovery.FileRoot = "/kv" }},
	{"", "TMPDIR", "/var/t", func(c *sidecarConfig) { c.Discovery.FileRoot = "/var/t/dynamo_store_kv" }},
	{"", "DYN_NAMESPACE_WORKER_SUFFIX", "v2", func(c *sidecarConfig) { c.Address.Namespace = "dynamo-v2" }},
	{"", "DYN_STABLE_ROUTING_ID", "pod-3", func(c *sidecarConfig) { c.Card.StableRoutingID = "pod-3" }},
	{"", "DYN_TCP_RPC_HOST", "10.0.0.1", func(c *sidecarConfig) { c.RequestPlane.Host = netip.MustParseAddr("10.0.0.1") }},
	{"", "DYN_TCP_RPC_HOST", "[::1]", func(c *sidecarConfig) { c.RequestPlane.Host = netip.MustParseAddr("::1") }},
	{"", "DYN_TCP_RPC_PORT", "9999", func(c *sidecarConfig) { c.RequestPlane.Port = 9999 }},
	{"", "DYN_REQUEST_PLANE_CODEC", "json", func(c *sidecarConfig) { c.RequestPlane.Codec = protocol.JSON }},
	{"", "DYN_TCP_MAX_MESSAGE_SIZE", "1024", func(c *sidecarConfig) { c.RequestPlane.MaxMessageSize = 1024 }},
	{"", "DYN_TCP_WORKER_POOL_SIZE", "5", func(c *sidecarConfig) { c.RequestPlane.WorkerPool = 5 }},
	{"", "DYN_TCP_WORK_QUEUE_SIZE", "6", func(c *sidecarConfig) { c.RequestPlane.WorkQueue = 6 }},
	{"", "DYN_ENGINE_REQUEST_LIMIT", "7", func(c *sidecarConfig) { c.RequestPlane.EngineLimit = 7 }},
	{"", "DYN_DYNAMO_REQUEST_QUEUE_LIMIT", "0", func(c *sidecarConfig) { c.RequestPlane.EngineQueue = 0 }},
	{"", "DYN_SYSTEM_PORT", "8081", func(c *sidecarConfig) {
		c.System.Enabled, c.System.Port, c.System.SelfHostMetadata, c.Notices = true, 8081, true, nil
	}},
	{"", "DYN_SYSTEM_PORT", "0", func(c *sidecarConfig) {
		c.System.Enabled, c.System.SelfHostMetadata, c.Notices = true, true, nil
	}},
	{"", "DYN_SYSTEM_PORT", " 8081 ", func(c *sidecarConfig) {
		c.System.Enabled, c.System.Port, c.System.SelfHostMetadata, c.Notices = true, 8081, true, nil
	}},
	{"", "DYN_SYSTEM_PORT", "-7", nil},
	{"", "DYN_SYSTEM_PORT", "", nil},
	{"", "DYN_SYSTEM_HOST", "127.0.0.1", func(c *sidecarConfig) { c.System.Host = "127.0.0.1" }},
	{"", "DYN_SYSTEM_HEALTH_PATH", "/h", func(c *sidecarConfig) { c.System.HealthPath = "/h" }},
	{"", "DYN_SYSTEM_LIVE_PATH", "/l", func(c *sidecarConfig) { c.System.LivePath = "/l" }},
	{"", "DYN_SYSTEM_STARTING_HEALTH_STATUS", "ready", func(c *sidecarConfig) { c.System.StartReady = true }},
	{"", "DYN_SELF_HOST_METADATA", "0", func(c *sidecarConfig) { c.Notices = nil }},
	{"", "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS", "-3", func(c *sidecarConfig) { c.Shutdown.Grace = 0 }},
	{"", "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT", "7", func(c *sidecarConfig) { c.Shutdown.Total = 7 * time.Second }},
	{"", "DYN_PREFILL_DRAIN_TIMEOUT_S", "1.5", func(c *sidecarConfig) { c.Shutdown.PrefillDrain = 1500 * time.Millisecond }},
	{"", "DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", "60", func(c *sidecarConfig) { c.Shutdown.Runtime = time.Minute }},
	{"", "DYN_HEALTH_CHECK_ENABLED", "true", withCanaryNotice},
	{"", "DYN_HEALTH_CHECK_PAYLOAD", "{}", withCanaryNotice},
	{"", "CUDA_VISIBLE_DEVICES", "", func(c *sidecarConfig) { c.Device = "cpu" }},
	{"", "CUDA_VISIBLE_DEVICES", "-1", func(c *sidecarConfig) { c.Device = "cpu" }},
	{"", "CUDA_VISIBLE_DEVICES", "none", func(c *sidecarConfig) { c.Device = "cpu" }},
	{"", "CUDA_VISIBLE_DEVICES", "0,1", nil},
	{"", "NVIDIA_VISIBLE_DEVICES", "void", func(c *sidecarConfig) { c.Device = "cpu" }},
	{"", "NVIDIA_VISIBLE_DEVICES", "", nil},
	{"", "NVIDIA_VISIBLE_DEVICES", "all", nil},
	{"", "DYN_LORA_ENABLED", "false", nil},
	{"", "DYN_TCP_TLS_INSECURE", "0", nil},
	{"", "ETCD_ENDPOINTS", "http://e:2379", nil}, // without --discovery-backend etcd
	{"", "ETCD_AUTH_USERNAME", "u", nil},
	{"", "NATS_SERVER", "nats://n:4222", nil}, // without --request-plane nats
	{"", "DYN_LOG", "off", func(c *sidecarConfig) { c.Log.Filter = parsedFilter("off") }},
	{"", "DYN_LOG", "info,remora::vllm=debug", func(c *sidecarConfig) { c.Log.Filter = parsedFilter("info,remora::vllm=debug") }},
	{"", "DYN_LOGGING_CONSOLE_FORMAT", "jsonl", func(c *sidecarConfig) { c.Log.Format = logging.JSONL }},
	{"", "DYN_LOGGING_CONSOLE_FORMAT", "readable", nil},
	{"", "DYN_LOGGING_JSONL", "1", func(c *sidecarConfig) { c.Log.Format = logging.JSONL }},
}

func withCanaryNotice(c *sidecarConfig) {
	c.Notices = append([]string{"DYN_HEALTH_CHECK_ENABLED and DYN_HEALTH_CHECK_PAYLOAD: no canary requests are sent; /health follows the engine's own health service"}, c.Notices...)
}

func parsedFilter(text string) logging.Filter {
	f, err := logging.ParseFilter(text)
	if err != nil {
		panic(err)
	}
	return f
}

func TestSidecarSettings(t *testing.T) {
	for _, c := range settingCases {
		want := baseConfig()
		if c.change != nil {
			c.change(&want)
		}
		check := func(how string, args []string, env environment) {
			t.Run(how+"="+c.value, func(t *testing.T) {
				got, err := parseSidecar(args, env.lookup)
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("got  %+v\nwant %+v", got, want)
				}
			})
		}
		if c.flag != "" {
			args := append([]string{"--" + c.flag + "=" + c.value}, without(baseArgs, c.flag)...)
			check("--"+c.flag, args, nil)
			if c.value != "" {
				check("separate --"+c.flag, append([]string{"--" + c.flag, c.value}, without(baseArgs, c.flag)...), nil)
			}
			// The flag beats its variable, whatever that says.
			check("over env --"+c.flag, args, environment{c.env: "-nonsense-"})
		}
		check(c.env, without(baseArgs, c.flag), environment{c.env: c.value})
	}
}

// TestPrefillHasNoEndpointTypes: its card does not say them, so a word that is none of ours does no harm.
func TestPrefillHasNoEndpointTypes(t *testing.T) {
	for _, types := range []string{"embedding", "", "chat"} {
		if _, err := parseSidecar(append([]string{"--disaggregation-mode=prefill", "--endpoint-types=" + types}, baseArgs...), environment{}.lookup); err != nil {
			t.Errorf("%q: %v", types, err)
		}
	}
}

// TestInterfaceAsHost: the Rust sidecar takes the name of an interface, too.
func TestInterfaceAsHost(t *testing.T) {
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 || i.Flags&net.FlagUp == 0 {
			continue
		}
		got, err := parseSidecar(baseArgs, environment{"DYN_TCP_RPC_HOST": i.Name}.lookup)
		if err != nil || !got.RequestPlane.Host.IsLoopback() {
			t.Errorf("%s: %v, %v", i.Name, got.RequestPlane.Host, err)
		}
	}
}

// without drops the argument of one flag.
func without(args []string, flag string) []string {
	var rest []string
	for _, a := range args {
		if !strings.HasPrefix(a, "--"+flag+"=") {
			rest = append(rest, a)
		}
	}
	return rest
}

func TestSidecarDefaults(t *testing.T) {
	got, err := parseSidecar(baseArgs, environment{}.lookup)
	if err != nil {
		t.Fatal(err)
	}
	if want := baseConfig(); !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
}

// TestSidecarTableIsCovered: every flag and variable of the table has a case above or is refused below.
func TestSidecarTableIsCovered(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range settingCases {
		seen[c.flag], seen[c.env] = true, true
	}
	for _, c := range serviceCases {
		seen[c.env] = true
	}
	for _, c := range refusedCases {
		for name := range c.env {
			seen[name] = true
		}
		for _, a := range c.args {
			name, _, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
			seen[name] = true
		}
	}
	for _, g := range sidecarHelp().Groups {
		for _, f := range g.Flags {
			if !seen[f.Name] || !seen[f.Env] {
				t.Errorf("no case for --%s or %s", f.Name, f.Env)
			}
		}
		for _, v := range g.Variables {
			if !seen[v.Name] {
				t.Errorf("no case for %s", v.Name)
			}
		}
	}
}

// TestSidecarMatchesRustTable holds names, variables and defaults of the drop-in part fast.
func TestSidecarMatchesRustTable(t *testing.T) {
	want := [][3]string{
		{"discovery-backend", "DYN_DISCOVERY_BACKEND", ""},
		{"request-plane", "DYN_REQUEST_PLANE", ""},
		{"response-plane", "DYN_RESPONSE_PLANE", ""},
		{"event-plane", "DYN_EVENT_PLANE", ""},
		{"namespace", "DYN_NAMESPACE", "dynamo"},
		{"component", "DYN_COMPONENT", "backend"},
		{"endpoint", "DYN_ENDPOINT", "generate"},
		{"endpoint-types", "DYN_ENDPOINT_TYPES", "chat,completions"},
		{"custom-jinja-template", "DYN_CUSTOM_JINJA_TEMPLATE", ""},
		{"dyn-tool-call-parser", "DYN_TOOL_CALL_PARSER", ""},
		{"dyn-reasoning-parser", "DYN_REASONING_PARSER", ""},
		{"exclude-tools-when-tool-choice-none", "DYN_EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE", "true"},
		{"disaggregation-mode", "DYN_DISAGGREGATION_MODE", "agg"},
		{"route-to-encoder", "DYN_ROUTE_TO_ENCODER", ""},
		{"enable-rl", "DYN_ENABLE_RL", ""},
		{"grpc-endpoint", "DYN_SIDECAR_GRPC_ENDPOINT", ""},
		{"grpc-connections", "DYN_SIDECAR_GRPC_CONNECTIONS", "8"},
		{"grpc-connect-attempt-timeout-secs", "DYN_SIDECAR_GRPC_CONNECT_ATTEMPT_TIMEOUT_SECS", "30"},
		{"grpc-retry-interval-secs", "DYN_SIDECAR_GRPC_RETRY_INTERVAL_SECS", "1"},
		{"grpc-startup-deadline-secs", "DYN_SIDECAR_GRPC_STARTUP_DEADLINE_SECS", "1800"},
		{"vllm-http-endpoint", "VLLM_HTTP_ENDPOINT", ""},
		{"vllm-rl-world-size", "DYN_VLLM_RL_WORLD_SIZE", ""},
	}
	var got [][3]string
	for _, f := range sidecarHelp().Groups[0].Flags {
		got = append(got, [3]string{f.Name, f.Env, f.Default})
		if f.Required != (f.Name == "grpc-endpoint") {
			t.Errorf("--%s: required is %v", f.Name, f.Required)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
}

// refusedCases start with baseArgs unless bare. Code 2 is what the Rust parser refuses too, code 1 what only a start refuses.
var refusedCases = []struct {
	args []string
	env  environment
	bare bool
	code int
	want string // part of the message
}{
	{args: []string{"--grpc-endpoint=a:1", "--discovery-backend=kubernetes"}, bare: true, code: 1, want: "--discovery-backend kubernetes is not supported yet: set --discovery-backend etcd, or file"},
	{args: []string{"--grpc-endpoint=a:1"}, env: environment{"DYN_DISCOVERY_BACKEND": ""}, bare: true, code: 2, want: "a value is required for '--discovery-backend <DISCOVERY_BACKEND>' (from DYN_DISCOVERY_BACKEND)"},
	{args: []string{"--discovery-backend=file"}, bare: true, code: 2, want: "the following required arguments were not provided:\n  --grpc-endpoint <GRPC_ENDPOINT>"},
	{args: []string{"--grpc-endpoint=https://a:1", "--discovery-backend=file"}, bare: true, code: 2, want: "TLS"},
	{args: []string{"--grpc-endpoint=", "--discovery-backend=file"}, bare: true, code: 2, want: "invalid value '' for '--grpc-endpoint <GRPC_ENDPOINT>'"},
	{args: []string{"--grpc-endpoint=ftp://a:1", "--discovery-backend=file"}, bare: true, code: 2, want: "scheme"},
	{args: []string{"--response-plane=quic"}, code: 1, want: "set --response-plane tcp"},
	{args: []string{"--event-plane=nats"}, code: 1, want: "set --event-plane zmq"},
	{env: environment{"DYN_ZMQ_BROKER_URL": "xsub=tcp://b:1,xpub=tcp://b:2"}, code: 1, want: "unset DYN_ZMQ_BROKER_URL"},
	{env: environment{"DYN_ZMQ_BROKER_ENABLED": "true"}, code: 1, want: "unset DYN_ZMQ_BROKER_URL and DYN_ZMQ_BROKER_ENABLED"},
	{args: []string{"--disaggregation-mode=encode"}, code: 1, want: "set agg, prefill or decode"},
	{args: []string{"--route-to-encoder"}, code: 1, want: "--route-to-encoder is not supported yet"},
	{env: environment{"DYN_ROUTE_TO_ENCODER": "true"}, code: 1, want: "--route-to-encoder is not supported yet"},
	{env: environment{"DYN_ROUTE_TO_ENCODER": "1"}, code: 2, want: "invalid value '1' for '--route-to-encoder' (from DYN_ROUTE_TO_ENCODER)"},
	{args: []string{"--enable-rl"}, code: 1, want: "--enable-rl is not supported yet"},
	{env: environment{"DYN_ENABLE_RL": "true"}, code: 1, want: "--enable-rl is not supported yet"},
	{env: environment{"DYN_ENABLE_RL": "yes"}, code: 2, want: "[possible values: true, false]"},
	{args: []string{"--enable-rl=true"}, code: 2, want: "unexpected value 'true'"},
	{args: []string{"--vllm-rl-world-size=2"}, code: 1, want: "--vllm-rl-world-size is not supported yet"},
	{env: environment{"DYN_VLLM_RL_WORLD_SIZE": "2"}, code: 1, want: "--vllm-rl-world-size is not supported yet"},
	{args: []string{"--vllm-rl-world-size=0"}, code: 2, want: "0 is below the minimum of 1"},
	{args: []string{"--vllm-rl-world-size=4294967296"}, code: 2, want: "too large"},
	{args: []string{"--vllm-http-endpoint=h:8000"}, code: 2, want: "--vllm-http-endpoint"},
	{args: []string{"--grpc-connections=0"}, code: 2, want: "minimum of 1"},
	{args: []string{"--grpc-connections=1025"}, code: 2, want: "at most 1024"},
	{args: []string{"--grpc-connect-attempt-timeout-secs=0"}, code: 2, want: "minimum of 1"},
	{args: []string{"--grpc-retry-interval-secs=0"}, code: 2, want: "minimum of 1"},
	{args: []string{"--grpc-startup-deadline-secs=0"}, code: 2, want: "minimum of 1"},
	{args: []string{"--grpc-startup-deadline-secs=9223372036854775807"}, code: 1, want: "beyond the range of the clock: set at most 9223372036854775806"},
	{args: []string{"--disaggregation-mode=both"}, code: 2, want: "[possible values: agg, prefill, decode, encode]"},
	{args: []string{"--exclude-tools-when-tool-choice-none=1"}, code: 2, want: "[possible values: true, false]"},
	{args: []string{"--endpoint-types=chat,embedding"}, code: 1, want: "set chat, completions or both"},
	{args: []string{"--endpoint-types=prefill"}, code: 1, want: "\"prefill\""},
	{args: []string{"--dyn-tool-call-parser=Hermes"}, code: 1, want: `--dyn-tool-call-parser "Hermes" is not supported: set one of deepseek-v4, `},
	{args: []string{"--custom-jinja-template="}, code: 2, want: "a value is required for '--custom-jinja-template <CUSTOM_JINJA_TEMPLATE>' but none was supplied"},
	{args: []string{"--endpoint-types=,"}, code: 1, want: "--endpoint-types is empty"},
	{args: []string{"--namespace="}, code: 1, want: "namespace"},
	{args: []string{"--namespace= a"}, code: 1, want: "the namespace \" a\" has ' '; no blank, slash or control character is allowed: see --namespace, --component, --endpoint and DYN_NAMESPACE_WORKER_SUFFIX"},
	{args: []string{"--component=a/b"}, code: 1, want: "component"},
	{args: []string{"--endpoint=a b"}, code: 1, want: "endpoint"},
	{args: []string{"--drain-deadline=0"}, code: 2, want: "at least"},
	{args: []string{"--drain-deadline=soon"}, code: 2, want: "not a number of seconds"},
	{args: []string{"--drain-deadline=NaN"}, code: 2, want: "not a number of seconds"},
	{args: []string{"--drain-deadline=1e300"}, code: 2, want: "too long"},
	{args: []string{"--cancel-policy=abort"}, code: 2, want: "[possible values: drain, release]"},
	{args: []string{"--kv-lease=0"}, code: 2, want: "at least"},
	{args: []string{"--handoff-check=none"}, code: 2, want: "[possible values: strict, shape, off]"},
	{env: environment{"DYN_TOPOLOGY_ENABLED": "1"}, code: 1, want: "unset DYN_TOPOLOGY_ENABLED or set it to false"},
	{env: environment{"DYN_LORA_ENABLED": "1"}, code: 1, want: "LoRA adapters are not supported yet"},
	{env: environment{"DYN_LORA_ENABLED": "perhaps"}, code: 1, want: "invalid value 'perhaps' for DYN_LORA_ENABLED"},
	{env: environment{"DYN_TCP_TLS_CERT_PATH": "/c"}, code: 1, want: "unset DYN_TCP_TLS_CERT_PATH"},
	{env: environment{"DYN_TCP_TLS_KEY_PATH": "/k"}, code: 1, want: "unset DYN_TCP_TLS_KEY_PATH"},
	{env: environment{"DYN_TCP_TLS_CA_CERT_PATH": "/k"}, code: 1, want: "unset DYN_TCP_TLS_CA_CERT_PATH"},
	{env: environment{"DYN_TCP_TLS_CLIENT_CERT_PATH": "/c"}, code: 1, want: "unset DYN_TCP_TLS_CLIENT_CERT_PATH"},
	{env: environment{"DYN_TCP_TLS_CLIENT_KEY_PATH": "/k"}, code: 1, want: "unset DYN_TCP_TLS_CLIENT_KEY_PATH"},
	{env: environment{"DYN_TCP_TLS_CLIENT_CA_CERT_PATH": "/k"}, code: 1, want: "unset DYN_TCP_TLS_CLIENT_CA_CERT_PATH"},
	{env: environment{"DYN_TCP_TLS_SERVER_NAME": "n"}, code: 1, want: "unset DYN_TCP_TLS_SERVER_NAME"},
	{env: environment{"DYN_TCP_TLS_INSECURE": "true"}, code: 1, want: "unset DYN_TCP_TLS_INSECURE"},
	{env: environment{"DYN_TCP_RPC_HOST": "localhost"}, code: 1, want: "DYN_TCP_RPC_HOST: neither an IP address nor a network interface that has one"},
	{env: environment{"DYN_TCP_RPC_PORT": "65536"}, code: 1, want: "DYN_TCP_RPC_PORT"},
	{env: environment{"DYN_REQUEST_PLANE_CODEC": "cbor"}, code: 1, want: "the possible values are msgpack, json"},
	{env: environment{"DYN_TCP_MAX_MESSAGE_SIZE": "0"}, code: 1, want: "DYN_TCP_MAX_MESSAGE_SIZE"},
	{env: environment{"DYN_ENGINE_REQUEST_LIMIT": "0"}, code: 1, want: "DYN_ENGINE_REQUEST_LIMIT"},
	{env: environment{"DYN_SYSTEM_PORT": "32768"}, code: 1, want: "invalid value '32768' for DYN_SYSTEM_PORT: not a whole number from -32768 to 32767"},
	{env: environment{"DYN_SYSTEM_PORT": "abc"}, code: 1, want: "DYN_SYSTEM_PORT"},
	{env: environment{"DYN_SYSTEM_STARTING_HEALTH_STATUS": "READY"}, code: 1, want: "the possible values are ready, notready"},
	{env: environment{"DYN_SYSTEM_HEALTH_PATH": "health"}, code: 1, want: "must begin with a slash"},
	{env: environment{"DYN_SYSTEM_LIVE_PATH": "/health"}, code: 1, want: "must differ"},
	{env: environment{"DYN_SYSTEM_LIVE_PATH": "/metrics"}, code: 1, want: "must differ"},
	{env: environment{"DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "x"}, code: 1, want: "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS"},
	{env: environment{"DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT": "-1"}, code: 1, want: "at least 0s"},
	{env: environment{"DYN_LOG": "remora=loud"}, code: 1, want: "\"loud\" is no level"},
	{env: environment{"DYN_LOGGING_CONSOLE_FORMAT": "xml"}, code: 1, want: "the possible values are readable, jsonl"},
}

func TestSidecarRefusals(t *testing.T) {
	for _, c := range refusedCases {
		args := c.args
		if !c.bare {
			args = append(append([]string{}, baseArgs...), c.args...)
		}
		name := strings.Join(c.args, " ")
		for n, v := range c.env {
			name += " " + n + "=" + v
		}
		t.Run(name, func(t *testing.T) {
			_, err := parseSidecar(args, c.env.lookup)
			if err == nil {
				t.Fatal("taken")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %q, want %q in it", err, c.want)
			}
			var usage *flags.UsageError
			if isUsage := errors.As(err, &usage); isUsage != (c.code == exitUsage) {
				t.Fatalf("usage error: %v", isUsage)
			}
			if c.code == exitFailed && strings.Contains(err.Error(), "\n") {
				t.Fatal("more than one line")
			}
		})
	}
}

func TestNamespaceSuffix(t *testing.T) {
	for _, c := range []struct{ namespace, suffix, want string }{
		{"dynamo", "", "dynamo"}, {"dynamo", "v1", "dynamo-v1"}, {"dynamo-v1", "v1", "dynamo-v1"}, {"dynamov1", "v1", "dynamov1-v1"},
	} {
		s := sidecarFlags{namespace: c.namespace, namespaceSuffix: c.suffix}
		if got := s.suffixedNamespace(); got != c.want {
			t.Errorf("%s + %s: got %s, want %s", c.namespace, c.suffix, got, c.want)
		}
	}
}

// FuzzSidecar: no command line and no environment makes the reading panic, and what is taken is whole.
func FuzzSidecar(f *testing.F) {
	f.Add(strings.Join(baseArgs, "\n"), "DYN_SYSTEM_PORT=0\nDYN_LOG=debug")
	f.Add("--drain-deadline=1e9\n--grpc-endpoint\na:1\n--discovery-backend\nmem", "DYN_TCP_RPC_HOST=[::1]")
	f.Add("--grpc-endpoint=[::1", "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS=-1e400")
	f.Fuzz(func(t *testing.T, argText, envText string) {
		env := environment{}
		for line := range strings.SplitSeq(envText, "\n") {
			if name, value, ok := strings.Cut(line, "="); ok {
				env[name] = value
			}
		}
		config, err := parseSidecar(strings.Split(argText, "\n"), env.lookup)
		if err != nil {
			return
		}
		switch {
		case config.Engine.Endpoint.Host == "", config.Engine.Connections < 1, config.Engine.AttemptTimeout < time.Second,
			config.Engine.RetryInterval < time.Second, config.Engine.StartupDeadline < time.Second, config.Handoff.DrainDeadline <= 0,
			config.Shutdown.Grace < 0, config.Shutdown.Total < 0, config.Role == protocol.Encode, config.Address.Validate() != nil:
			t.Fatalf("taken: %+v", config)
		}
	})
}
