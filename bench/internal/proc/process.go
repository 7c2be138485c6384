package proc

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is a running program.
type Process struct {
	Name    string    // set once
	Started time.Time // just before the program was started; set once

	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended
	err  error         // written before done is closed
}

// Start runs argv in its own process group, with only env for its environment. Output goes to out, standard error to log; both
// may be nil.
func Start(name string, env []string, out, log *os.File, argv ...string) (*Process, error) {
	p := &Process{Name: name, cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})} //nolint:noctx,gosec // ended by Stop; ours
	p.cmd.Env = env
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if out != nil {
		p.cmd.Stdout = out
	}
	if log != nil {
		p.cmd.Stderr = log
	}
	p.Started = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID is the program's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is how the program ended; nil is status 0. It may be called when Done is closed.
func (p *Process) Err() error {
	if p.err != nil {
		return fmt.Errorf("%s: %w", p.Name, p.err)
	}
	return nil
}

// Stop asks the program to end, kills its group after grace, and waits.
func (p *Process) Stop(grace time.Duration) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}
