// Package handoff is the pure state machine of one request's life between a Dynamo client and a vLLM engine. It owns one
// decision: when an engine stream may be dropped or aborted without breaking the transfer of KV blocks from the prefill
// engine P to the decode engine D. It does no I/O, knows no clock, starts no goroutine and imports no other room; its caller
// feeds it events in the order seen and carries out the actions in the order returned. Time enters only as EventTimer.
//
// Words. A release message is an engine message with tokens or a finish: it proves that D has read P's blocks. A keeper is a
// decode that carries hand-off parameters: its stream is kept after a cancel until the release. A drain is that time. An
// orphan is a finished prefill whose parameters no decode will use: its blocks wait for P's lease to end.
//
// States:
//
//	pending    accepted, not yet submitted to the engine
//	opening    submitted, no response headers yet
//	open       headers seen, no release message yet
//	streaming  a token message was seen
//	draining   the end is decided (cancel, shutdown, bad message), the stream is still read
//	done       the one terminal was emitted, the stream has ended or was dropped
//
// What each state does with each event is in the table below, made from the code, and in the traces in testdata, one at least
// for every row. Every sequence of events up to a bounded length is walked in the tests, which check for each of them:
//
//   - a keeper is submitted whether or not its client is there (short if the client left first) unless it was refused;
//   - a keeper's stream is neither dropped nor aborted before a release message, the deadline, the end of the shutdown or a cut;
//   - Abort is sent at most once, never before headers, never after a finish was read;
//   - exactly one terminal; after a cancel it is Cancelled, whatever ended the stream;
//   - nothing waits without a timer once the end is decided, and the timer is set once (a shutdown may replace it);
//   - in state done the stream has ended or was dropped.
package handoff
