// Package protocol owns the documents that travel between a Dynamo frontend and a worker: the request body, the response
// items, errors, and opaque values inside them, with their JSON and MessagePack forms. It is pure: no I/O, no goroutine, no
// clock; values it returns are the caller's. Cancellation does not concern it.
package protocol
