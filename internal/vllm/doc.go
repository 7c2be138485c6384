// Package vllm is the client of one vLLM engine: connection pool, health, discovery of model and server, generation streams
// pushed into a Sink, and Abort. It owns its connections and one goroutine an open stream, which ends when the stream's
// OnEnd has returned; Close waits for them. Cancelling a request is the caller's business: it calls Stream.Drop and Abort.
package vllm
