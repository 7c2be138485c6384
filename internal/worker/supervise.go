package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/handoff"
	"remora/internal/vllm"
)

// supervise keeps the worker's place in discovery in step with its engine until ctx ends: out of routing while the engine does
// not serve or is gone, back when it is the same engine again. It fails when another one has taken its place: that one needs
// another card, and so another worker.
func (w *worker) supervise(ctx context.Context, engine *vllm.Client, found vllm.Discovery) error {
	var news changes
	news.init()
	ctx, end := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer end()
	watching.Go(func() {
		// Its errors are mistakes of a caller, and a client that is closed under it; both end the service.
		if err := engine.Supervise(ctx, found.InstanceID, news.add); err != nil {
			w.log.Error("the engine is not supervised any more", "error", err)
		}
	})
	var removing sync.WaitGroup // of the instance record
	defer removing.Wait()
	for {
		change, ok := news.next(ctx)
		if !ok {
			return nil
		}
		removing.Wait()
		if change.State != vllm.EngineServing {
			w.engineAway(ctx, change, &removing)
			if change.Silent && !w.silentForGood(ctx, engine, &news) {
				continue
			}
			if change.State == vllm.EngineGone {
				w.service.lost(change.Reason)
			}
			continue
		}
		// The supervision says once that the engine serves: what fails after that is tried until it works or there is other news.
		for {
			err := w.engineBack(ctx, engine, found, change, &news)
			if err == nil || ctx.Err() != nil {
				break
			}
			if vllm.KindOfError(err) == vllm.Protocol || errors.Is(err, errUnfit) {
				return fmt.Errorf("the engine at %s is back as another one, so this worker must be started again: %w", engine.Endpoint(), err)
			}
			w.log.Warn("the engine is back, but the worker can't go back into routing yet", "error", err)
			if news.within(ctx, w.cfg.Engine.RetryInterval) {
				break
			}
		}
	}
}

// removalPatience is how long answers that have to end wait for the instance record to go, so that no frontend sends them here
// again. A discovery that does not answer must not keep them.
const removalPatience = time.Second

// engineAway takes the worker out of routing, as removing goes on to do when it takes its time. Requests that still come are
// refused, for routers lag.
func (w *worker) engineAway(ctx context.Context, change vllm.Change, removing *sync.WaitGroup) {
	w.log.Error("engine away; out of routing", "state", change.State.String(), "reason", change.Reason)
	w.setReady(false)
	w.metrics.SetEngineUp(false)
	w.metrics.EngineLost(engineLoss(change))
	w.service.gate.pause("engine " + change.State.String())
	removed := make(chan struct{})
	removing.Go(func() {
		defer close(removed)
		w.unregister(ctx)
	})
	patience := time.NewTimer(removalPatience)
	defer patience.Stop()
	select {
	case <-removed:
	case <-patience.C:
	}
}

// silencePatience is how much longer the answers of a silent engine may wait for it, a check of that length more included.
const silencePatience = 2 * time.Second

// silentForGood tells whether an engine that gives no answer has had its time to give one; until there is other news of it. To
// be out of routing for a moment costs little and can be undone. To end all answers can't, and has others do the work again: not
// for an engine that was only too busy.
func (w *worker) silentForGood(ctx context.Context, engine *vllm.Client, news *changes) bool {
	for !news.within(ctx, silencePatience) {
		ask, end := context.WithTimeout(ctx, silencePatience)
		_, err := engine.Check(ask, vllm.InferenceService)
		end()
		if err != nil {
			return ctx.Err() == nil
		}
	}
	return false
}

// engineBack looks at the engine as the start did, and goes back into routing. Its capacity may be another one now, which is
// part of the card; a card can't be changed, only replaced.
//
// An engine that has been lost once more while it was looked at stays out of routing: the news of that come next.
func (w *worker) engineBack(ctx context.Context, engine *vllm.Client, before vllm.Discovery, change vllm.Change, news *changes) error {
	look, end := context.WithTimeout(ctx, w.cfg.StartupDeadline)
	defer end()
	found, err := engine.Rediscover(look, before)
	if err != nil {
		return err //nolint:wrapcheck // it says all
	}
	if err = w.fit(found); err != nil {
		return err
	}
	card, err := w.card(found)
	if err != nil {
		return err
	}
	if !bytes.Equal(card.JSON(), w.published.card) {
		if err = w.replaceCard(ctx, card.JSON()); err != nil {
			return err
		}
	}
	if err = w.followEngine(look, engine, found); err != nil {
		return err
	}
	if news.waiting() {
		return nil
	}
	if err = w.publish(ctx); err != nil {
		return err
	}
	w.service.gate.resume()
	w.metrics.SetEngineUp(true)
	w.setReady(true)
	w.log.Info("engine back; in routing again", "engine_instance", change.Instance, "reason", change.Reason)
	return nil
}

// lost tells every live request that nothing can be expected of the engine, so that its client can go elsewhere. One that says
// NOT_SERVING may still finish its answers, or ends them itself.
func (s *service) lost(reason string) {
	why := &protocol.Error{
		Kind: protocol.ErrorBackendEngineShutdown, Message: "engine gone: " + reason, Public: "The engine has failed",
	}
	for _, r := range s.requests() {
		r.step(handoff.Event{Kind: handoff.EventLost}, occasion{err: why}) // what that brings is flushed by Serve
	}
}

// changes hands transitions from the supervision, which must not be kept, to whoever acts on them. None is lost: "gone" and
// "serving" in quick succession are a restart. The supervision spaces them, so they can't pile up.
type changes struct {
	mu    sync.Mutex
	queue []vllm.Change // guarded by mu
	wake  chan struct{} // room for one
}

func (c *changes) init() { c.wake = make(chan struct{}, 1) }

func (c *changes) add(change vllm.Change) {
	c.mu.Lock()
	c.queue = append(c.queue, change)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// next waits for a change; false when ctx has ended.
func (c *changes) next(ctx context.Context) (vllm.Change, bool) {
	for {
		c.mu.Lock()
		if len(c.queue) > 0 {
			first := c.queue[0]
			c.queue = c.queue[1:]
			c.mu.Unlock()
			return first, ctx.Err() == nil
		}
		c.mu.Unlock()
		select {
		case <-c.wake:
		case <-ctx.Done():
			return vllm.Change{}, false
		}
	}
}

// waiting tells whether there is news.
func (c *changes) waiting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue) > 0
}

// within waits for news, at most that long.
func (c *changes) within(ctx context.Context, limit time.Duration) bool {
	patience := time.NewTimer(max(limit, time.Second))
	defer patience.Stop()
	select {
	case <-c.wake:
		c.wake <- struct{}{} // next will take it
		return true
	case <-ctx.Done():
		return true
	case <-patience.C:
		return false
	}
}
