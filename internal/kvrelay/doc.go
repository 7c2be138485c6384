// Package kvrelay puts an engine's KV events into the words of Dynamo's routers. It owns the rules of that translation: which
// events concern a router, in which tier a block lies, how blocks are cut and hashed, and what a gap or a new engine means to
// what routers know.
//
// It starts no goroutines and waits for nothing; it works on those of the kvevents.Reader that calls it, one call at a time.
//
// Memory: it remembers the blocks that were stored under a cache salt, 24 bytes and the overhead of a map for each, because
// what comes behind such a block does not name the salt again; an entry goes when its block does. If they exceed
// Config.MaxBlocks, the engine's events must be wrong, and all is told anew from nothing. Beside them at most 1024 cache groups.
// Everything else that has to be remembered about blocks is the eventplane.Publisher's, with a bound of its own.
package kvrelay
