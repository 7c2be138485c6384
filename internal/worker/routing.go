package worker

import (
	"context"
	"fmt"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/modelcard"
	"remora/internal/dynamo/protocol"
	"remora/internal/kvevents"
	"remora/internal/routing"
	"remora/internal/vllm"
	pb "remora/proto/vllm"
)

// openRouting tells routers and frontends what helps them to choose this worker. It leaves w.feeds nil for an encode worker, which
// has no cache of prompts.
func (w *worker) openRouting(ctx context.Context, plane Plane, engine *vllm.Client, found vllm.Discovery, card modelcard.Card) error {
	if w.cfg.Role == protocol.Encode {
		return nil
	}
	sources, err := w.sources(ctx, engine, found)
	if err != nil {
		return err
	}
	if len(sources) == 0 {
		w.log.Info("the engine publishes no KV events: routers can't tell what it has in its cache")
	}
	w.feeds, err = routing.Open(ctx, routing.Config{
		Instance: w.instance(w.cfg.Address, discovery.Transport{}), Store: w.store,
		Attach: plane.Attach, Listen: w.listenAnywhere, Dialer: w.service.dialer,
		Metrics: w.metrics, Log: w.log,
		BlockSize: card.KVBlockSize, FirstRank: found.Ranks.Start, Ranks: found.Ranks.Count, Capacity: found.BlocksPerRank,
		Requests: w.service.atEngine,
	}, found.InstanceID, sources)
	return err
}

// followEngine reads the KV events of the engine that is back.
func (w *worker) followEngine(ctx context.Context, engine *vllm.Client, found vllm.Discovery) error {
	if w.feeds == nil {
		return nil
	}
	sources, err := w.sources(ctx, engine, found)
	if err != nil {
		return err
	}
	if err = w.feeds.Follow(found.InstanceID, sources); err != nil {
		return fmt.Errorf("%w: %w", errUnfit, err)
	}
	return nil
}

func (w *worker) closeRouting() {
	if w.feeds != nil {
		w.feeds.Close()
	}
}

// sources asks the engine where it publishes its KV events: nowhere, or at one socket for each local rank.
func (w *worker) sources(ctx context.Context, engine *vllm.Client, found vllm.Discovery) ([]kvevents.Source, error) {
	ctx, end := context.WithTimeout(ctx, w.cfg.StartupDeadline)
	defer end()
	told, notes, err := engine.KVSources(ctx, found.Ranks)
	if vllm.KindOfError(err) == vllm.Unimplemented { // engines before 0.28 may not know the call
		w.log.Warn("the engine can't tell where it publishes KV events; routers will not know what it has in its cache", "error", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, note := range notes {
		w.log.Warn(note)
	}
	out := make([]kvevents.Source, 0, len(told))
	for _, s := range told {
		out = append(out, kvevents.Source(s))
	}
	return out, nil
}

// atEngine yields the requests that the engine has, for the count of the load.
func (s *service) atEngine(yield func(routing.Request) bool) {
	for _, r := range s.requests() {
		if at, ok := r.atEngine(); ok && !yield(at) {
			return
		}
	}
}

func (r *request) atEngine() (at routing.Request, ok bool) {
	select {
	case <-r.ended:
		return at, false
	default:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream == nil {
		return at, false
	}
	return routing.Request{Tokens: r.call.Response.Tokens(), Rank: r.call.Rank, Prompt: &r.prompt}, true
}

// promptOf outlives the request to the engine, which may be large.
func promptOf(r *pb.GenerateRequest) routing.Prompt {
	if len(r.GetMedia()) > 0 {
		return routing.Prompt{}
	}
	return routing.Prompt{Tokens: r.GetTokenIds().GetIds(), Adapter: r.GetLoraName(), Salt: r.GetKv().GetCacheSalt()}
}
