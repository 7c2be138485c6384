package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// tailLines is how much of a program's log a failed test shows.
const tailLines = 60

// Process is a running program. Its methods may be called from any goroutine.
type Process struct {
	Name string // set once: what the test calls it

	cmd    *exec.Cmd
	log    string        // set once: path of stdout and stderr
	done   chan struct{} // closed by the waiting goroutine when the program has ended
	status error         // written before done is closed: what Wait said
	stop   sync.Once
}

// Start runs argv with exactly env (plus PATH, HOME and so on, see baseEnv) in a session of its own and ends it when the test
// does, in the given way first, with SIGKILL to the whole session in any case.
func Start(t T, name string, env []string, end Ending, argv ...string) *Process {
	t.Helper()
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	defer log.Close() // the program holds its own descriptor

	p := &Process{Name: name, log: log.Name(), done: make(chan struct{})}
	p.cmd = exec.Command(argv[0], argv[1:]...) //nolint:noctx // ended by the cleanup below, which must outlive the test's context
	p.cmd.Dir = dir
	p.cmd.Env = append(baseEnv(dir), env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// Pdeathsig covers a test binary that dies without cleanups, as on its time limit.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := enlist(p); err != nil {
		t.Fatalf("%s: start: %v", name, err)
	}
	go func() {
		p.status = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		if t.Failed() && !isEnding() {
			t.Logf("%s, end of its log:\n%s", name, p.LogTail(tailLines))
		}
		p.Stop(end)
		delist(p)
	})
	return p
}

// Ending says how a program is ended.
type Ending int

const (
	// AtOnce kills: for what leaves nothing behind.
	AtOnce Ending = iota
	// Politely sends SIGTERM and kills after Grace: for what has children, or an ending worth a test.
	Politely
)

// Grace is how long a program may take to end.
const Grace = 15 * time.Second

// baseEnv is what every program gets: nothing of the caller's DYN_* or VLLM_* leaks in, and home is the test's own. The folder
// for what is temporary is the one that Main or Run made, and as short: it is part of the paths of sockets.
func baseEnv(home string) []string {
	env := []string{"HOME=" + home, "NO_COLOR=1", "DYN_SDK_DISABLE_ANSI_LOGGING=1", "HF_HUB_OFFLINE=1", "PYTHONUNBUFFERED=1"}
	for _, name := range []string{"PATH", "LANG", "TMPDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// Signal sends sig to the program alone, not to its children. A program that has ended is left alone.
func (p *Process) Signal(sig syscall.Signal) {
	if !p.Exited() {
		_ = p.cmd.Process.Signal(sig)
	}
}

// Freeze stops the whole group as a stalled machine would; Thaw lets it run on.
func (p *Process) Freeze() { p.signalGroup(syscall.SIGSTOP) }

// Thaw ends a Freeze.
func (p *Process) Thaw() { p.signalGroup(syscall.SIGCONT) }

// signalGroup reaches children too, but for those in groups of their own. The group exists until the program was waited for
// and its children are gone.
func (p *Process) signalGroup(sig syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, sig) }

// Exited reports whether the program has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stop ends the program and everything that it started, and waits for all of it. It may be called more than once, and does
// its work the first time: afterwards the numbers may be somebody else's.
func (p *Process) Stop(end Ending) {
	p.stop.Do(func() {
		if end == Politely {
			p.Signal(syscall.SIGTERM)
			select {
			case <-p.done:
			case <-time.After(Grace):
			}
		}
		p.signalGroup(syscall.SIGKILL)
		<-p.done
		p.killSession()
	})
}

// WaitExit waits for the program to end by itself and returns its exit code, -1 when a signal ended it.
func (p *Process) WaitExit(t T, within time.Duration) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(within):
		t.Fatalf("%s is still running after %v", p.Name, within)
	}
	var exit *exec.ExitError
	if p.status != nil && !errors.As(p.status, &exit) {
		t.Fatalf("%s: %v", p.Name, p.status)
	}
	return p.cmd.ProcessState.ExitCode()
}

// Log returns what the program has said so far.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Sprintf("(%v)", err)
	}
	return string(text)
}

// LogTail returns the last n lines of Log.
func (p *Process) LogTail(n int) string {
	lines := bytes.Split(bytes.TrimRight([]byte(p.Log()), "\n"), []byte("\n"))
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return string(bytes.Join(lines, []byte("\n")))
}

// WaitLog waits until the log contains text.
func (p *Process) WaitLog(t T, text string, within time.Duration) {
	t.Helper()
	Poll(t, p.Name+" to log "+text, within, func() error {
		if strings.Contains(p.Log(), text) {
			return nil
		}
		return p.alive()
	})
}

// errNotYet is a poll's reason while nothing is known to be wrong.
var errNotYet = errors.New("not yet")

// alive is the error of a poll that waits for p: final when the program has ended.
func (p *Process) alive() error {
	if p.Exited() {
		return Final(fmt.Errorf("%s ended: %w", p.Name, p.endedAs()))
	}
	return errNotYet
}

func (p *Process) endedAs() error {
	if p.status != nil {
		return p.status
	}
	return errors.New("exit status 0")
}
