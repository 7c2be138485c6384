// Package sim is a stand-in for a vLLM engine: a gRPC server with vLLM's services (vllm.Inference, vllm.Control and
// grpc.health.v1) that a sidecar takes for the real one, an HTTP server with /health and /metrics, and a side channel over
// which engines hand KV to each other. It publishes its KV events over ZeroMQ. A server has one engine for each of its
// data-parallel ranks. What an engine does is in the sub-package core, how its events are written in kvpub; this package gives it
// time, requests and peers.
//
// # Goroutines
//
// Server.Run owns all of them and returns when the last one has ended: an engine loop for each rank, which alone touches its
// core and publishes its events; those of the event sockets; one accept loop for each listener; one goroutine for each
// connection of the side channel; one for each transfer or notification under way to another engine. gRPC and HTTP handlers
// run on their libraries' goroutines, which Run waits for too.
//
// # What it copies and what it spoils
//
// Rules names everything that a real engine was seen to do and says where that is written down; each rule has a test that
// cites it. Fault names what older or broken engines do; each can be turned on from the start (Config.Faults) or while the
// engine runs (Server.SetFault, or POST /sim/fault?name=read-stall&on=true on the HTTP port). No real engine has that page.
//
// # Cancel
//
// A stream whose client goes away is noticed at once, in every state, and its request is aborted between two steps. When Run's
// context ends, health turns NOT_SERVING for good, connections get a GOAWAY, open streams end with UNAVAILABLE without
// finish_info, and held hand-offs are forgotten, as with the real engine and its default of no drain time.
package sim
