package harness

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// live are the programs that have not been waited for, so that a process that is told to end can end them.
var live struct { //nolint:gochecknoglobals // a signal comes to the whole process, whoever started the programs
	mu     sync.Mutex
	all    map[*Process]bool // guarded by mu
	ending bool              // guarded by mu: nothing may be started any more
}

// Main runs a package's tests and exits with their status. Everything temporary, theirs and that of the programs that they
// start, lies in one folder, which goes with them. An interrupt (or SIGTERM, or SIGHUP) ends all programs at once, removes
// that folder and exits with status 130; the goroutine of the tests ends with the process.
func Main(tests func() int) {
	os.Exit(run(tests))
}

func run(tests func() int) (status int) {
	remove, err := ownTemp()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer remove()
	told := make(chan os.Signal, 1)
	signal.Notify(told, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ended := make(chan int, 1)
	go func() { ended <- tests() }()
	select {
	case status = <-ended:
		return status
	case s := <-told:
		fmt.Fprintf(os.Stderr, "%v: ending what the tests have started\n", s)
		EndAll()
		return 130
	}
}

// ownTemp makes a temporary folder for this process and all that it will start: killed programs leave things behind.
func ownTemp() (remove func(), err error) {
	folder, err := os.MkdirTemp("", "remora-")
	if err != nil {
		return nil, err
	}
	before, set := os.LookupEnv("TMPDIR")
	if err := os.Setenv("TMPDIR", folder); err != nil {
		return nil, err
	}
	return func() {
		if _ = os.Unsetenv("TMPDIR"); set {
			_ = os.Setenv("TMPDIR", before)
		}
		_ = os.RemoveAll(folder)
	}, nil
}

// EndAll kills every program that runs, and waits for it. None can be started afterwards.
func EndAll() {
	live.mu.Lock()
	live.ending = true
	all := live.all
	live.all = nil
	live.mu.Unlock()
	for p := range all { // so that a cleanup that waits for one to end politely waits no longer
		p.signalGroup(syscall.SIGKILL)
	}
	for p := range all {
		p.Stop(AtOnce)
	}
}

func isEnding() bool {
	live.mu.Lock()
	defer live.mu.Unlock()
	return live.ending
}

// errEnding refuses programs of tests that were interrupted.
var errEnding = errors.New("the tests were told to end")

// enlist starts a program and notes it, in one step, so that EndAll misses none.
func enlist(p *Process) error {
	live.mu.Lock()
	defer live.mu.Unlock()
	if live.ending {
		return errEnding
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	if live.all == nil {
		live.all = map[*Process]bool{}
	}
	live.all[p] = true
	return nil
}

// delist forgets a program that has been waited for.
func delist(p *Process) {
	live.mu.Lock()
	defer live.mu.Unlock()
	delete(live.all, p)
}
