package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"remora/internal/vllm/vllmtest"
)

// asProgram makes the test binary the program: for what only a process of its own shows.
const asProgram = "REMORA_TEST_AS_PROGRAM"

// program is the program with these arguments, and nothing of our environment.
func program(t *testing.T, env environment, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = []string{asProgram + "=1", "TMPDIR=" + t.TempDir()}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// exit is the exit code, or the signal that ended the program as a negative number.
func exit(t *testing.T, err error) int {
	t.Helper()
	var failed *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &failed):
		t.Fatal(err)
	}
	if status, ok := failed.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return -int(status.Signal())
	}
	return failed.ExitCode()
}

// TestFullDisk: an answer that could not be written is no success.
func TestFullDisk(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"help", "sidecar"}, {"sidecar", "--help"}, {"version"}} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip("no /dev/full here")
		}
		cmd := program(t, nil, args...)
		var stderr strings.Builder
		cmd.Stdout, cmd.Stderr = full, &stderr
		if code := exit(t, cmd.Run()); code != exitFailed || !strings.Contains(stderr.String(), "can't write the answer") || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%v: code %d, %q", args, code, &stderr)
		}
		if err = full.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestTerminalGoes: a hang-up ends a command as an interrupt does, and not at all where it was started with hang-ups ignored.
// Nobody reads what it prints.
func TestTerminalGoes(t *testing.T) {
	for _, row := range []struct {
		name string
		wrap []string // a shell that becomes the program
	}{
		{"hang-up", nil},
		{"ignored", []string{"/bin/sh", "-c", `trap "" HUP; exec "$0" "$@"`}},
	} {
		t.Run(row.name, func(t *testing.T) {
			ignored := row.wrap != nil || signal.Ignored(syscall.SIGHUP) // by whoever runs the tests
			cmd := program(t, nil, "up", "--port", "0", "--aggregated")
			folder := strings.TrimPrefix(cmd.Env[1], "TMPDIR=")
			if row.wrap != nil {
				cmd.Path, cmd.Args = row.wrap[0], slices.Concat(row.wrap, []string{cmd.Path}, cmd.Args[1:])
			}
			out, theirs, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stdout, cmd.Stderr = theirs, theirs
			if err = errors.Join(cmd.Start(), theirs.Close()); err != nil {
				t.Fatal(err)
			}
			if _, err = bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if heard := catches(t, cmd.Process.Pid, syscall.SIGHUP); heard == ignored {
				t.Fatalf("listens for hang-ups: %v", heard)
			}
			if err = out.Close(); err != nil {
				t.Fatal(err)
			}
			send := []syscall.Signal{syscall.SIGHUP}
			if ignored {
				send = []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM}
			}
			for _, s := range send {
				if err = cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			if code := exit(t, cmd.Wait()); code != exitOK {
				t.Errorf("code %d", code)
			}
			if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// catches tells whether a process has a handler for a signal.
func catches(t *testing.T, pid int, s syscall.Signal) bool {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, mask, _ := strings.Cut(string(text), "SigCgt:\t")
	mask, _, _ = strings.Cut(mask, "\n")
	caught, err := strconv.ParseUint(mask, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return caught>>(s-1)&1 == 1
}

// TestReaderOfTheLogGoes: the pipe that the log goes to breaks, and the worker goes on until it is told to stop.
func TestReaderOfTheLogGoes(t *testing.T) {
	g := newGround(t)
	g.engine.SetHealth(vllmtest.ControlService, healthpb.HealthCheckResponse_NOT_SERVING)
	g.args = append(g.args, "--grpc-startup-deadline-secs=600")
	log, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := program(t, g.env, withoutTwice(g.args)...)
	cmd.Stderr = theirs
	if err = errors.Join(cmd.Start(), theirs.Close()); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(log)
	for waits := false; !waits && lines.Scan(); {
		waits = strings.Contains(lines.Text(), "waiting for the engine")
	}
	if err = log.Close(); err != nil {
		t.Fatal(err)
	}
	g.engine.SetHealth(vllmtest.ControlService, healthpb.HealthCheckResponse_SERVING) // it has more to say from here on
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for len(g.records("instances")) == 0 {
		select {
		case <-look.C:
		case err = <-ended:
			t.Fatalf("ended with code %d", exit(t, err))
		}
	}
	if err = cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := exit(t, <-ended); code != exitOK {
		t.Errorf("code %d", code)
	}
	if left := g.records("*"); len(left) > 0 {
		t.Errorf("left in discovery: %v", left)
	}
}
