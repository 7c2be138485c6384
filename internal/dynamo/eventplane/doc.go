// Package eventplane tells Dynamo's routers what a worker's KV cache holds and how full it is. It owns the events of that
// conversation, the hashes by which a router finds a prompt in them, their encodings, and per data-parallel rank one publisher
// with what a router may ask it for later: the latest events, and everything that is stored now.
//
// Goroutines: none. Publishing and answering run on the caller's, each under the rank's own lock, which is never held while
// something is encoded for a query or waits for a peer.
//
// Under cancel: no call waits for anything outside, so there is nothing to cancel. After Close a publisher publishes nothing.
package eventplane
