// Package frontdoor owns a small OpenAI-compatible HTTP server that is itself a Dynamo client: it finds workers through
// discovery, sends them tokenized requests over the request plane, prefill first and then decode with its hand-off, and turns
// their items into text. It is for trying and testing on one machine. It has one model's tokenizer, which it is given, picks
// workers round robin, and neither migrates nor retries, except that a request which an instance never got goes to the next.
//
// Goroutines: Run starts one that serves HTTP (net/http adds one a connection) and runs the discovery watch itself; a request
// lives on its handler's goroutine, without channels or helpers of its own. Run returns when all of them have ended.
//
// Under cancel: a client that leaves is told to the workers as the stock frontend tells it. A prefill never hears of it; its
// decode is dispatched all the same with the hand-off and killed at once; a running decode or aggregated request is killed.
// So a handler may outlive its client by the rest of a prefill. At a stop requests get the shutdown time, or until the cut,
// and are then killed.
package frontdoor
