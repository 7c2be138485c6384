package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// withSignals returns a context that ends with the first SIGINT or SIGTERM and one that ends with the second. release stops
// listening and waits for the goroutine that did.
func withSignals() (stop, cut context.Context, release func()) {
	signals := make(chan os.Signal, 2) // room for both: Notify drops what nobody takes
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
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
