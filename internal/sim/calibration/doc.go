// Package calibration holds one scenario of what a pair of engines does when hand-offs are cancelled, aborted, lost, late,
// repeated or wrong, and drives any pair through it: the simulator, in the tests of package sim, and real vLLM engines, in
// the interop tests. Both are held to the same lines of scenario.txt by the same code, so they cannot drift apart unnoticed.
//
// It speaks vLLM's gRPC services and reads /metrics, and knows nothing of either engine. Each row begins and ends with both
// engines at their base, so a row that leaks fails and does not spoil the next one.
//
// Events is the same for KV events: steps that one engine is taken through, and the messages that a real one was seen to publish.
//
// Row.Run starts one goroutine for each stream that the row opens, and returns when all of them have ended, whether the row
// held or not.
package calibration
