// Package rawconn reads and writes sockets without telling the scheduler of system calls that cannot block.
//
// It owns no connection and starts no goroutine: Wrap changes how a connection's Read and Write make their system calls,
// and nothing else about it. Deadlines, Close and errors are those of the net package.
//
// Why: Go's sockets are non-blocking, yet each read and write is announced to the scheduler as if it might block. When the
// process was idle before, the announcement also wakes the runtime's monitor thread, which then looks around every 20 µs
// until all is idle again. A sidecar is idle between any two tokens, all day long, so that monitor took nearly half of the
// CPU time of a token (Go 1.26, two cores). Unannounced calls are bounded by the size of what they copy, see maxCall.
package rawconn
