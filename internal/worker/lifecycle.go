package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/modelcard"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
	"remora/internal/handoff"
	"remora/internal/routing"
	"remora/internal/translate"
	"remora/internal/vllm"
)

// releaseSince is the minor version of vLLM 0 from which on an Abort lets go of a hand-off at once, and a request of one token
// fetches it without a trace in the cache (both measured on 0.32.0).
const releaseSince = 32

// cleanupTimeout bounds each step of the clean-up that talks to something outside.
const cleanupTimeout = 5 * time.Second

// Run serves until stop ends, then shuts down gracefully; when cut ends, at once. It returns nil after a graceful stop, also of
// a worker that had not finished its start; ErrCut after a forced one; and else an error with one clear sentence, when the
// worker could not start or could not go on.
func Run(stop, cut context.Context, cfg Config) error {
	w := &worker{cfg: cfg.withDefaults()}
	w.id, w.metrics, w.log = w.cfg.InstanceID, w.cfg.Metrics, w.cfg.Log
	if w.cfg.Store != nil {
		w.store = &hurriedStore{Store: w.cfg.Store, cut: cut}
	}
	if err := w.cfg.Address.Validate(); err != nil {
		return errors.Join(err, w.closeStore(), w.closeSystem())
	}
	stop, end := context.WithCancel(stop)
	defer end()
	defer context.AfterFunc(cut, end)() // who ends at once must not wait for the word to end gracefully
	return w.run(stop, cut)
}

// closeSystem closes the status server's listener where there is no server yet to do it.
func (w *worker) closeSystem() error {
	if w.cfg.System == nil {
		return nil
	}
	return w.cfg.System.Close()
}

// worker is one run of Run.
type worker struct {
	cfg       Config          // set once
	id        uint64          // instance id; set once
	metrics   *status.Metrics // set once
	log       *slog.Logger    // set once
	store     discovery.Store // set once; nil until it is open
	system    *status.Server  // nil: off; set once
	service   *service        // set by start
	published published       // of the start, then of the supervision
	feeds     *routing.Feeds  // of the start, then of the supervision, then of the end; nil: nothing is told
}

// run is start-up, service and clean-up. Whatever was made is unmade in the opposite order, however far the start came.
func (w *worker) run(stop, cut context.Context) (err error) {
	defer func() {
		if errors.Is(err, errStopped) {
			err = nil // as asked
		}
		err = errors.Join(err, w.closeStore())
	}()
	// The status server answers before the engine does, so that probes can tell "starting" from "dead".
	background, endBackground := context.WithCancel(context.Background())
	group, failed := errgroup.WithContext(background)
	defer func() {
		endBackground()
		err = errors.Join(err, group.Wait())
	}()
	if err = w.serveSystem(failed, group); err != nil {
		return err
	}

	if err = w.openStore(stop, cut); err != nil {
		return err
	}
	plane, err := w.openPlane(stop, group)
	if err != nil {
		return stoppedOr(stop, err)
	}
	defer plane.Close() // where the start ends before there are requests

	engine, found, err := w.connect(stop)
	if err != nil {
		return err
	}
	defer func() {
		ctx, end := context.WithTimeout(context.Background(), cleanupTimeout)
		defer end()
		began := time.Now()
		err = errors.Join(err, engine.Close(ctx))
		w.metrics.SetCleanupTime(time.Since(began))
	}()
	card, err := w.card(found)
	if err != nil {
		return err
	}

	running, endRunning := context.WithCancel(context.Background())
	w.service = w.newService(running, engine, found, card)
	defer func() { // before the engine is closed
		endRunning()
		plane.Close()
		w.service.background.Wait()
	}()
	transport, err := plane.Attach(w.cfg.Address, w.id, w.service)
	if err != nil {
		return fmt.Errorf("request plane: %w", err)
	}

	if err := w.openRouting(stop, plane, engine, found, card); err != nil {
		return stoppedOr(stop, err)
	}
	defer w.closeRouting()
	if err := w.register(stop, card, transport); err != nil {
		return err
	}
	w.ready(found.ModelID, card, transport)
	defer w.setReady(false)

	supervised, endSupervision := context.WithCancel(failed)
	defer endSupervision()
	var supervising sync.WaitGroup
	var lost error
	supervising.Go(func() {
		lost = w.supervise(supervised, engine, found)
		endSupervision()
	})
	select {
	case <-stop.Done():
	case <-failed.Done(): // the listener or the status server broke: group.Wait says why
	case <-supervised.Done(): // another engine has taken the place of ours
	}
	endSupervision()
	supervising.Wait() // it must not publish any more
	return errors.Join(lost, w.shutdown(cut))
}

// serveSystem starts the status server where there is one.
func (w *worker) serveSystem(ctx context.Context, group *errgroup.Group) error {
	if w.cfg.System == nil {
		if w.cfg.SelfHost {
			w.log.Warn("no system port: the model card names local paths, so frontends on other hosts can't read the model's files " +
				"(set DYN_SYSTEM_PORT)")
		}
		return nil
	}
	server, err := status.New(status.Config{
		HealthPath: w.cfg.HealthPath, LivePath: w.cfg.LivePath, Metrics: w.metrics.Handler(), Log: w.log,
	})
	if err != nil {
		return errors.Join(err, w.closeSystem())
	}
	w.system = server
	server.SetReady(w.cfg.StartReady)
	group.Go(func() error { return server.Serve(ctx, w.cfg.System) })
	return nil
}

// card builds the model card and has the status server serve the files that it names.
func (w *worker) card(found vllm.Discovery) (modelcard.Card, error) {
	dir, err := modelcard.Resolve(found.ModelID)
	if err != nil {
		return modelcard.Card{}, err
	}
	cfg := modelcard.Config{
		Dir: dir,
		Engine: modelcard.Engine{
			ModelID: found.ModelID, ServedName: found.ServedName, Aliases: found.Aliases, MaxModelLen: found.ContextLength,
			KVBlockSize: found.BlockSize, BlocksPerRank: found.BlocksPerRank,
			MaxRunningRequests: found.MaxRunning, MaxBatchedTokens: found.MaxBatched,
			DataParallelStartRank: found.Ranks.Start, DataParallelSize: found.Ranks.Count,
		},
		Role: w.cfg.Role, EndpointTypes: w.cfg.EndpointTypes, CustomTemplate: w.cfg.ChatTemplate,
		ToolCallParser: w.cfg.ToolCallParser, ReasoningParser: w.cfg.ReasoningParser,
		ExcludeToolsWhenToolChoiceNone: w.cfg.ExcludeToolsWhenChoiceNone, StableRoutingID: w.cfg.StableRoutingID,
	}
	if found.SupportsLoRA {
		cfg.Engine.MaxLoras = found.MaxLoRAs
	}
	if w.system != nil && w.cfg.SelfHost {
		base, urlErr := w.systemURL()
		if urlErr != nil {
			return modelcard.Card{}, urlErr
		}
		cfg.Hosting = &modelcard.Hosting{
			BaseURL: base, Namespace: w.cfg.Address.Namespace, Component: w.cfg.Address.Component, Endpoint: w.cfg.Address.Endpoint,
		}
	}
	card, err := modelcard.Build(cfg)
	if err != nil {
		return modelcard.Card{}, err
	}
	for _, warning := range card.Warnings {
		w.log.Warn(warning)
	}
	if w.system != nil {
		files := make([]status.File, 0, len(card.Files))
		for _, f := range card.Files {
			files = append(files, status.File(f))
		}
		w.system.SetFiles(files)
	}
	return card, nil
}

func (w *worker) newService(ctx context.Context, engine *vllm.Client, found vllm.Discovery, card modelcard.Card) *service {
	return &service{
		ctx: ctx, engine: engine, dialer: &requestplane.Dialer{DialContext: w.cfg.DialBack},
		translate: &translate.Engine{
			Role: w.cfg.Role, ServedName: found.ServedName, ModelID: found.ModelID, Aliases: found.Aliases,
			Multimodal: found.SupportsMultimodal, LoRA: found.SupportsLoRA, BlockSize: card.KVBlockSize,
			RankStart: found.Ranks.Start, RankCount: found.Ranks.Count, HandoffCheck: w.cfg.HandoffCheck,
		},
		machine: handoff.Config{
			Role: machineRole(w.cfg.Role), Policy: w.cfg.Policy,
			DrainDeadline: w.cfg.DrainDeadline, AbortPatience: abortTimeout, ShutdownRead: shutdownRead,
		},
		handoffs: newHandoffs(w.cfg.Lease, card.KVBlockSize, w.cfg.HandoffCheck),
		releases: w.cfg.ReleaseDeclined && found.Version.AtLeast(0, releaseSince),
		metrics:  w.metrics, log: w.log, gate: newGate(w.cfg.Running, w.cfg.Waiting, w.metrics), live: make(map[string]*request),
	}
}

func machineRole(role protocol.Role) handoff.Role {
	switch role {
	case protocol.Prefill:
		return handoff.Prefill
	case protocol.Decode:
		return handoff.Decode
	case protocol.Aggregated, protocol.Encode:
		return handoff.Aggregated
	}
	return handoff.Aggregated
}

func (w *worker) ready(modelID string, card modelcard.Card, transport discovery.Transport) {
	hostPort, _, _ := strings.Cut(transport.TCP, "/")
	address := cmp.Or(hostPort, transport.NATS)
	w.metrics.Bind(status.Identity{
		Namespace: w.cfg.Address.Namespace, Component: w.cfg.Address.Component, Endpoint: w.cfg.Address.Endpoint,
		WorkerID: w.id, ModelID: modelID, Model: card.DisplayName,
	})
	w.setReady(true)
	w.log.Info("worker registered", "model", card.DisplayName, "role", w.cfg.Role.String(), "instance", strconv.FormatUint(w.id, 16),
		"address", address)
	if w.cfg.OnReady != nil {
		w.cfg.OnReady(Ready{Model: card.DisplayName, InstanceID: w.id, Address: address})
	}
}

func (w *worker) setReady(ready bool) {
	if w.system != nil {
		w.system.SetReady(ready)
	}
}
