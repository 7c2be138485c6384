package status

import (
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics counts what a worker does. The dynamo_ metrics have the names, labels and buckets of the Rust sidecar, so that its
// dashboards and planner rules go on working; the remora_ ones are our own and say what the Rust sidecar leaves in the dark.
//
// Everything can be counted from the start. What carries the worker's identity as labels becomes visible with Bind, when the
// identity is known.
type Metrics struct {
	counts // set once; each is safe for concurrent use

	registry *prometheus.Registry // set once

	mu    sync.Mutex
	bound []binding // guarded by mu; what the last Bind registered
}

type binding struct {
	registerer prometheus.Registerer
	collector  prometheus.Collector
}

// Identity is what the worker's metrics are labelled with.
type Identity struct {
	Namespace string
	Component string
	Endpoint  string
	WorkerID  uint64
	ModelID   string // the engine's name for the model, usually its folder: label model
	Model     string // the served name: label model_name
}

// NewMetrics makes a set of metrics with a registry of its own. Uptime counts from here.
func NewMetrics() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), counts: newCounts(time.Now())}
	m.SetDiscoveryUp(true)
	m.SetPlaneUp(true)
	m.registry.MustRegister(m.process()...)
	// go_ and process_, under the names that every Go program has.
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the metrics as Prometheus text.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// Register adds metrics that another room counts by itself. Once each.
func (m *Metrics) Register(c prometheus.Collector) { m.registry.MustRegister(c) }

// Bind labels the worker's metrics and makes them visible. A later Bind replaces the labels and keeps the counts.
func (m *Metrics) Bind(id Identity) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.bound {
		b.registerer.Unregister(b.collector)
	}
	m.bound = nil

	worker := prometheus.Labels{"worker_id": strconv.FormatUint(id.WorkerID, 16)}
	component := extend(worker, "dynamo_namespace", labelled(id.Namespace), "dynamo_component", labelled(id.Component))
	endpoint := extend(component, "dynamo_endpoint", labelled(id.Endpoint))
	model := extend(endpoint, "model", id.ModelID, "model_name", id.Model)
	for _, group := range []struct {
		labels     prometheus.Labels
		collectors []prometheus.Collector
	}{
		{worker, m.perWorker()},
		{component, m.perComponent()},
		{endpoint, m.perEndpoint()},
		{model, m.perModel()},
	} {
		registerer := prometheus.WrapRegistererWith(group.labels, m.registry)
		for _, collector := range group.collectors {
			registerer.MustRegister(collector)
			m.bound = append(m.bound, binding{registerer, collector})
		}
	}
}

// extend gives base with further label pairs.
func extend(base prometheus.Labels, pairs ...string) prometheus.Labels {
	labels := maps.Clone(base)
	for i := 0; i+1 < len(pairs); i += 2 {
		labels[pairs[i]] = pairs[i+1]
	}
	return labels
}
