// Package natsplane owns the NATS request plane: a worker's endpoints as those of a NATS micro service, on which frontends of
// the same NATS server call it. A message carries what a frame of the TCP plane does, its headers are NATS headers, and the
// reply is the acknowledgement, in the same words. Answers do not go through NATS: the worker dials back to the frontend over
// TCP in any case.
//
// Goroutines: a Plane has those of its NATS client and one for each request. Close takes the endpoints away, lets the
// messages that have arrived be acknowledged, ends the contexts of the requests, waits for them, and closes the connection.
//
// Under cancel and without the server: a request does not end with the connection that brought it. While the server is away
// nothing arrives and what runs goes on; the client comes back by itself, for ever, and takes up its subjects again.
package natsplane
