// Package translate turns a Dynamo request into a vLLM request and vLLM's answers into Dynamo output items.
//
// It owns the rules of both conversions: which fields are carried, with which defaults, which requests are refused and in
// which words, what a hand-off must look like before an engine may see it, and what an engine may answer. It is pure: no I/O,
// no clock, no goroutine, no state but the small Response of one request, so cancellation does not concern it. Nothing here
// panics or recurses without bound, whatever the frontend or the engine sends. What is not checked again: that texts are UTF-8,
// which the readers of the protocol room and of protobuf see to.
//
// The conversion follows the newest request rules of the Rust sidecar that a stock 1.6 frontend is used to. It differs on
// purpose in these points:
//
//   - Items carry token ids and no text. The frontend then detokenizes, cuts stop strings (honouring min_tokens and
//     include_stop_str_in_output as the engine does), hides stop tokens and renders log-probabilities; with text it does none
//     of that. Stop strings and stop ids go to the engine as well, so that it ends at the same token and computes no surplus.
//
//   - The selected token comes once among the top log-probabilities, not twice.
//
//   - The engine's cached-token count reaches the client's usage.
//
//   - A hand-off is checked before it reaches the engine, because some malformed ones end the engine.
//
//   - A rank outside the engine's own range is refused here.
//
//   - Items of several kinds of media go to the engine in a fixed order of kinds.
//
// Adapters and the encode role are refused in one sentence each.
package translate
