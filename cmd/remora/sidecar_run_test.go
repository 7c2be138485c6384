package main

import (
	"log/slog"
	"reflect"
	"testing"
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/status"
	"remora/internal/worker"
)

// TestSettingsReachTheWorker: none is read, judged and then lost on the way.
func TestSettingsReachTheWorker(t *testing.T) {
	elsewhere := map[string]bool{ // what the worker is not told: where discovery is, the status server's listener, the log
		"DYN_DISCOVERY_BACKEND": true, "DYN_REQUEST_PLANE": true, "DYN_FILE_KV": true, "TMPDIR": true, "DYN_SYSTEM_HOST": true, "DYN_LOG": true,
		"DYN_LOGGING_CONSOLE_FORMAT": true, "DYN_LOGGING_JSONL": true, "DYN_HEALTH_CHECK_ENABLED": true, "DYN_HEALTH_CHECK_PAYLOAD": true,
		"DYN_SELF_HOST_METADATA": true, // without a port there is nothing to take back
	}
	needs := map[string]func(*sidecarConfig){ // without which the setting has no effect
		"DYN_PREFILL_DRAIN_TIMEOUT_S":                func(c *sidecarConfig) { c.Role = protocol.Prefill },
		"DYN_DYNAMO_REQUEST_QUEUE_LIMIT":             func(c *sidecarConfig) { c.RequestPlane.EngineLimit = 1 },
		"DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS": func(c *sidecarConfig) { c.Shutdown.Total = time.Hour },
	}
	metrics := status.NewMetrics()
	told := func(c sidecarConfig) worker.Config {
		w := c.worker(1, metrics, slog.New(slog.DiscardHandler))
		w.OpenStore, w.Log, w.Engine.Log = nil, nil, nil
		return w
	}
	for _, c := range settingCases {
		if c.change == nil || elsewhere[c.env] {
			continue
		}
		before, after := baseConfig(), baseConfig()
		if need := needs[c.env]; need != nil {
			need(&before)
			need(&after)
		}
		c.change(&after)
		if reflect.DeepEqual(told(before), told(after)) { //nolint:govet // an error value in there is nil on both sides
			t.Errorf("the worker is not told of %s=%s", c.env, c.value)
		}
	}
	config := baseConfig()
	if config.RequestPlane.NATS = baseNATS(); told(config).OpenPlane == nil {
		t.Error("the worker is not told of NATS")
	}
}
