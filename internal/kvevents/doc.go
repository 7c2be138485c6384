// Package kvevents reads the KV cache events of vLLM engines. It owns the decoding of their batches, in every form that
// engines of the last years have sent.
//
// It starts no goroutines. Decoding is pure, takes any bytes and allocates no more than a small multiple of their number.
package kvevents
