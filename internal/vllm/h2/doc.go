// Package h2 runs GenerateStream calls over HTTP/2 in clear, on connections of its own: it speaks gRPC with the Framer and
// the header compression of x/net/http2, and knows what a general gRPC library cannot tell, that more messages of a stream
// have arrived already.
//
// A Pool keeps connections to one engine; each has a goroutine that reads and one that writes. The reader takes what the
// kernel has, sorts it into the inboxes of the streams, and when nothing more is buffered hands each stream's messages to
// its sink in one call, by itself: no goroutine and no channel stands between the socket and the sink. A sink that must wait
// says so beforehand (Stream.Yield): it keeps that goroutine for its stream, and another one goes on with the reading. What
// arrives for the waiting stream stays in its inbox, which the stream's window bounds.
//
// Goroutines: reader and writer of each connection, one that keeps each of the first connections connected, one for each
// attempt to add a connection, and one for each stream that is being told of something outside the reader (its end after a
// Drop, or messages behind a slow sink). Close ends all but those of sinks that have yielded, which end after their calls.
//
// Cancel: a stream is ended by Drop, which resets it and waits for nothing; its OnEnd always comes. A request that the peer
// is known not to have taken (REFUSED_STREAM, GOAWAY, not written yet) is sent once more by itself.
//
// Locks: Pool.mu may be held when conn.mu or Stream.mu is taken; of these two only one at a time. None is held during a sink
// call, a read or a write.
package h2
