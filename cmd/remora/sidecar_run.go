package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"remora/cmd/remora/internal/logging"
	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/discovery/etcd"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane/natsplane"
	"remora/internal/dynamo/status"
	"remora/internal/vllm"
	"remora/internal/worker"
)

// runSidecar serves until stop ends, and at once ends when cut does.
func runSidecar(stop, cut context.Context, c sidecarConfig, logger *slog.Logger) error {
	config := c.worker(discovery.NewID(), status.NewMetrics(), logger)
	defer tuneRuntime(config.Log)()
	if c.System.Enabled {
		var err error
		address := net.JoinHostPort(c.System.Host, strconv.Itoa(int(c.System.Port)))
		if config.System, err = new(net.ListenConfig).Listen(stop, "tcp", address); err != nil {
			return fmt.Errorf("the system status server can't listen on %s (see DYN_SYSTEM_HOST and DYN_SYSTEM_PORT): %w", address, err)
		}
	}
	return worker.Run(stop, cut, config) //nolint:wrapcheck // it says all
}

// worker puts the settings into the worker's terms; the listener of its status server is left to runSidecar.
func (c sidecarConfig) worker(id uint64, metrics *status.Metrics, logger *slog.Logger) worker.Config {
	config := worker.Config{
		InstanceID: id, Metrics: metrics,
		OpenStore: func(ctx context.Context) (discovery.Store, error) {
			return openStore(ctx, c.Discovery, id, metrics, logger.With(logging.TargetKey, "remora::discovery"))
		},
		Role: c.Role, Address: c.Address, EndpointTypes: c.Card.EndpointTypes, DeviceType: c.Device, Codec: c.RequestPlane.Codec,
		Engine: vllm.Config{
			Endpoint: c.Engine.Endpoint, Backend: c.Engine.Backend, Connections: c.Engine.Connections,
			AttemptTimeout: c.Engine.AttemptTimeout, RetryInterval: c.Engine.RetryInterval, Log: logger.With(logging.TargetKey, "remora::vllm"),
		},
		StartupDeadline: c.Engine.StartupDeadline,
		Port:            c.RequestPlane.Port, MaxMessage: c.RequestPlane.MaxMessageSize,
		StartReady: c.System.StartReady, HealthPath: c.System.HealthPath, LivePath: c.System.LivePath, SelfHost: c.System.SelfHostMetadata,
		ChatTemplate: c.Card.ChatTemplate, ToolCallParser: c.Card.ToolCallParser, ReasoningParser: c.Card.ReasoningParser,
		ExcludeToolsWhenChoiceNone: c.Card.ExcludeToolsWhenChoiceNone, StableRoutingID: c.Card.StableRoutingID,
		HandoffCheck: c.Handoff.Check, DrainDeadline: c.Handoff.DrainDeadline,
		Policy: c.Handoff.Policy, Lease: c.Handoff.Lease, ReleaseDeclined: c.Handoff.ReleaseDeclined,
		GracePeriod: c.Shutdown.Grace, ShutdownTimeout: c.shutdownTimeout(), Log: logger.With(logging.TargetKey, "remora::worker"),
	}
	if c.RequestPlane.Host.IsValid() {
		config.Host = c.RequestPlane.Host.String()
	}
	config.Running, config.Waiting = c.RequestPlane.limits()
	if c.RequestPlane.NATS != nil {
		config.OpenPlane = func(ctx context.Context) (worker.Plane, error) {
			return openNATS(ctx, *c.RequestPlane.NATS, metrics, logger.With(logging.TargetKey, "remora::requestplane"))
		}
	}
	return config
}

// openStore opens the discovery. id is the worker's, under which etcd has its lease.
func openStore(ctx context.Context, c discoveryConfig, id uint64, metrics *status.Metrics, log *slog.Logger) (discovery.Store, error) {
	switch c.Backend {
	case discoverMemory:
		return new(discovery.Memory).Open(), nil
	case discoverFile:
		store, err := discovery.OpenFile(c.FileRoot, log)
		if err != nil {
			return nil, fmt.Errorf("discovery folder (see DYN_FILE_KV): %w", err)
		}
		return store, nil
	case discoverEtcd:
	}
	config := c.Etcd
	config.LeaseID, config.Log, config.Meter = id, log, metrics
	store, err := etcd.Open(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("%w: set ETCD_ENDPOINTS and ETCD_AUTH_* to a running etcd, or --discovery-backend file with DYN_FILE_KV for one host", err)
	}
	return store, nil
}

func openNATS(ctx context.Context, config natsplane.Config, metrics *status.Metrics, log *slog.Logger) (worker.Plane, error) {
	config.Log, config.Meter = log, metrics
	plane, err := natsplane.Open(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("%w: set NATS_SERVER and NATS_AUTH_* to a running server, or --request-plane tcp, on the frontend too", err)
	}
	return plane, nil
}

// limits gives the requests that run at once and those that may wait. An engine limit has a queue of its own.
func (c requestPlaneConfig) limits() (running, waiting int) {
	if c.EngineLimit > 0 {
		return min(c.EngineLimit, c.WorkerPool), c.EngineQueue
	}
	return c.WorkerPool, c.WorkQueue
}

// shutdownTimeout is how long answers may run on after the grace. What a prefill worker waits for has a bound of its own.
func (c sidecarConfig) shutdownTimeout() time.Duration {
	limit := min(c.Shutdown.Total, c.Shutdown.Runtime)
	if c.Role == protocol.Prefill {
		limit = min(limit, c.Shutdown.PrefillDrain)
	}
	return limit
}
