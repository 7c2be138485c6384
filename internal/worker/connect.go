package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"remora/internal/handoff"
	"remora/internal/vllm"
)

// connect looks at the engine twice, each time within the start-up deadline of its own: first through one connection, to
// learn what it is; then through the pool that serves, to make sure that it still is.
func (w *worker) connect(stop context.Context) (*vllm.Client, vllm.Discovery, error) {
	w.log.Info("waiting for the engine", "endpoint", w.cfg.Engine.Endpoint.String(), "deadline", w.cfg.StartupDeadline)
	began := time.Now()
	one := w.cfg.Engine
	one.Connections = 1
	first, found, err := w.look(stop, one, vllm.ControlService)
	if err != nil {
		return nil, found, stoppedOr(stop, err)
	}
	ctx, end := context.WithTimeout(context.Background(), cleanupTimeout)
	err = first.Close(ctx)
	end()
	if err != nil {
		return nil, found, fmt.Errorf("close the first connection: %w", err)
	}
	client, again, err := w.look(stop, w.cfg.Engine, vllm.ControlService, vllm.InferenceService)
	if err != nil {
		return nil, found, stoppedOr(stop, err)
	}
	if err := found.SameIdentity(again); err != nil {
		ctx, end := context.WithTimeout(context.Background(), cleanupTimeout)
		defer end()
		return nil, found, errors.Join(fmt.Errorf("the engine changed during the start: %w", err), client.Close(ctx))
	}
	if err := w.fit(again); err != nil {
		ctx, end := context.WithTimeout(context.Background(), cleanupTimeout)
		defer end()
		return nil, found, errors.Join(err, client.Close(ctx))
	}
	for _, note := range again.Notes {
		w.log.Warn(note)
	}
	w.metrics.SetModelLoadTime(time.Since(began))
	w.metrics.SetEngineUp(true)
	w.log.Info("engine ready", "model", again.ModelID, "served_name", again.ServedName, "version", again.EngineVersion,
		"connections", w.cfg.Engine.Connections)
	return client, again, nil
}

// look connects, waits for the services and asks the engine what it is.
func (w *worker) look(stop context.Context, cfg vllm.Config, services ...string) (*vllm.Client, vllm.Discovery, error) {
	ctx, end := context.WithTimeout(stop, w.cfg.StartupDeadline)
	defer end()
	client, err := vllm.Dial(ctx, cfg)
	if vllm.KindOfError(err) == vllm.CannotConnect {
		err = fmt.Errorf("%w: start vLLM with --grpc-port, or set --grpc-endpoint to where it listens", err)
	}
	if err != nil {
		return nil, vllm.Discovery{}, err
	}
	found, err := func() (vllm.Discovery, error) {
		for _, service := range services {
			if waitErr := client.WaitServing(ctx, service); waitErr != nil {
				return vllm.Discovery{}, waitErr
			}
		}
		return client.Discover(ctx)
	}()
	if err != nil {
		ctx, end := context.WithTimeout(context.Background(), cleanupTimeout)
		defer end()
		return nil, found, errors.Join(err, client.Close(ctx))
	}
	return client, found, nil
}

// fit tells whether the engine can do what was configured.
func (w *worker) fit(found vllm.Discovery) error {
	if w.cfg.Policy == handoff.Release && !found.Version.AtLeast(0, releaseSince) {
		return fmt.Errorf("%w: the cancel policy release needs vLLM 0.%d or later and this is %q: set --cancel-policy drain",
			errUnfit, releaseSince, found.EngineVersion)
	}
	return nil
}
