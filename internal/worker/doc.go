// Package worker makes one vLLM engine a Dynamo worker. It owns the worker's life: start-up and its checks, registration, the
// path of every request between the request plane, the hand-off machine and the engine client, admission, and the shutdown. What
// routers are told of its cache and its load is package routing's.
//
// Goroutines. Run starts the status server, the request plane's listener, the supervision of the engine, those of package
// routing, and, per request, none of its own beyond the one that the request plane calls Serve on: engine messages are handled on
// a goroutine of the engine client, which other requests share, so whoever has to wait there yields it before
// (vllm.Stream.Yield); control words on the response stream's reader. A decode with a hand-off dials back on one more, which
// Serve waits for. An Abort, a drop that waits for it, and the release of a declined hand-off run in the background and are
// bounded. Run returns after all of them have ended; a timer of a request may still fire then, and does nothing.
//
// Under cancel. A client's cancel is an event of the hand-off machine and nothing else: package handoff says when the engine
// stream may go. Every wait that follows a cancel has a deadline. A request has one terminal, and its engine stream has ended
// when Serve returns. Run's first context ends the worker gracefully, its second at once; both ways every record that was
// written to discovery is removed.
package worker
