package status

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are the metrics themselves, resolved to single time series so that counting is one atomic operation.
type counts struct {
	// Per worker: process-wide, but labelled with the worker's id.
	uptime prometheus.GaugeFunc

	// Per component.
	kvEvents        *prometheus.CounterVec // event_type, stage
	kvEventsDropped prometheus.Counter
	kvUnusable      *prometheus.CounterVec // reason

	// Per endpoint.
	requests      prometheus.Counter
	requestBytes  prometheus.Counter
	responseBytes prometheus.Counter
	cancellations prometheus.Counter
	errors        family
	inflight      prometheus.Gauge
	duration      prometheus.Histogram

	// Per model.
	modelLoad prometheus.Gauge
	cleanup   prometheus.Gauge
	drain     prometheus.Gauge

	// Unlabelled.
	networkTransit  prometheus.Histogram
	firstResponse   prometheus.Histogram
	permitWait      prometheus.Histogram
	engineRequests  prometheus.Gauge
	queued          prometheus.Gauge
	rejections      prometheus.Counter
	enqueueRejected prometheus.Counter
	queueDepth      prometheus.Gauge
	queueCapacity   prometheus.Gauge
	poolActive      prometheus.Gauge
	poolCapacity    prometheus.Gauge

	// Our own, unlabelled but for what they tell apart.
	terminals       family
	drains          family
	drainSeconds    prometheus.Histogram
	draining        prometheus.Gauge
	aborts          prometheus.Counter
	handoffsRefused family
	unstamped       prometheus.Counter
	releases        family
	orphans         prometheus.Counter
	engineUp        prometheus.Gauge
	engineLosses    family
	discoveryUp     prometheus.Gauge
	leasesLost      prometheus.Counter
	planeUp         prometheus.Gauge
	planeReconnects prometheus.Counter
}

// family is a counter with one label whose values are known; its zeros are visible from the start.
type family struct {
	vec      *prometheus.CounterVec
	children []prometheus.Counter // by the enum that values were listed in
}

func newFamily(name, help, label string, values []string) family {
	f := family{vec: prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})}
	for _, value := range values {
		f.children = append(f.children, f.vec.WithLabelValues(value))
	}
	return f
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func histogram(name, help string, buckets ...float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}

const (
	component = "dynamo_component_"
	handler   = "dynamo_work_handler_"
	own       = "remora_"
)

func newCounts(start time.Time) counts {
	return counts{
		uptime: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: component + "uptime_seconds", Help: "Seconds since this worker process started.",
		}, func() float64 { return time.Since(start).Seconds() }),

		kvEvents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: component + "kv_publisher_zmq_events_total", Help: "KV events from the engine, by kind and by how far they got.",
		}, []string{"event_type", "stage"}),
		kvUnusable: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remora_kv_engine_events_unusable_total", Help: "KV events of the engine that say nothing routers can use, by why.",
		}, []string{"reason"}),
		kvEventsDropped: counter(component+"kv_publisher_engines_dropped_events_total", "KV events that the engine sent and that never arrived."),

		requests:      counter(component+"requests_total", "Requests that were taken on."),
		requestBytes:  counter(component+"request_bytes_total", "Bytes of request bodies."),
		responseBytes: counter(component+"response_bytes_total", "Bytes of response items."),
		cancellations: counter(component+"cancellation_total", "Requests whose client went away or was told to stop."),
		errors:        newFamily(component+"errors_total", "Requests that failed, by the stage that failed.", "error_type", errorTypes[:]),
		inflight:      gauge(component+"inflight_requests", "Requests being worked on."),
		duration: histogram(component+"request_duration_seconds", "Time from a request's arrival to its end.",
			.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600),

		modelLoad: gauge(component+"model_load_time_seconds", "Time from the start to the engine being ready."),
		cleanup:   gauge(component+"cleanup_time_seconds", "Time that the engine client's clean-up took at shutdown."),
		drain:     gauge(component+"drain_time_seconds", "Time that requests in flight were waited for at shutdown."),

		networkTransit: histogram(handler+"network_transit_seconds", "Time from the frontend's sending to our receiving, by both clocks.",
			.0001, .0005, .001, .005, .01, .05, .1, .5, 1),
		firstResponse: histogram(handler+"time_to_first_response_seconds", "Time from a request's arrival to its first item.",
			.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60),
		permitWait: histogram(handler+"permit_wait_seconds", "Time that requests waited for their turn.",
			.0001, .001, .01, .05, .1, .5, 1, 5, 10, 30, 60),
		engineRequests:  gauge("dynamo_engine_request", "Requests at the engine."),
		queued:          gauge("dynamo_request_queue", "Requests waiting for the engine."),
		rejections:      counter("dynamo_rejection_request_total", "Requests refused because the worker was at capacity."),
		enqueueRejected: counter(handler+"enqueue_rejected_total", "Requests that found the queue full."),
		queueDepth:      gauge(handler+"queue_depth", "Requests in the queue of the request plane."),
		queueCapacity:   gauge(handler+"queue_capacity", "Room in the queue of the request plane."),
		poolActive:      gauge(handler+"pool_active_tasks", "Requests being handled."),
		poolCapacity:    gauge(handler+"pool_capacity", "Requests that may be handled at once."),

		terminals: newFamily(own+"requests_terminal_total", "Requests by how they ended.", "terminal", terminals[:]),
		drains:    newFamily(own+"drains_total", "Cancelled hand-offs by how they let go of the prefill's KV blocks.", "outcome", drainOutcomes[:]),
		drainSeconds: histogram(own+"drain_seconds", "Time from a request's cancel to the end of its drain.",
			.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300),
		draining:        gauge(own+"draining_requests", "Requests whose client has left or whose end is decided, and whose engine stream is still read."),
		aborts:          counter(own+"aborts_sent_total", "Abort calls sent to the engine."),
		handoffsRefused: newFamily(own+"handoffs_refused_total", "Hand-offs that a decode refused, by what was wrong with them.", "reason", handoffRefusals[:]),
		unstamped:       counter(own+"handoffs_unstamped_total", "Hand-offs whose age could not be checked, for want of a stamp or of the frontend's time."),
		releases:        newFamily(own+"handoff_releases_total", "Hand-offs of declined requests, fetched once to free their KV blocks.", "result", releases[:]),
		orphans:         counter(own+"orphans_total", "Finished prefills that no decode will use; their KV blocks wait for the lease."),
		engineUp:        gauge(own+"engine_up", "1 while the engine answers and says that it serves."),
		engineLosses:    newFamily(own+"engine_losses_total", "Times that the worker lost its engine and left routing, by how.", "state", engineLosses[:]),
		discoveryUp:     gauge(own+"discovery_up", "1 while etcd answers and has the worker's records; 1 with the other backends."),
		leasesLost:      counter(own+"discovery_lease_losses_total", "Times that etcd had forgotten the worker's lease, so that it had to register again."),
		planeUp:         gauge(own+"request_plane_up", "1 while the worker is connected to the NATS server; 1 with the TCP request plane."),
		planeReconnects: counter(own+"request_plane_reconnects_total", "Times that the connection to the NATS server was lost and made again."),
	}
}

func (c *counts) process() []prometheus.Collector {
	return []prometheus.Collector{
		c.networkTransit, c.firstResponse, c.permitWait, c.engineRequests, c.queued, c.rejections, c.enqueueRejected,
		c.queueDepth, c.queueCapacity, c.poolActive, c.poolCapacity,
		c.terminals.vec, c.drains.vec, c.drainSeconds, c.draining, c.aborts, c.handoffsRefused.vec, c.unstamped, c.releases.vec, c.orphans,
		c.engineUp, c.engineLosses.vec,
		c.kvUnusable, c.discoveryUp, c.leasesLost, c.planeUp, c.planeReconnects,
	}
}

func (c *counts) perWorker() []prometheus.Collector { return []prometheus.Collector{c.uptime} }

func (c *counts) perComponent() []prometheus.Collector {
	return []prometheus.Collector{c.kvEvents, c.kvEventsDropped}
}

func (c *counts) perEndpoint() []prometheus.Collector {
	return []prometheus.Collector{
		c.requests, c.requestBytes, c.responseBytes, c.cancellations, c.errors.vec, c.inflight, c.duration,
	}
}

func (c *counts) perModel() []prometheus.Collector {
	return []prometheus.Collector{c.modelLoad, c.cleanup, c.drain}
}
