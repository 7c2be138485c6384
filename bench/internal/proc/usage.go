package proc

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU is the user and system time that a process has used.
func CPU(pid int) (time.Duration, error) {
	const sched = 2 // the clock that the scheduler keeps, user and system together
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|sched, &ts); err != nil {
		return 0, fmt.Errorf("CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// Memory is the resident memory of a process in bytes, and the number of its threads.
func Memory(pid int) (rss int64, threads int, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimSpace(strings.TrimSuffix(value, "kB"))
		switch name {
		case "VmRSS":
			kb, errParse := strconv.ParseInt(value, 10, 64)
			if errParse != nil {
				return 0, 0, fmt.Errorf("memory of process %d: %w", pid, errParse)
			}
			rss = kb << 10
		case "Threads":
			if threads, err = strconv.Atoi(value); err != nil {
				return 0, 0, fmt.Errorf("threads of process %d: %w", pid, err)
			}
		}
	}
	if rss == 0 || threads == 0 {
		return 0, 0, fmt.Errorf("memory of process %d: nothing in its status (%w)", pid, os.ErrNotExist)
	}
	return rss, threads, nil
}
