package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// withSignals returns a context that ends with the first SIGINT, SIGTERM or SIGHUP and one that ends with the second. release
// stops listening and waits for the goroutine that did.
//
// A terminal that goes is no reason to leave records and folders behind, unless whoever started us has it ignored (nohup). Nor
// does the reader of our output have us killed when it goes: the next line would take every answer and hand-off under way with
// it. So that line is lost, and the command goes on.
func withSignals() (stop, cut context.Context, release func()) {
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 2) // room for both: Notify drops what nobody takes
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	stop, cut, end := escalate(signals)
	return stop, cut, func() {
		signal.Stop(signals)
		end()
	}
}

// escalate ends the contexts one after the other, one a signal. After the second one it stops the delivery, so that a third
// signal kills a command that does not come to its end.
func escalate(signals chan os.Signal) (stop, cut context.Context, end func()) {
	cut, cutNow := context.WithCancel(context.Background())
	stop, stopNow := context.WithCancel(cut)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for _, act := range []func(){stopNow, func() { signal.Stop(signals); cutNow() }} {
			select {
			case <-signals:
				act()
			case <-quit:
				return
			}
		}
	}()
	return stop, cut, func() {
		close(quit)
		<-done
		cutNow()
		stopNow()
	}
}
