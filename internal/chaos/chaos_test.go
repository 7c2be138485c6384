package chaos

import (
	"bytes"
	"flag"
	"os"
	"testing"
	"time"
)

var (
	seedFlag = flag.Uint64("seed", 0, "TestReplay: the schedule to run; TestSchedules, TestStorms: the first one")
	nFlag    = flag.Int("schedules", 0, "TestSchedules: how many schedules; 0: the usual number")
)

// schedules is how many a plain test runs. Under the race detector, which has nothing to find in one goroutine, it runs for
// raceTime instead.
const (
	schedules = 20_000
	raceTime  = 10 * time.Second
)

// TestSchedules runs random schedules and checks C1-C9 and M1-M10 after each.
func TestSchedules(t *testing.T) {
	n := schedules
	if *nFlag > 0 {
		n = *nFlag
	}
	counts, o := newTally(), oracle{}
	began, failures := time.Now(), 0
	for i := range n {
		seed := *seedFlag + uint64(i)
		if raceEnabled && *nFlag == 0 && time.Since(began) > raceTime {
			break
		}
		broken := execute(seed, &rules{}, o, counts, nil)
		if len(broken) == 0 {
			continue
		}
		for _, v := range broken {
			t.Errorf("seed %d: %s: %s", seed, v.name, v.text)
		}
		t.Errorf("replay it: go test ./internal/chaos -run TestReplay -seed %d -v", seed)
		if failures++; failures == 10 {
			t.Fatal("enough")
		}
	}
	if none := counts.missing(); counts.schedules >= schedules && len(none) > 0 {
		t.Errorf("%d schedules had nothing of %v", counts.schedules, none)
	}
	t.Logf("SUMMARY: seeds %d to %d, %d violations: %v", *seedFlag, *seedFlag+uint64(counts.schedules)-1, failures, counts)
	t.Logf("SUMMARY: %v", &counts.cover)
}

// TestReplay prints the trace of one schedule.
func TestReplay(t *testing.T) {
	for _, v := range execute(*seedFlag, &rules{}, oracle{}, newTally(), os.Stdout) {
		t.Errorf("%s: %s", v.name, v.text)
	}
}

// TestSameSeedSameTrace is what makes a seed worth printing.
func TestSameSeedSameTrace(t *testing.T) {
	for seed := range uint64(200) {
		var first, second bytes.Buffer
		execute(seed, &rules{}, oracle{}, newTally(), &first)
		execute(seed, &rules{}, oracle{}, newTally(), &second)
		if first.Len() < 500 || !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Fatalf("seed %d: traces of %d and %d bytes differ", seed, first.Len(), second.Len())
		}
	}
}
