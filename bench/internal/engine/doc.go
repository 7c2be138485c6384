// Package engine is a scripted vLLM engine that costs next to nothing: vllm.Inference, vllm.Control and grpc.health.v1 over
// h2c, with answers that are laid out as bytes and sent without a gRPC library. It computes nothing. A request says by its own
// fields what it gets: max_new_tokens messages of one token each, one every sampling.seed microseconds, or as fast as the peer
// takes them where the seed is 0. The prompt is only counted, because prompt_info must say its length.
//
// Every token id is the time at which its message was laid out (see Stamp), so that whoever reads it on the same machine knows
// how long it has been on its way.
//
// Goroutines. Serve runs one for the timer wheel and two a connection: a reader, and a pump for streams without a pace. They
// end with their connection; Serve waits for none of them, because the program ends with it. Flow control is the peer's: a
// stream whose window is used up waits for credit, and what a paced stream owes by then is sent at once.
package engine
