// Package vllm is the client of one vLLM engine: connection pool, health and supervision, discovery of model and server,
// generation streams pushed into a Sink, and Abort.
//
// Goroutines: those of grpc-go for each connection, and with BackendGRPC one for each open stream, which ends when the
// stream's OnEnd has returned; with BackendH2 those of package h2, where streams share them. Close drops the streams, waits
// for the end of all of them and closes the connections. Supervise has a second goroutine
// and waits for it. Nothing else runs on after a call has returned.
//
// Cancel: a context bounds the call that it is given to. A stream has no context; its caller ends it with Stream.Drop, and
// tells the engine with Abort where that is wanted. Whether a dropped request may be forgotten is not this room's business.
package vllm
