// Package harness starts the programs that the interop tests drive (the stock Dynamo frontend, the Rust sidecar, Remora,
// its simulator, real vLLM engines), waits until each of them says that it is ready, talks to them as a client would, and
// ends them.
//
// Its functions take a T, the few methods of *testing.T that they use, so that the stack command can share them. What they
// cannot do is fatal to the test: none returns an error that a test would only pass on.
//
// A program runs in a session of its own and logs into a file; when the test failed, the end of the log is shown. Each
// program has one goroutine that waits for its exit, and a cleanup that ends everything of the session and waits for that:
// nothing outlives the test, and with Main nothing outlives tests that are interrupted. Readiness is polled against a
// deadline, never slept for. Everything listens on loopback, and everything that a program may write (home, discovery folder,
// logs, what is temporary) lies in the test's own temporary folders.
package harness

import "context"

// T is the part of *testing.T that the harness needs.
type T interface {
	Helper()
	Name() string
	TempDir() string
	Context() context.Context
	Cleanup(f func())
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
}
