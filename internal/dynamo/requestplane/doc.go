// Package requestplane owns the TCP connections between a Dynamo frontend and a worker: request frames and their
// acknowledgements, and the response stream that the worker dials back. Both ends of both connections live here and are tested
// against each other: Server, Dialer and ResponseStream are the worker's, Client, ResponseServer and Incoming the frontend's.
// Requests that come over NATS are read here, too (NewRequest); package natsplane brings them.
//
// Goroutines. Server runs one goroutine a connection and one a request, Client one a pooled connection, ResponseServer one a
// connection until its handshake is read; the Close of each ends them and waits for them. A ResponseStream has one reader,
// which ends soon after Close, at the latest the dialer's Linger after EndFrames, or when the peer leaves; Wait waits for it.
//
// Cancellation. A response connection that says "kill", ends, breaks or misbehaves is reported exactly once, from the moment of
// dialling on, unless the worker has ended or closed the stream before. Closing a stream unblocks a write that hangs. Serving
// a request does not end with the connection that brought it.
package requestplane
