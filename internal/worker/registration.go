package worker

import (
	"context"
	"errors"
	"fmt"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/modelcard"
)

// published is what the worker has in discovery.
type published struct {
	card     []byte // of the model record
	instance []byte // the whole record
}

func (w *worker) replaceCard(ctx context.Context, card []byte) error {
	if err := w.store.Delete(ctx, discovery.ModelCards, w.cfg.Address.Key(w.id)); err != nil {
		return fmt.Errorf("withdraw the model card: %w", err)
	}
	return w.publishCard(ctx, card)
}

func (w *worker) publishCard(ctx context.Context, card []byte) error {
	a := w.cfg.Address
	model, err := discovery.Model{
		Namespace: a.Namespace, Component: a.Component, Endpoint: a.Endpoint, InstanceID: w.id, Card: card,
	}.Encode()
	if err != nil {
		return fmt.Errorf("model record: %w", err)
	}
	if err := w.store.Create(ctx, discovery.ModelCards, a.Key(w.id), model); err != nil {
		return fmt.Errorf("publish the model card: %w", err)
	}
	w.published.card = card
	return nil
}

// publish puts the worker into routing.
func (w *worker) publish(ctx context.Context) error {
	err := w.store.Create(ctx, discovery.Instances, w.cfg.Address.Key(w.id), w.published.instance)
	if err != nil && !errors.Is(err, discovery.ErrExists) { // it is there still: the removal had failed
		return fmt.Errorf("publish the instance: %w", err)
	}
	return nil
}

// register publishes the model card, then the instance: a request can only come when everything is there.
func (w *worker) register(stop context.Context, card modelcard.Card, transport discovery.Transport) error {
	instance, err := w.instance(w.cfg.Address, transport).Encode()
	if err != nil {
		return fmt.Errorf("instance record: %w", err)
	}
	w.published.instance = instance
	if err := w.publishCard(stop, card.JSON()); err != nil {
		return stoppedOr(stop, err)
	}
	return stoppedOr(stop, w.publish(stop))
}

// instance is the record of one of the worker's endpoints.
func (w *worker) instance(a discovery.Address, transport discovery.Transport) discovery.Instance {
	return discovery.Instance{
		Namespace: a.Namespace, Component: a.Component, Endpoint: a.Endpoint, InstanceID: w.id,
		Transport:  transport,
		DeviceType: w.cfg.DeviceType, RequestPlaneCodec: w.cfg.Codec.String(),
	}
}

// unregister takes the instance out of routing. The card stays until the end, for the answers that still run. Whoever ends ctx
// does it again.
func (w *worker) unregister(ctx context.Context) {
	limited, end := context.WithTimeout(ctx, cleanupTimeout)
	defer end()
	if err := w.store.Delete(limited, discovery.Instances, w.cfg.Address.Key(w.id)); err != nil && ctx.Err() == nil {
		w.log.Error("the instance record can't be removed now; frontends may go on sending", "error", err)
	}
}

func (w *worker) openStore(stop, cut context.Context) error {
	if w.cfg.OpenStore == nil {
		return nil
	}
	store, err := w.cfg.OpenStore(stop)
	if err != nil {
		return stoppedOr(stop, err)
	}
	w.store = &hurriedStore{Store: store, cut: cut}
	return nil
}

func (w *worker) closeStore() error {
	if w.store == nil {
		return nil
	}
	ctx, end := context.WithTimeout(context.Background(), cleanupTimeout)
	defer end()
	if err := w.store.Close(ctx); err != nil {
		return fmt.Errorf("remove the worker's records: %w", err)
	}
	return nil
}
