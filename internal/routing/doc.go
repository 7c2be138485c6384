// Package routing tells Dynamo's routers and frontends what they choose a worker by: what the cache of each of its ranks holds,
// and how many blocks of it the worker's requests need. It owns the sockets and records by which they find that, their questions
// about a cache, and the count of the load. What an engine's event means to a router is package kvrelay's to say; how the answers
// and messages look is package eventplane's.
//
// Goroutines. Open starts a socket of its own for each rank and one for the load, a reader of the engine's events for each rank,
// and one goroutine that tells the load; Follow replaces the readers. Close returns after all of them have ended. A question of a
// router is answered on the goroutine of the request plane that brings it.
//
// Bounds: four answers are in memory at a time, 256 questions a rank wait or linger; what is remembered of a cache is bounded by
// packages kvrelay and eventplane; a request costs 8 bytes a block of its prompt as long as it runs.
//
// Under cancel. Records are published source last and withdrawn source first, so that nobody asks where nobody answers any more.
// All withdrawals together take five seconds at the most: a store that does not answer can't keep a worker from ending.
package routing
