// Package kvpub publishes the KV events of simulated engines as vLLM does: for each data-parallel rank a PUB socket with
// batches in MessagePack, numbered from 0 on, and a ROUTER socket at which the last batches can be asked for again. It owns the
// configuration (vLLM's kv-events-config), the bytes, the numbers and the replay buffer; what an event is belongs to the engine
// core, and sockets to the caller's Network.
//
// # Goroutines
//
// A Publisher starts none. Publish runs on the engine's goroutine and never waits: a subscriber that is behind loses messages,
// as in ZeroMQ. Answers to replay requests run on the goroutine of the socket that took the request. Close closes both sockets;
// nothing is published after it.
//
// # Bounds
//
// The replay buffer holds Config.BufferSteps batches, the oldest ones go first. One batch is what one engine step did.
package kvpub
