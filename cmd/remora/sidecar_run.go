package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"remora/cmd/remora/internal/logging"
	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/modelcard"
	"remora/internal/dynamo/protocol"
	"remora/internal/translate"
	"remora/internal/vllm"
	"remora/internal/worker"
)

// runSidecar serves until stop ends, and at once ends when cut does.
func runSidecar(stop, cut context.Context, c sidecarConfig, logger *slog.Logger) error {
	log := logger.With(logging.TargetKey, "remora::worker")
	store, err := openStore(c.Discovery, logger.With(logging.TargetKey, "remora::discovery"))
	if err != nil {
		return err
	}
	config := worker.Config{
		Role: c.Role, Address: c.Address, EndpointTypes: c.Card.endpointTypes(), DeviceType: c.Device, Codec: c.RequestPlane.Codec,
		Engine: vllm.Config{
			Endpoint: c.Engine.Endpoint, Backend: c.Engine.Backend, Connections: c.Engine.Connections,
			AttemptTimeout: c.Engine.AttemptTimeout, RetryInterval: c.Engine.RetryInterval, Log: logger.With(logging.TargetKey, "remora::vllm"),
		},
		StartupDeadline: c.Engine.StartupDeadline,
		Store:           store,
		Port:            c.RequestPlane.Port, MaxMessage: c.RequestPlane.MaxMessageSize,
		StartReady: c.System.StartReady, HealthPath: c.System.HealthPath, LivePath: c.System.LivePath, SelfHost: c.System.SelfHostMetadata,
		ChatTemplate: c.Card.ChatTemplate, ToolCallParser: c.Card.ToolCallParser, ReasoningParser: c.Card.ReasoningParser,
		ExcludeToolsWhenChoiceNone: c.Card.ExcludeToolsWhenChoiceNone,
		HandoffCheck:               c.Handoff.check(), DrainDeadline: c.Handoff.DrainDeadline,
		Policy: c.Handoff.Policy, Lease: c.Handoff.Lease, ReleaseDeclined: c.Handoff.ReleaseDeclined,
		GracePeriod: c.Shutdown.Grace, ShutdownTimeout: c.shutdownTimeout(), Log: log,
	}
	if c.RequestPlane.Host.IsValid() {
		config.Host = c.RequestPlane.Host.String()
	}
	config.Running, config.Waiting = c.RequestPlane.limits()
	if c.System.Enabled {
		address := net.JoinHostPort(c.System.Host, strconv.Itoa(int(c.System.Port)))
		if config.System, err = new(net.ListenConfig).Listen(stop, "tcp", address); err != nil {
			err = fmt.Errorf("the system status server can't listen on %s (see DYN_SYSTEM_HOST and DYN_SYSTEM_PORT): %w", address, err)
			return errors.Join(err, store.Close(context.WithoutCancel(stop)))
		}
	}
	return worker.Run(stop, cut, config) //nolint:wrapcheck // it says all
}

func openStore(c discoveryConfig, log *slog.Logger) (discovery.Store, error) {
	if c.Backend == discoverMemory {
		return new(discovery.Memory).Open(), nil
	}
	store, err := discovery.OpenFile(c.FileRoot, log)
	if err != nil {
		return nil, fmt.Errorf("discovery folder (see DYN_FILE_KV): %w", err)
	}
	return store, nil
}

func (c *cardConfig) endpointTypes() (types modelcard.EndpointTypes) {
	if c.Chat {
		types |= modelcard.Chat
	}
	if c.Completions {
		types |= modelcard.Completions
	}
	return types
}

// limits gives the requests that run at once and those that may wait. An engine limit has a queue of its own.
func (c requestPlaneConfig) limits() (running, waiting int) {
	if c.EngineLimit > 0 {
		return min(c.EngineLimit, c.WorkerPool), c.EngineQueue
	}
	return c.WorkerPool, c.WorkQueue
}

func (c handoffConfig) check() translate.HandoffCheck {
	switch c.Check {
	case checkStrict:
		return translate.HandoffStrict
	case checkShape:
		return translate.HandoffShape
	case checkOff:
		return translate.HandoffOff
	}
	return translate.HandoffStrict
}

// shutdownTimeout is how long answers may run on after the grace. What a prefill worker waits for has a bound of its own.
func (c sidecarConfig) shutdownTimeout() time.Duration {
	limit := min(c.Shutdown.Total, c.Shutdown.Runtime)
	if c.Role == protocol.Prefill {
		limit = min(limit, c.Shutdown.PrefillDrain)
	}
	return limit
}
