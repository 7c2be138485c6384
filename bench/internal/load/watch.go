package load

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"remora/bench/internal/proc"
)

// Watched are the processes whose cost is read, by name. It is a flag.Value of name=pid.
type Watched map[string]int

// String implements flag.Value.
func (w Watched) String() string { return fmt.Sprint(map[string]int(w)) }

// Set implements flag.Value.
func (w Watched) Set(text string) error {
	name, pid, ok := strings.Cut(text, "=")
	n, err := strconv.Atoi(pid)
	if !ok || err != nil {
		return fmt.Errorf("%q is not name=pid", text)
	}
	w[name] = n
	return nil
}

// self is the client's own name among the costs.
const self = "client"

// cpu reads the CPU time of every watched process and of this one.
func (w Watched) cpu() (map[string]time.Duration, error) {
	all := map[string]time.Duration{}
	for name, pid := range w {
		used, err := proc.CPU(pid)
		if err != nil {
			return nil, err
		}
		all[name] = used
	}
	used, err := proc.CPU(os.Getpid())
	all[self] = used
	return all, err
}

// span is the CPU time that was used since before, in microseconds.
func (w Watched) span(before map[string]time.Duration) (map[string]float64, error) {
	after, err := w.cpu()
	if err != nil {
		return nil, err
	}
	used := map[string]float64{}
	for name, t := range after {
		used[name] = float64((t - before[name]).Nanoseconds()) / 1e3
	}
	return used, nil
}

// memory reads the resident memory, in bytes.
func (w Watched) memory() (map[string]int64, error) {
	all := map[string]int64{}
	for name, pid := range w {
		rss, _, err := proc.Memory(pid)
		if err != nil {
			return nil, err
		}
		all[name] = rss
	}
	return all, nil
}
