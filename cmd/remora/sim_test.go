package main

import (
	"bytes"
	"context"
	"net/http"
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

// TestSimTakesMedia: only when it is told to.
func TestSimTakesMedia(t *testing.T) {
	for _, args := range [][]string{nil, {"--multimodal"}} {
		got, err := parseSim(args, environment{}.lookup)
		if err != nil || got.Engine.Multimodal != (args != nil) {
			t.Errorf("%q: %v, %v", args, got.Engine.Multimodal, err)
		}
	}
}

// TestSimRestarts: with ranks and KV events it says where each socket is; told to restart, another engine is at the same ones.
func TestSimRestarts(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	stop, stopNow := context.WithCancel(t.Context())
	defer stopNow()
	out := make(announced, 64)
	code := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		code <- run(stop, t.Context(), system{
			args: []string{
				"sim", "--grpc-port=0", "--data-parallel-size=8", "--data-parallel-start-rank=6",
				"--kv-events-config", `{"enable_kv_cache_events":true,"endpoint":"tcp://*:0"}`,
			},
			lookup: environment{}.lookup, stdout: out, stderr: &stderr,
		})
	}()
	lines := func() (all []string) {
		for range 7 {
			select {
			case line := <-out:
				all = append(all, line)
			case c := <-code:
				t.Fatalf("ended with code %d: %s", c, &stderr)
			}
		}
		return all
	}
	first := lines()
	if !strings.HasPrefix(first[5], "kv-events rank 6, tcp://127.0.0.1:") || !strings.HasPrefix(first[6], "kv-events rank 7, ") {
		t.Fatalf("%q", first)
	}
	web, _ := strings.CutPrefix(first[2], "http ")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+web+"/sim/restart", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusAccepted {
		t.Error(answer.Status)
	}
	if again := lines(); !slices.Equal(again[:5], first[:5]) {
		t.Errorf("%q, was at %q", again, first)
	}
	stopNow()
	if c := <-code; c != exitOK {
		t.Fatalf("a stop ends with code %d: %s", c, &stderr)
	}
}

func TestSimRankAndEventFlags(t *testing.T) {
	got, err := parseSim([]string{
		"--data-parallel-size", "8", "--data-parallel-start-rank", "4", "--data-parallel-size-local", "4", "--hash-seed", "7",
		"--kv-events-config", `{"enable_kv_cache_events":true,"topic":"kv"}`,
	}, environment{}.lookup)
	if err != nil {
		t.Fatal(err)
	}
	e := got.Engine
	if e.DataParallelSize != 8 || e.DataParallelStartRank != 4 || e.DataParallelSizeLocal != 4 || e.HashSeed != 7 || e.KVEvents.Topic != "kv" || !e.KVEvents.Publishes() {
		t.Errorf("%+v", e)
	}
	if _, err = parseSim([]string{"--kv-events-config", `{"enable":1}`}, environment{}.lookup); err == nil || !strings.Contains(err.Error(), `unknown field "enable"`) {
		t.Error(err)
	}
	many := runWith(nil, "sim", "--grpc-port=0", "--side-channel-port=65530", "--data-parallel-size=8")
	if many.code != exitFailed || !strings.Contains(many.stderr, "--side-channel-port: rank 6 would have port 65536") {
		t.Errorf("%+v", many)
	}
}
