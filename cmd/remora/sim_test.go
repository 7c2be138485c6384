package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"remora/internal/sim"
)

func TestSimFaultFlags(t *testing.T) {
	got, err := parseSim([]string{"--faults", "late-drop, no-abort", "--read-delay", "300ms", "--engine-version", "0.29.0"}, environment{}.lookup)
	if err != nil {
		t.Fatal(err)
	}
	e := got.Engine
	if !slices.Equal(e.Faults, []sim.Fault{sim.LateDrop, sim.NoAbort}) || e.ReadDelay != 300*time.Millisecond || e.EngineVersion != "0.29.0" {
		t.Errorf("%+v", e)
	}
	_, err = parseSim([]string{"--faults", "late-drop,nonsense"}, environment{}.lookup)
	if err == nil || !strings.Contains(err.Error(), `"nonsense" is none of late-drop, `) {
		t.Error(err)
	}
}
