package frontdoor

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/protocol"
)

// registry follows discovery and keeps a table of the models that can be served.
type registry struct {
	store discovery.Store
	log   *slog.Logger
	table atomic.Pointer[table] // replaced by run, never changed in place

	// The fields below belong to run's goroutine.
	instances map[string]Instance // by key
	models    map[string]model    // by key
	turns     map[string]*turn    // by model name, handed on from table to table
}

// model is one worker's card.
type model struct {
	namespace string
	card      card
}

// turn counts requests, for round robin.
type turn struct {
	front, prefill atomic.Uint64
}

// table is what discovery said at one moment. It is immutable, the counters in turn apart.
type table struct {
	served map[string]*served // every registered model by name, ready or not
}

// served is one model's workers, all of one namespace. front gets the client's request: decode workers where there are
// prefill workers, aggregated ones otherwise.
type served struct {
	name     string
	ready    bool
	routes   map[string]bool
	maxModel uint32 // smallest that a card says; 0 where none does
	front    []Instance
	prefill  []Instance
	turn     *turn
}

func newRegistry(store discovery.Store, log *slog.Logger) *registry {
	r := &registry{
		store: store, log: log,
		instances: make(map[string]Instance), models: make(map[string]model), turns: make(map[string]*turn),
	}
	r.table.Store(&table{})
	return r
}

// run follows discovery until ctx ends, which is no error, or the store ends the watch, which is one.
func (r *registry) run(ctx context.Context) error {
	instances, err := r.store.Watch(ctx, discovery.Instances)
	if err != nil {
		return fmt.Errorf("watch instances: %w", err)
	}
	cards, err := r.store.Watch(ctx, discovery.ModelCards)
	if err != nil {
		return fmt.Errorf("watch model cards: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-instances:
			if !ok {
				return watchEnd(ctx, discovery.Instances)
			}
			r.instance(event)
		case event, ok := <-cards:
			if !ok {
				return watchEnd(ctx, discovery.ModelCards)
			}
			r.model(event)
		}
		r.table.Store(r.build())
	}
}

func watchEnd(ctx context.Context, bucket discovery.Bucket) error {
	if ctx.Err() == nil {
		return fmt.Errorf("watch %s: %w", bucket, discovery.ErrClosed)
	}
	return nil
}

// instance takes one change of the instances bucket. A record that cannot be used is as good as none.
func (r *registry) instance(event discovery.Event) {
	delete(r.instances, event.Key)
	if event.Kind == discovery.Removed {
		return
	}
	record, err := discovery.DecodeInstance(event.Value)
	if err == nil && record.Transport.TCP == "" {
		err = fmt.Errorf("%w: no TCP address", discovery.ErrRecord)
	}
	if err != nil {
		r.log.Warn("an instance record cannot be used", "key", event.Key, "error", err)
		return
	}
	codec := protocol.JSON
	if record.RequestPlaneCodec == discovery.CodecMsgPack {
		codec = protocol.MsgPack
	}
	r.instances[event.Key] = Instance{ID: record.InstanceID, Address: record.Transport.TCP, Codec: codec}
}

// model takes one change of the model cards bucket. An adapter's card is not a model of its own here.
func (r *registry) model(event discovery.Event) {
	delete(r.models, event.Key)
	if event.Kind == discovery.Removed {
		return
	}
	record, err := discovery.DecodeModel(event.Value)
	if err == nil && record.Suffix != "" {
		return
	}
	var c card
	if err == nil {
		c, err = readCard(record.Card)
	}
	if err != nil {
		r.log.Warn("a model record cannot be used", "key", event.Key, "error", err)
		return
	}
	r.models[event.Key] = model{namespace: record.Namespace, card: c}
}

// build makes the table of this moment. Where several namespaces serve one name, the first complete one gets it.
func (r *registry) build() *table {
	type group struct{ name, namespace string }
	members := make(map[group][]string)
	for key, m := range r.models {
		g := group{m.card.name, m.namespace}
		members[g] = append(members[g], key)
	}
	groups := slices.SortedFunc(maps.Keys(members), func(a, b group) int { return strings.Compare(a.namespace, b.namespace) })
	t := &table{served: make(map[string]*served)}
	for _, g := range groups {
		s := t.served[g.name]
		if s == nil {
			if r.turns[g.name] == nil {
				r.turns[g.name] = new(turn)
			}
			s = &served{name: g.name, routes: make(map[string]bool), turn: r.turns[g.name]}
			t.served[g.name] = s
		}
		if !s.ready {
			keys := members[g]
			slices.Sort(keys)
			r.fill(s, keys)
		}
	}
	maps.DeleteFunc(r.turns, func(name string, _ *turn) bool { return t.served[name] == nil })
	return t
}

// fill gives s the workers of one namespace, if every registered role and every need has a live instance there: an instance
// record and a model record of one key.
func (r *registry) fill(s *served, keys []string) {
	live := make(map[protocol.Role][]Instance)
	for _, key := range keys {
		role := r.models[key].card.role
		instances := live[role] // the role is registered, with or without an instance
		if instance, ok := r.instances[key]; ok {
			instances = append(instances, instance)
		}
		live[role] = instances
	}
	// A prefill and a decode are nothing without each other, whatever their cards need.
	_, prefill := live[protocol.Prefill]
	_, decode := live[protocol.Decode]
	if prefill != decode {
		return
	}
	for _, instances := range live {
		if len(instances) == 0 {
			return
		}
	}
	for _, key := range keys {
		if !met(r.models[key].card.needs, live) {
			return
		}
	}
	front := protocol.Aggregated
	if decode {
		front = protocol.Decode
	}
	s.front, s.prefill = live[front], live[protocol.Prefill]
	s.ready = len(s.front) > 0
	for _, key := range keys {
		c := r.models[key].card
		if c.role != front {
			continue
		}
		for _, route := range c.routes {
			s.routes[route] = true
		}
		if c.maxModel != 0 && (s.maxModel == 0 || c.maxModel < s.maxModel) {
			s.maxModel = c.maxModel
		}
	}
}

// met reports whether one alternative has all its roles alive.
func met(needs [][]protocol.Role, live map[protocol.Role][]Instance) bool {
	return len(needs) == 0 || slices.ContainsFunc(needs, func(alternative []protocol.Role) bool {
		return !slices.ContainsFunc(alternative, func(role protocol.Role) bool { return len(live[role]) == 0 })
	})
}

// ready lists the names of the models that can be called, in order.
func (t *table) ready() []string {
	var names []string
	for name, s := range t.served {
		if s.ready {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// order gives the workers beginning with the one whose turn it is.
func order(workers []Instance, turns *atomic.Uint64) []Instance {
	if len(workers) == 0 {
		return nil
	}
	first := int((turns.Add(1) - 1) % uint64(len(workers)))
	return slices.Concat(workers[first:], workers[:first])
}
