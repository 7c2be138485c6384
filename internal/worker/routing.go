package worker

import (
	"context"
	"fmt"
	"slices"

	"remora/internal/dynamo/modelcard"
	"remora/internal/dynamo/protocol"
	"remora/internal/vllm"
)

// openRouting tells routers and frontends what helps them to choose: what the caches of the ranks hold, where the engine
// publishes that, and how full they are. end must be called in any case.
func (w *worker) openRouting(
	ctx context.Context, plane Plane, engine *vllm.Client, found vllm.Discovery, card modelcard.Card,
) (end func(), err error) {
	var open []func()
	end = func() {
		for _, one := range slices.Backward(open) {
			one()
		}
	}
	if w.cfg.Role == protocol.Encode {
		return end, nil // it has no cache of prompts
	}
	sources, err := w.sources(ctx, engine, found)
	if err != nil {
		return end, err
	}
	if len(sources) == 0 {
		w.log.Info("the engine publishes no KV events: routers can't tell what it has in its cache")
	}
	w.feeds, err = w.openFeeds(plane, sources)
	if err != nil {
		return end, err
	}
	open = append(open, w.feeds.close)
	w.metrics.ReportKVRanks(w.feeds.ranks)
	if err = w.feeds.publish(ctx); err != nil {
		return end, err
	}
	w.feeds.follow(found.InstanceID, sources)

	if card.KVBlockSize == 0 {
		return end, nil
	}
	load, err := w.openLoad(found, card)
	if err != nil {
		return end, err
	}
	open = append(open, load.close)
	return end, load.publish(ctx)
}

// followEngine reads the KV events of the engine that is back.
func (w *worker) followEngine(ctx context.Context, engine *vllm.Client, found vllm.Discovery) error {
	if w.cfg.Role == protocol.Encode {
		return nil
	}
	sources, err := w.sources(ctx, engine, found)
	if err != nil {
		return err
	}
	if !w.feeds.fits(sources) {
		return fmt.Errorf("%w: it publishes the KV events of other ranks: of %d now, and of %d before", errUnfit, len(sources), len(w.feeds.all))
	}
	w.feeds.follow(found.InstanceID, sources)
	return nil
}
