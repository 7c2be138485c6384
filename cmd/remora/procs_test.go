package main

import "testing"

func TestProcs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		procs
		used float64
		want int
	}{
		{"idle", procs{1, 8}, 0, 1},
		{"some work", procs{1, 8}, 0.6, 1},
		{"nearly a core", procs{1, 8}, 0.75, 2},
		{"nothing more to be had", procs{1, 1}, 1, 1},
		{"two cores, one busy", procs{2, 8}, 1, 2},
		{"two cores busy", procs{2, 8}, 1.5, 3},
		{"all busy", procs{8, 8}, 8, 8},
		{"less to do", procs{2, 8}, 0.4, 1},
		{"what made it grow does not make it shrink", procs{2, 8}, 0.7, 2},
		{"a step at a time", procs{8, 8}, 0, 7},
	} {
		if got := tc.next(tc.used); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}
