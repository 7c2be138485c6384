package main

import "testing"

func TestProcs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		procs

		name string
		used float64
		want int
	}{
		{procs{1, 8}, "idle", 0, 1},
		{procs{1, 8}, "some work", 0.6, 1},
		{procs{1, 8}, "nearly a core", 0.75, 2},
		{procs{1, 1}, "nothing more to be had", 1, 1},
		{procs{2, 8}, "two cores, one busy", 1, 2},
		{procs{2, 8}, "two cores busy", 1.5, 3},
		{procs{8, 8}, "all busy", 8, 8},
		{procs{2, 8}, "less to do", 0.4, 1},
		{procs{2, 8}, "what made it grow does not make it shrink", 0.7, 2},
		{procs{8, 8}, "a step at a time", 0, 7},
	} {
		if got := tc.next(tc.used); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}
