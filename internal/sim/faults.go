package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"remora/internal/sleep"
)

// Fault names something that an older or a broken engine does and a good one of the simulated release does not. All are off
// unless Config.Faults, Server.SetFault or POST /sim/fault says otherwise.
type Fault string

// The faults.
const (
	// LateDrop: a client that goes away is noticed only when its request has its next output, as in older releases.
	LateDrop Fault = "late-drop"
	// DropIgnored: a client that goes away is never noticed; its request runs to its end.
	DropIgnored Fault = "drop-ignored"
	// CrashLateReceive: the engine dies of a transfer that ends after its request was aborted (vLLM 43226).
	CrashLateReceive Fault = "crash-late-receive"
	// HeadFirstExpiry: ended leases behind one that still runs are not seen (vLLM 58222).
	HeadFirstExpiry Fault = "head-first-expiry"
	// ReadStall: transfers from other engines do not move until this is off again.
	ReadStall Fault = "read-stall"
	// ReadFail: transfers from other engines fail.
	ReadFail Fault = "read-fail"
	// ReadSlow: transfers from other engines begin after Config.ReadDelay.
	ReadSlow Fault = "read-slow"
	// BeatLost: this engine's heartbeats for leases elsewhere are lost.
	BeatLost Fault = "beat-lost"
	// NotServing: health says NOT_SERVING while the engine works. A real engine never comes back from there.
	NotServing Fault = "not-serving"
	// Death: the engine core dies. It cannot be turned off.
	Death Fault = "death"
	// AbortedErrors: a request that the engine gives up ends as ABORTED instead of INTERNAL, as up to release 0.29.
	AbortedErrors Fault = "aborted-errors"
	// NoAbort: Control.Abort is not implemented.
	NoAbort Fault = "no-abort"
	// EventsLost: KV event messages reach no subscriber, as when a queue is full; they can still be replayed. The one fault that
	// can be turned on for a number of times.
	EventsLost Fault = "events-lost"
	// EventsArrays: KV events are arrays instead of maps, as before release 0.24.
	EventsArrays Fault = "events-arrays"
	// EventsBytes: block hashes in KV events are 32 bytes, as with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0.
	EventsBytes Fault = "events-bytes"
	// EventsOneEndpoint: GetKvEventSources names rank 0's endpoints for every rank: the reader has to add the rank to the ports.
	EventsOneEndpoint Fault = "events-one-endpoint"
	// ReplayWithoutTopic: replayed messages have no topic frame, as up to release 0.25.
	ReplayWithoutTopic Fault = "replay-without-topic"
)

// Faults lists all names.
func Faults() []Fault {
	return []Fault{
		LateDrop, DropIgnored, CrashLateReceive, HeadFirstExpiry, ReadStall, ReadFail, ReadSlow, BeatLost, NotServing, Death,
		AbortedErrors, NoAbort, EventsLost, EventsArrays, EventsBytes, EventsOneEndpoint, ReplayWithoutTopic,
	}
}

// ErrFault is wrapped by ParseFault and SetFault for what cannot be.
var ErrFault = errors.New("sim: fault")

// errReadFault is how a transfer ends under ReadFail.
var errReadFault = errors.New("sim: transfer failed on demand")

// ParseFault reads a fault's name.
func ParseFault(name string) (Fault, error) {
	if f := Fault(name); slices.Contains(Faults(), f) {
		return f, nil
	}
	names := make([]string, 0, len(Faults()))
	for _, f := range Faults() {
		names = append(names, string(f))
	}
	return "", fmt.Errorf("%w %q is none of %s", ErrFault, name, strings.Join(names, ", "))
}

// SetFault turns a fault on or off in a running engine. What has to be done on the engine's own goroutines is done when it
// returns nil.
func (s *Server) SetFault(ctx context.Context, f Fault, on bool) error {
	if _, err := ParseFault(string(f)); err != nil {
		return err
	}
	if f == Death && !on {
		return fmt.Errorf("%w %s: cannot be undone", ErrFault, f)
	}
	times := 0
	if on {
		times = always
	}
	s.faults.set(f, times)
	s.applyServer(f, on)
	for _, r := range s.ranks {
		if err := r.loop.call(ctx, func() { r.apply(f, on) }); err != nil {
			return err
		}
	}
	return nil
}

// LoseEvents keeps the next n KV event messages, of whatever rank, from all subscribers.
func (s *Server) LoseEvents(n int) error {
	if n < 1 {
		return fmt.Errorf("%w %s: %d times", ErrFault, EventsLost, n)
	}
	s.faults.set(EventsLost, n)
	return nil
}

// applyServer does what a fault does to the servers.
func (s *Server) applyServer(f Fault, on bool) {
	switch f { //nolint:exhaustive // the others are looked at where they matter
	case NotServing:
		s.health.serve(!on)
	case ReplayWithoutTopic:
		for _, r := range s.ranks {
			if r.events != nil {
				r.events.SetLegacyReplay(on)
			}
		}
	}
}

// apply does what a fault does to an engine core. It belongs to the rank's goroutine, or to New.
func (r *rank) apply(f Fault, on bool) {
	switch f { //nolint:exhaustive // the others are looked at where they matter
	case CrashLateReceive:
		r.loop.engine.SetCrashLateReceive(on)
	case HeadFirstExpiry:
		r.loop.engine.SetHeadFirstExpiry(on)
	case Death:
		r.loop.engine.Kill()
	}
}

// always is a number of times without an end.
const always = -1

// faultSet is which faults are on.
type faultSet struct {
	mu      sync.Mutex
	active  map[Fault]int // guarded by mu; how often they still strike: 0 is off
	changed chan struct{} // guarded by mu; closed and replaced by set
}

func newFaultSet() *faultSet {
	return &faultSet{active: make(map[Fault]int), changed: make(chan struct{})}
}

func (fs *faultSet) set(f Fault, times int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.active[f] = times
	close(fs.changed)
	fs.changed = make(chan struct{})
}

// spend says whether a fault strikes now, and counts it.
func (fs *faultSet) spend(f Fault) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	times := fs.active[f]
	if times > 0 {
		fs.active[f]--
	}
	return times != 0
}

func (fs *faultSet) on(f Fault) bool {
	on, _ := fs.look(f)
	return on
}

// look also returns a channel that is closed at the next change.
func (fs *faultSet) look(f Fault) (on bool, changed <-chan struct{}) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.active[f] != 0, fs.changed
}

// beforeRead lets a transfer wait or fail as the faults say.
func (fs *faultSet) beforeRead(ctx context.Context, delay time.Duration) error {
	if fs.on(ReadSlow) && !sleep.For(ctx, delay) {
		return ctx.Err()
	}
	for {
		stalled, changed := fs.look(ReadStall)
		if !stalled {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if fs.on(ReadFail) {
		return errReadFault
	}
	return nil
}
