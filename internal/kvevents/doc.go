// Package kvevents reads the KV cache events of vLLM engines. It owns the decoding of their batches, in every form that
// engines of the last years have sent, and per data parallel rank the subscription to the engine and the requests for a replay
// by which a stream that may lose messages becomes one that does not, or says so.
//
// Guarantees. A Consumer gets each batch once and in the order of its sequence number. A hole is told as a Gap before the next
// batch, with the number of batches that are missing; a new engine, or one that may be new, as a Reset; one event that is not
// understood costs nothing but itself. Held at most, while a replay is under way: 4096 messages and 32 MiB. A replay is given
// up after three attempts in a row that brought nothing, with at most five seconds of silence each.
//
// Goroutines. Reader.Run works on its caller's and has one more, which it waits for. Consumers are called from both, never at
// once. The Decoder is pure: it takes any bytes and allocates no more than a small multiple of their number.
//
// Cancel. The context of Run ends everything at once. Nothing is delivered after it has ended, but the call that is under way.
package kvevents
