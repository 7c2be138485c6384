package main

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// tuneRuntime sets Go's runtime up for a sidecar until stop is called. What an operator sets, with GOMAXPROCS or GOGC, stays.
func tuneRuntime(log *slog.Logger) (stop func()) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var governor sync.WaitGroup
	governor.Go(func() { followLoad(ctx, log) })
	return func() {
		cancel()
		governor.Wait()
	}
}

// gcPercent is how much the heap may grow between two collections. What lives is a few megabytes, and requests with long
// prompts allocate them many times a second: a few more save an eighth of their CPU time.
const gcPercent = 200

// procs says on how many cores Go code may run at once: as few as the work needs.
//
// A sidecar relays tokens that come one by one, and each costs microseconds. With a second core at hand the runtime wakes a
// thread for each of them that finds nothing to do; that was a fifth to a third of a token's CPU time. The engine beside the
// sidecar has a better use for it.
type procs struct{ now, most int }

const (
	procsInterval = time.Second
	// procsFull is the part of its cores above which a sidecar gets one more, procsSpare the part of those it would have left
	// below which it gives one back.
	procsFull, procsSpare = 0.7, 0.5
)

// next takes the cores' worth of CPU time that was used lately and returns how many there should be.
func (p procs) next(used float64) int {
	switch {
	case used > procsFull*float64(p.now) && p.now < p.most:
		return p.now + 1
	case p.now > 1 && used < procsSpare*float64(p.now-1):
		return p.now - 1
	}
	return p.now
}

const (
	// loadBusy is the part of a core above which a sidecar has work, loadIdle that below which it has none.
	loadBusy, loadIdle = 0.1, 0.02
)

// followLoad follows the load until the context ends. It adapts GOMAXPROCS, from one core up to what the runtime chose itself,
// which knows of CPU limits of containers; and when there is nothing more to do, it gives the memory that the work took back to
// the system at once: the runtime by itself would keep most of it for minutes, and a little more after each rush.
func followLoad(ctx context.Context, log *slog.Logger) {
	p, fixed, worked := procs{now: 1, most: runtime.GOMAXPROCS(0)}, os.Getenv("GOMAXPROCS") != "", false
	if !fixed {
		runtime.GOMAXPROCS(p.now)
		defer runtime.GOMAXPROCS(p.most)
	}
	ticker := time.NewTicker(procsInterval)
	defer ticker.Stop()
	at, before := time.Now(), cpuTime()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now, spent := time.Now(), cpuTime()
		used := float64(spent-before) / float64(now.Sub(at))
		at, before = now, spent
		switch {
		case used > loadBusy:
			worked = true
		case worked && used < loadIdle:
			worked = false
			debug.FreeOSMemory()
		}
		if n := p.next(used); n != p.now && !fixed {
			log.Debug("cores for Go code changed", "from", p.now, "to", n, "used", used)
			p.now = n
			runtime.GOMAXPROCS(n)
		}
	}
}

// cpuTime is the CPU time of the process, user and system.
func cpuTime() time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0 // it knows no error for these arguments
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
