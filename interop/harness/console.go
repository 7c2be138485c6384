package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// Console is a T for a program: what it logs goes to a writer, what is fatal ends Run.
type Console struct {
	out      io.Writer
	ctx      context.Context
	cleanups []func()
	failed   bool
}

// errFatal is what Fatalf panics with and Run recovers.
var errFatal = errors.New("fatal")

// Run calls body with a console that writes to out, then the cleanups, last first, and reports whether all went well. What is
// temporary lies in a folder that goes at the end.
func Run(ctx context.Context, out io.Writer, body func(t *Console)) (ok bool) {
	c := &Console{out: out, ctx: ctx}
	remove, err := ownTemp()
	if err != nil {
		c.Errorf("%v", err)
		return false
	}
	defer remove()
	defer func() {
		for _, f := range slices.Backward(c.cleanups) {
			f()
		}
		ok = !c.failed
	}()
	defer func() {
		if p := recover(); p != nil && p != errFatal { //nolint:errorlint // this very value
			panic(p)
		}
	}()
	body(c)
	return true
}

// Helper implements T.
func (c *Console) Helper() {}

// Name implements T.
func (c *Console) Name() string { return "console" }

// Context implements T.
func (c *Console) Context() context.Context { return c.ctx }

// Cleanup implements T.
func (c *Console) Cleanup(f func()) { c.cleanups = append(c.cleanups, f) }

// Failed implements T.
func (c *Console) Failed() bool { return c.failed }

// Logf implements T.
func (c *Console) Logf(format string, args ...any) { fmt.Fprintf(c.out, format+"\n", args...) }

// Errorf implements T.
func (c *Console) Errorf(format string, args ...any) {
	c.failed = true
	c.Logf("error: "+format, args...)
}

// Fatalf implements T. A console that was interrupted says nothing: the user knows.
func (c *Console) Fatalf(format string, args ...any) {
	if c.ctx.Err() == nil {
		c.Errorf(format, args...)
	}
	panic(errFatal)
}

// TempDir implements T.
func (c *Console) TempDir() string {
	dir, err := os.MkdirTemp("", "remora-*")
	if err != nil {
		c.Fatalf("%v", err)
	}
	c.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
