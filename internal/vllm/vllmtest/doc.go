// Package vllmtest is a scriptable stand-in for a vLLM engine, for tests alone. Engine serves Inference, Control and
// grpc.health.v1 with grpc-go over in-memory connections (or loopback TCP with Loopback), so that it works inside
// testing/synctest bubbles: make the Engine and its clients inside the bubble, and end them there too (New registers the
// engine's end with t.Cleanup, which runs inside the bubble).
//
// Each GenerateStream runs a script, a list of Steps; every thing seen or done becomes an Event with its time, in order.
//
// The engine owns its server goroutines and those of the connections; Close, which t.Cleanup calls, ends them and waits.
package vllmtest
