package main

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"remora/cmd/remora/internal/flags"
	"remora/internal/dynamo/protocol"
)

// runtimeVariables are those that Dynamo's runtime reads and its sidecar's help does not list.
func (s *sidecarFlags) runtimeVariables() []flags.Variable {
	number := func(dst *int, least int) flags.Value { return flags.Number(dst, least, math.MaxInt32) }
	return []flags.Variable{
		{Name: "DYN_FILE_KV", Value: flags.Text(&s.fileRoot),
			Help: "Folder of the file discovery, shared with the frontend. Without it, dynamo_store_kv in the folder for temporary files."},
		{Name: "DYN_NAMESPACE_WORKER_SUFFIX", Value: flags.Text(&s.namespaceSuffix),
			Help: "Appended to the namespace behind a dash, unless it is there already."},
		{Name: "DYN_STABLE_ROUTING_ID", Value: flags.Text(&s.stableRoutingID), Help: "A name of the worker that outlives its process; published for routers."},
		{Name: "DYN_TCP_RPC_HOST", Value: address(&s.rpcHost),
			Help: "IP address to listen on for requests and to advertise, or a network interface that has it. Without it, the host's own address."},
		{Name: "DYN_TCP_RPC_PORT", Default: "0", Value: port(&s.rpcPort), Help: "Port to listen on for requests; 0 takes any."},
		{Name: "DYN_REQUEST_PLANE_CODEC", Default: "msgpack", Help: "The encoding of requests that the worker asks for.", Value: flags.OneOf(&s.codec,
			flags.Choice[protocol.Codec]{Word: "msgpack", Value: protocol.MsgPack}, flags.Choice[protocol.Codec]{Word: "json", Value: protocol.JSON})},
		{Name: "DYN_TCP_MAX_MESSAGE_SIZE", Default: "33554432", Value: number(&s.maxMessageSize, 1), Help: "The largest request frame that is taken, in bytes."},
		{Name: "DYN_TCP_WORKER_POOL_SIZE", Default: "10000", Value: number(&s.workerPool, 1), Help: "How many requests may run at once."},
		{Name: "DYN_TCP_WORK_QUEUE_SIZE", Default: "40000", Value: number(&s.queue, 1), Help: "How many requests may wait for one of those; more are refused as overload."},
		{Name: "DYN_ENGINE_REQUEST_LIMIT", Value: number(&s.engineLimit, 1), Help: "How many requests the engine is given at once. Without it, there is no limit."},
		{Name: "DYN_DYNAMO_REQUEST_QUEUE_LIMIT", Default: "16", Value: number(&s.engineQueue, 0), Help: "With DYN_ENGINE_REQUEST_LIMIT: how many requests may wait for the engine; more are refused as overload."},
		{Name: "DYN_SYSTEM_PORT", Default: "-1", Value: systemPort(&s.systemPort), Help: "Port of the status server with /health, /live and /metrics: 0 takes any, a negative number means no server; at most 32767."},
		{Name: "DYN_SYSTEM_HOST", Default: "0.0.0.0", Value: flags.Text(&s.systemHost), Help: "Host or address that the status server listens on."},
		{Name: "DYN_SYSTEM_HEALTH_PATH", Default: "/health", Value: path(&s.healthPath), Help: "Path of the health answer."},
		{Name: "DYN_SYSTEM_LIVE_PATH", Default: "/live", Value: path(&s.livePath), Help: "Path of the liveness answer."},
		{Name: "DYN_SYSTEM_STARTING_HEALTH_STATUS", Default: "notready", Help: "What the health answer is until the engine is ready.", Value: flags.OneOf(&s.startReady,
			flags.Choice[bool]{Word: "ready", Value: true}, flags.Choice[bool]{Word: "notready", Value: false})},
		{Name: "DYN_SELF_HOST_METADATA", Default: "true", Value: flags.Truthy(&s.selfHost), Help: "Whether the status server hands the model's files to frontends, which may be on other hosts."},
		{Name: "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS", Default: "5", Value: grace(&s.grace), Help: "How long requests are still admitted after a stop was asked for and the worker is unregistered, in seconds; a negative number means 0."},
		{Name: "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT", Default: "30", Value: seconds(&s.total, 0), Help: "How long requests in flight may go on after that, in seconds."},
		{Name: "DYN_PREFILL_DRAIN_TIMEOUT_S", Default: "30", Value: seconds(&s.prefillDrain, 0), Help: "How long a stopping prefill worker waits for its KV blocks to be fetched, in seconds; it stops earlier when they are."},
		{Name: "DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", Default: "900", Value: seconds(&s.runtime, 0), Help: "The upper bound of any wait for request handlers at the stop, in seconds."},
		{Name: "CUDA_VISIBLE_DEVICES", Value: noEffect(), Help: "Set to nothing, -1, none or void, the worker registers as one without a GPU; otherwise as one with."},
		{Name: "NVIDIA_VISIBLE_DEVICES", Value: noEffect(), Help: "Likewise, for none and void."},
		{Name: "DYN_HEALTH_CHECK_ENABLED", Default: "false", Value: flags.Truthy(&s.healthCheck), Help: "Taken, with a notice in the log: no canary requests are sent, because /health follows the engine's own health service."},
		{Name: "DYN_HEALTH_CHECK_PAYLOAD", Value: flags.Text(&s.healthPayload), Help: "Likewise."},
	}
}

// unsupportedVariables are those of parts that do not exist yet.
func (s *sidecarFlags) unsupportedVariables() []flags.Variable {
	return []flags.Variable{
		{Name: "DYN_ZMQ_BROKER_URL", Value: flags.Text(&s.zmqBroker), Help: "A broker for events; refused."},
		{Name: "DYN_ZMQ_BROKER_ENABLED", Default: "false", Value: flags.Truthy(&s.zmqBrokerOn), Help: "Likewise, when true."},
		{Name: "DYN_TOPOLOGY_ENABLED", Default: "false", Value: flags.Truthy(&s.topology), Help: "Pairs of prefill and decode by topology; refused when true."},
		{Name: "DYN_LORA_ENABLED", Default: "false", Value: flags.Truthy(&s.lora), Help: "LoRA adapters; refused when true."},
		{Name: "DYN_TCP_TLS_CERT_PATH", Value: flags.Text(&s.tls.cert), Help: "TLS on the request plane; refused."},
		{Name: "DYN_TCP_TLS_KEY_PATH", Value: flags.Text(&s.tls.key), Help: "Likewise."},
		{Name: "DYN_TCP_TLS_CA_CERT_PATH", Value: flags.Text(&s.tls.ca), Help: "Likewise."},
		{Name: "DYN_TCP_TLS_CLIENT_CERT_PATH", Value: flags.Text(&s.tls.clientCert), Help: "Likewise."},
		{Name: "DYN_TCP_TLS_CLIENT_KEY_PATH", Value: flags.Text(&s.tls.clientKey), Help: "Likewise."},
		{Name: "DYN_TCP_TLS_CLIENT_CA_CERT_PATH", Value: flags.Text(&s.tls.clientCA), Help: "Likewise."},
		{Name: "DYN_TCP_TLS_SERVER_NAME", Value: flags.Text(&s.tls.server), Help: "Likewise."},
		{Name: "DYN_TCP_TLS_INSECURE", Default: "false", Value: flags.Truthy(&s.tls.insecure), Help: "Likewise, when true."},
	}
}

// systemPort takes a number of 16 bits with a sign, as the Rust runtime does: ports above 32767 cannot be set. Negative
// numbers are stored as -1, and blanks around the number do no harm.
func systemPort(dst *int) flags.Value {
	return flags.Func(func(text string) error {
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 16)
		if err != nil {
			return errors.New("not a whole number from -32768 to 32767")
		}
		*dst = max(int(n), -1)
		return nil
	})
}

// noEffect takes any text: the variable is in the table for the help. What CUDA's variables say is read by deviceType, where
// set but empty is a value of its own.
func noEffect() flags.Value { return flags.Func(func(string) error { return nil }) }

// deviceType is what the instance record says the engine runs on, by the rule of the Rust runtime: it looks at variables
// only, so a machine without a GPU that says nothing is taken for one with.
func deviceType(lookup func(string) (string, bool)) string {
	cuda, set := lookup("CUDA_VISIBLE_DEVICES")
	nvidia, _ := lookup("NVIDIA_VISIBLE_DEVICES")
	cuda, nvidia = plainWord(cuda), plainWord(nvidia)
	hidden := cuda == "" || cuda == "-1" || cuda == "none" || cuda == "void"
	if set && hidden || nvidia == "none" || nvidia == "void" {
		return "cpu"
	}
	return "cuda"
}

func plainWord(text string) string { return strings.ToLower(strings.TrimSpace(text)) }
