package harness

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Entry is one of the machine's process table.
type Entry struct {
	PID  int
	Argv []string
}

// Session lists the program and everything that it started and that still runs, whatever group that is in now and whether
// or not its parent lives.
func (p *Process) Session() []Entry { return session(p.cmd.Process.Pid) }

func session(leader int) []Entry {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is good
	var own []Entry
	for _, dir := range dirs {
		pid, errPID := strconv.Atoi(filepath.Base(dir))
		stat, errStat := os.ReadFile(filepath.Join(dir, "stat"))
		argv, errArgv := os.ReadFile(filepath.Join(dir, "cmdline"))
		if errPID != nil || errStat != nil || errArgv != nil {
			continue // ended meanwhile
		}
		// "pid (name) state parent group session ...", where a name may hold anything.
		_, rest, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')'):], []byte(" "))
		fields := strings.Fields(string(rest))
		if len(fields) < 4 || fields[0] == "Z" || fields[3] != strconv.Itoa(leader) {
			continue
		}
		own = append(own, Entry{pid, strings.Split(strings.TrimRight(string(argv), "\x00"), "\x00")})
	}
	return own
}

// killSession ends what is left of the program's session and waits for that. Who starts processes all the time may leave
// some behind after lookAgain looks.
func (p *Process) killSession() {
	const lookAgain = 500
	for range lookAgain {
		left := p.Session()
		if len(left) == 0 {
			return
		}
		for _, e := range left {
			_ = syscall.Kill(e.PID, syscall.SIGKILL)
		}
		<-time.After(10 * time.Millisecond)
	}
}
