// Package core is the engine inside the simulator: scheduler, KV block pool, prefix cache, hand-off holds and leases, and a
// toy language model whose next token is computed from the KV that the pool really holds.
//
// It is a pure stepper. Nothing here starts a goroutine, reads a clock or draws randomness other than from the configured
// seed: the caller passes the time as a duration since an origin of its choice and says when a step begins (Schedule) and when
// its results are applied (Apply). Between the two an engine computes; aborts, reads of blocks and arrivals in that window are
// legal and are what the split exists for. An Engine is owned by one goroutine and has no lock.
//
// # What the text proves
//
// A slot of the pool is the KV of one token: mix(digest of all earlier slots, token, what media show at its place). Each step
// reads all slots of a request's block table again, so a wrong block, a stale transfer, another image or a poisoned prefix
// gives wrong text and nothing else can hide it. The prefix cache finds blocks by the hash of their tokens and of the names of
// their media, and never looks at the slots, as the real one does.
package core
