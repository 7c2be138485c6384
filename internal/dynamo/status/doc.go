// Package status owns the system status server, the small HTTP server that probes, Prometheus and frontends on other hosts
// talk to: /health, /live, /metrics and the model's files under /v1/metadata. It also owns the metrics of a
// worker and its requests; package routing adds those of its ranks' KV events.
//
// Goroutines: Server.Serve runs until its context ends and owns net/http's goroutines, one a connection. When the context
// ends it stops listening, lets answers under way finish for a short while, then cuts them, and returns when all of that is
// done. Metrics starts none; its methods may be called from any goroutine and never block.
package status
