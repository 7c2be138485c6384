package status

import (
	"time"
)

// ErrorType is the stage at which a request failed, as errors_total counts it.
type ErrorType uint8

// The stages, in the order of a request's way.
const (
	ErrorDeserialization ErrorType = iota
	ErrorInvalidMessage
	ErrorResponseStream
	ErrorGenerate
	ErrorSerialization
	ErrorPublishResponse
	ErrorPublishFinal
)

var errorTypes = [...]string{
	"deserialization", "invalid_message", "response_stream", "generate", "serialization", "publish_response", "publish_final",
}

// Terminal is how a request ended.
type Terminal uint8

// The ends of a request.
const (
	TerminalFinished Terminal = iota
	TerminalCancelled
	TerminalError
	TerminalRefused
)

var terminals = [...]string{"finished", "cancelled", "error", "refused"}

// DrainOutcome is how the drain of a cancelled hand-off ended.
type DrainOutcome uint8

// The ends of a drain. Only headers_never, never_submitted and cut may leave blocks behind on the prefill engine, for its lease.
const (
	DrainReleased       DrainOutcome = iota // a message said that the KV blocks were pulled
	DrainFinished                           // the request finished by itself
	DrainAborted                            // the engine confirmed an Abort, and with it let go of the blocks
	DrainEnded                              // the stream ended without a finish
	DrainDeadline                           // aborted at the deadline
	DrainHeadersNever                       // dropped at the deadline; the engine had not answered yet
	DrainNeverSubmitted                     // dropped at the deadline; the request was never sent
	DrainCut                                // cut short by a forced shutdown
)

var drainOutcomes = [...]string{"released", "finished", "aborted", "ended", "deadline", "headers_never", "never_submitted", "cut"}

// handoffRefusals are the reasons that HandoffRefused is given: what is wrong with the parameters in themselves, and what is
// wrong with them for this request.
var handoffRefusals = [...]string{
	"absent", "not_object", "integer", "value", "missing_key", "kind", "blank", "port", "blocks", "block_count",
	"stale", "reused", "tokens",
}

var releases = [...]string{"done", "failed"}

// RequestStarted counts a request that was taken on; RequestEnded must follow.
func (m *Metrics) RequestStarted(bodyBytes int) {
	m.requests.Inc()
	m.requestBytes.Add(float64(bodyBytes))
	m.inflight.Inc()
}

// RequestEnded counts the end of a started request, d after its arrival.
func (m *Metrics) RequestEnded(t Terminal, d time.Duration) {
	m.inflight.Dec()
	m.duration.Observe(d.Seconds())
	m.terminals.children[t].Inc()
}

// RequestFailed counts a request's failure besides its end.
func (m *Metrics) RequestFailed(t ErrorType) { m.errors.children[t].Inc() }

// RequestCancelled counts a cancel besides the request's end.
func (m *Metrics) RequestCancelled() { m.cancellations.Inc() }

// RequestRejected counts a request that was turned away because of load, so that it never started. full: there was a queue,
// and it was full.
func (m *Metrics) RequestRejected(full bool) {
	m.rejections.Inc()
	if full {
		m.enqueueRejected.Inc()
	}
}

// NetworkTransit records the way from the frontend. Negative times, which clocks that disagree give, count as zero.
func (m *Metrics) NetworkTransit(d time.Duration) { m.networkTransit.Observe(max(d, 0).Seconds()) }

// FirstResponse records the time from a request's arrival to its first item.
func (m *Metrics) FirstResponse(d time.Duration) { m.firstResponse.Observe(d.Seconds()) }

// ResponseBytes counts bytes of response items.
func (m *Metrics) ResponseBytes(n int) { m.responseBytes.Add(float64(n)) }

// EngineRequests changes the number of requests at the engine.
func (m *Metrics) EngineRequests(delta int) { m.engineRequests.Add(float64(delta)) }

// Queued changes the number of requests that wait for the engine.
func (m *Metrics) Queued(delta int) {
	m.queued.Add(float64(delta))
	m.queueDepth.Add(float64(delta))
}

// PermitWait records how long a request waited for its turn.
func (m *Metrics) PermitWait(d time.Duration) { m.permitWait.Observe(d.Seconds()) }

// PoolActive changes the number of requests being handled.
func (m *Metrics) PoolActive(delta int) { m.poolActive.Add(float64(delta)) }

// SetCapacity says how many requests may be handled at once, and how many may wait.
func (m *Metrics) SetCapacity(pool, queue int) {
	m.poolCapacity.Set(float64(pool))
	m.queueCapacity.Set(float64(queue))
}

// SetModelLoadTime records how long it took until the engine was ready.
func (m *Metrics) SetModelLoadTime(d time.Duration) { m.modelLoad.Set(d.Seconds()) }

// SetCleanupTime records how long the engine client's clean-up took.
func (m *Metrics) SetCleanupTime(d time.Duration) { m.cleanup.Set(d.Seconds()) }

// SetDrainTime records how long shutdown waited for requests.
func (m *Metrics) SetDrainTime(d time.Duration) { m.drain.Set(d.Seconds()) }

// DrainEnded counts the end of one request's drain, d after its cancel.
func (m *Metrics) DrainEnded(o DrainOutcome, d time.Duration) {
	m.drains.children[o].Inc()
	m.drainSeconds.Observe(d.Seconds())
}

// Draining changes the number of requests that drain.
func (m *Metrics) Draining(delta int) { m.draining.Add(float64(delta)) }

// AbortSent counts an Abort call.
func (m *Metrics) AbortSent() { m.aborts.Inc() }

// HandoffRefused counts a hand-off that a decode refused, by one of few words.
func (m *Metrics) HandoffRefused(reason string) { m.handoffsRefused.vec.WithLabelValues(reason).Inc() }

// StampUnchecked counts a hand-off whose age nobody can tell: the prefill worker wrote no stamp, or one that can't be right.
func (m *Metrics) StampUnchecked() { m.unstamped.Inc() }

// HandoffReleased counts the release of the hand-off of a request that was declined: done, or its blocks are left to the lease.
func (m *Metrics) HandoffReleased(done bool) {
	if done {
		m.releases.children[0].Inc()
		return
	}
	m.releases.children[1].Inc()
}

// Orphaned counts a finished prefill that no decode will use.
func (m *Metrics) Orphaned() { m.orphans.Inc() }

// EngineLoss is why a worker left routing.
type EngineLoss uint8

// What an engine does that is lost.
const (
	LossNotServing EngineLoss = iota // it says so: its core has failed, or it is being stopped
	LossGone                         // nobody answers at its port, or another process does
	LossSilent                       // it gives no answer
)

var engineLosses = [...]string{"not_serving", "gone", "silent"}

// EngineLost counts a change for the worse of the engine. A gauge that is read now and then misses what is short.
func (m *Metrics) EngineLost(why EngineLoss) { m.engineLosses.children[why].Inc() }

// SetEngineUp says whether the engine answers and serves.
func (m *Metrics) SetEngineUp(up bool) { m.engineUp.Set(one(up)) }

// SetDiscoveryUp says whether etcd answers and has the worker's records.
func (m *Metrics) SetDiscoveryUp(up bool) { m.discoveryUp.Set(one(up)) }

// DiscoveryLeaseLost counts a lease that etcd had forgotten.
func (m *Metrics) DiscoveryLeaseLost() { m.leasesLost.Inc() }

// SetPlaneUp says whether the worker is connected to the server of its request plane.
func (m *Metrics) SetPlaneUp(up bool) { m.planeUp.Set(one(up)) }

// PlaneReconnected counts a connection to that server that was lost and made again.
func (m *Metrics) PlaneReconnected() { m.planeReconnects.Inc() }

func one(up bool) float64 {
	if up {
		return 1
	}
	return 0
}

// KVEvents counts KV events of one kind ("stored", "removed", "cleared"): those that the engine sent, and those of them that
// concern routers. A kind shows with its first event.
func (m *Metrics) KVEvents(kind string, received int, accepted uint64) {
	m.kvEvents.WithLabelValues(kind, "received").Add(float64(received))
	m.kvEvents.WithLabelValues(kind, "accepted").Add(float64(accepted))
}

// KVEventsDropped counts KV events that never arrived.
func (m *Metrics) KVEventsDropped(n int) { m.kvEventsDropped.Add(float64(n)) }

// KVEventsUnusable counts events of the engine that routers can't use, by one of few words.
func (m *Metrics) KVEventsUnusable(reason string, n uint64) {
	m.kvUnusable.WithLabelValues(reason).Add(float64(n))
}
