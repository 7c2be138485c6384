// Package chaos holds tests alone: seeded random schedules of the whole way of a request, run on one goroutine in virtual time.
//
// What is real: the hand-off machine (internal/handoff), the conversion, the shape check and the stamp (internal/translate), and
// the engine with its block pool, prefix cache, holds and leases (internal/sim/core). What is modelled, because the real one
// needs goroutines and sockets: the frontend (frontend_test.go), the worker around the machine (worker_test.go, leg_test.go,
// written to do what internal/worker does, event by event), the engine's front end (engine_test.go, stream_test.go) and the way
// between two engines (peers_test.go). Every message has a delay, and everything comes out of one queue ordered by time.
//
// A seed decides a schedule: the roles, the load, the engine's rules, one fault, how and at which moment each client leaves,
// and whether a worker is told to stop (plan_test.go). After it, when nothing happens any more, the invariants are checked
// (check_test.go): among them that each release of a prefill engine's blocks is by completion, by abort, or by one of the
// reasons for which a lease may end (excuses_test.go), that each answer is the text of one engine alone, and that an engine's KV
// events, replayed, give its prefix cache (mirror_test.go).
//
// A failing seed names the command that replays it:
//
//	go test ./internal/chaos -run TestReplay -seed N -v
//
// Storms (storm_test.go) are the same with nothing modelled but the frontend: real workers (internal/worker) and simulated
// engines (internal/sim) that talk over connections in memory (site_test.go), in the time of a synctest bubble. A seed draws
// what happens, the goroutines take their own course, and the invariants are checked after each (stormcheck_test.go), but for C8:
// KV events are the engine's, and nothing that a worker does could spoil them.
package chaos
