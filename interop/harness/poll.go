package harness

import (
	"errors"
	"net"
	"sync"
	"time"
)

// pollEvery is the pause between two looks. It is short beside what is waited for and long beside what a look costs.
const pollEvery = 50 * time.Millisecond

// Poll calls look until it returns nil. It fails the test with look's last error after within, at once when that error
// is Final, or when the test's context ends.
func Poll(t T, what string, within time.Duration, look func() error) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := look()
		if err == nil {
			return
		}
		if final := (*finalError)(nil); errors.As(err, &final) {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited %v for %s: %v", within, what, err)
		case <-t.Context().Done():
			t.Fatalf("waiting for %s: %v (last: %v)", what, t.Context().Err(), err)
		}
	}
}

type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

// Final marks an error after which waiting makes no sense.
func Final(err error) error { return &finalError{err} }

// Ports are handed out from below the range that the kernel takes outgoing connections' ports from, so that nothing else
// on the machine is likely to take one between here and the program that will listen. DYN_SYSTEM_PORT reads a signed
// 16-bit number, which this range fits.
const (
	firstPort = 21000
	lastPort  = 31999
)

var ports struct { //nolint:gochecknoglobals // a port is handed out once a process, whoever asks
	mu   sync.Mutex
	next int // guarded by mu
}

// FreePort returns a loopback TCP port that nobody listens on. It never returns the same twice.
func FreePort(t T) int {
	t.Helper()
	ports.mu.Lock()
	defer ports.mu.Unlock()
	if ports.next == 0 { // test binaries that follow each other must not meet ports in TIME_WAIT
		ports.next = firstPort + int(time.Now().UnixNano()/1e6)%(lastPort-firstPort)
	}
	for range lastPort - firstPort {
		port := ports.next
		if ports.next++; ports.next > lastPort {
			ports.next = firstPort
		}
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatalf("no free port between %d and %d", firstPort, lastPort)
	return 0
}
