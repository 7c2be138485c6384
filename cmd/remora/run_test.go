package main

import (
	"bytes"
	"context"
	"flag"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"remora/cmd/remora/internal/logging"
)

var update = flag.Bool("update", false, "rewrite the golden help texts")

// TestMain is main itself where a test runs this binary as the program; see process_test.go.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// outcome is what a run of the program leaves.
type outcome struct {
	code           int
	stdout, stderr string
}

func runWith(env environment, args ...string) outcome {
	var stdout, stderr bytes.Buffer
	code := run(context.Background(), context.Background(), system{args: args, lookup: env.lookup, stdout: &stdout, stderr: &stderr})
	return outcome{code, stdout.String(), stderr.String()}
}

func TestHelpTexts(t *testing.T) {
	for name, args := range map[string][]string{
		"remora": {"--help"}, "sidecar": {"sidecar", "--help"}, "sim": {"sim", "--help"}, "up": {"up", "--help"}, "version": {"version", "--help"},
	} {
		t.Run(name, func(t *testing.T) {
			// Help needs no sound environment.
			got := runWith(environment{"DYN_DISCOVERY_BACKEND": "zz", "DYN_SYSTEM_PORT": "zz"}, args...)
			if got.code != exitOK || got.stderr != "" {
				t.Fatalf("code %d, stderr %q", got.code, got.stderr)
			}
			golden := filepath.Join("testdata", "help", name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got.stdout), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got.stdout != string(want) {
				t.Fatalf("the help changed; if it should, run the test with -update\n%s", got.stdout)
			}
			for line := range strings.SplitSeq(got.stdout, "\n") {
				if len(line) > 100 {
					t.Errorf("too wide: %s", line)
				}
			}
		})
	}
}

func TestHelpIsTheSameEverywhere(t *testing.T) {
	overview := runWith(nil, "--help").stdout
	for _, args := range [][]string{{"-h"}, {"help"}, {"help", "help"}, {"help", "--help"}} {
		if got := runWith(nil, args...); got.code != exitOK || got.stdout != overview {
			t.Errorf("%v: code %d", args, got.code)
		}
	}
	for _, c := range commands() {
		long := runWith(nil, c.name, "--help").stdout
		for _, args := range [][]string{{c.name, "-h"}, {"help", c.name}} {
			if got := runWith(nil, args...); got.code != exitOK || got.stdout != long {
				t.Errorf("%v: code %d", args, got.code)
			}
		}
		if !strings.Contains(overview, "\n  "+c.name) {
			t.Errorf("%s is not listed", c.name)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		env  environment
		code int
		last string // last line of standard error, up to its end or an ellipsis
	}{
		"no command":              {code: 2, last: "Each command explains its flags with --help."},
		"unknown command":         {args: []string{"serve"}, code: 2, last: "Each command explains its flags with --help."},
		"unknown help topic":      {args: []string{"help", "serve"}, code: 2, last: "Each command explains its flags with --help."},
		"help, more":              {args: []string{"help", "sidecar", "more"}, code: 2, last: "Each command explains its flags with --help."},
		"unknown flag of remora":  {args: []string{"--bogus"}, code: 2, last: "Each command explains its flags with --help."},
		"sidecar without flags":   {args: []string{"sidecar"}, code: 2, last: "For more information, try 'remora sidecar --help'."},
		"sidecar, unknown flag":   {args: []string{"sidecar", "--bogus"}, code: 2, last: "For more information, try 'remora sidecar --help'."},
		"sidecar, variable":       {args: append([]string{"sidecar"}, baseArgs...), env: environment{"DYN_SYSTEM_PORT": "40000"}, code: 1, last: "remora sidecar: invalid value '40000' for DYN_SYSTEM_PORT: not a whole number from -32768 to 32767"},
		"sim, unknown flag":       {args: []string{"sim", "--bogus"}, code: 2, last: "For more information, try 'remora sim --help'."},
		"sim, unwritable folder":  {args: []string{"sim", "--write-model", "/dev/null/x"}, code: 1, last: "remora sim: tinymodel: make the folder: mkdir /dev/null: not a directory"},
		"sim, no model":           {args: []string{"sim", "--model-path", "/no/such", "--grpc-port=0"}, code: 1, last: "remora sim: --model-path /no/such is no folder: set it to a model's, or leave it out for the built-in model"},
		"up, bad port":            {args: []string{"up", "--port=65536"}, code: 2, last: "For more information, try 'remora up --help'."},
		"version, unknown flag":   {args: []string{"version", "--bogus"}, code: 2, last: "For more information, try 'remora version --help'."},
		"line breaks in a cause":  {args: append([]string{"sidecar", "--endpoint-types=a\nb"}, baseArgs...), code: 1, last: `remora sidecar: --endpoint-types has "a\nb", which is not supported: set chat, completions or both`},
		"help of a command, more": {args: []string{"sidecar", "--help=x"}, code: 2, last: "For more information, try 'remora sidecar --help'."},
	} {
		t.Run(name, func(t *testing.T) {
			got := runWith(c.env, c.args...)
			lines := strings.Split(strings.TrimSuffix(got.stderr, "\n"), "\n")
			if got.code != c.code || got.stdout != "" || lines[len(lines)-1] != c.last {
				t.Fatalf("code %d, stdout %q, stderr:\n%s", got.code, got.stdout, got.stderr)
			}
		})
	}
}

func TestUsageErrorsAreWhole(t *testing.T) {
	got := runWith(nil, "sidecar", "--grpc-endpiont=a:1")
	want := "error: unexpected argument '--grpc-endpiont' found\n\n" +
		"  tip: a similar argument exists: '--grpc-endpoint'\n\n" +
		"Usage: remora sidecar [OPTIONS] --grpc-endpoint <GRPC_ENDPOINT>\n\n" +
		"For more information, try 'remora sidecar --help'.\n"
	if got.stderr != want {
		t.Fatalf("got\n%s", got.stderr)
	}
}

func TestVersion(t *testing.T) {
	for _, word := range []string{"version", "--version", "-V"} {
		if got := runWith(nil, word); got.code != exitOK || !strings.HasPrefix(got.stdout, "remora ") || strings.Count(got.stdout, "\n") != 1 {
			t.Errorf("%s: %+v", word, got)
		}
	}
	info := &debug.BuildInfo{GoVersion: "go1.26.8", Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"},
	}}
	if got, want := describeBuild(info), "remora (devel) (modified, revision 0123456789ab, go1.26.8)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSignalsEscalate(t *testing.T) {
	signals := make(chan os.Signal, 2)
	stop, cut, end := escalate(signals)
	defer end()
	signals <- syscall.SIGTERM
	<-stop.Done()
	if cut.Err() != nil {
		t.Fatal("the first signal cuts")
	}
	signals <- os.Interrupt
	<-cut.Done()
}

func TestSignalsCutEndsStop(t *testing.T) {
	stop, cut, end := escalate(make(chan os.Signal))
	if stop.Err() != nil || cut.Err() != nil {
		t.Fatal("ended before a signal")
	}
	end()
	if stop.Err() == nil || cut.Err() == nil {
		t.Fatal("the end leaves a context open")
	}
}

// TestProcessStops sends real signals to this process, which main would receive in the same way.
func TestProcessStops(t *testing.T) {
	guard := make(chan os.Signal, 4) // the process must survive should the listener be late
	signal.Notify(guard, syscall.SIGTERM)
	defer signal.Stop(guard)
	stop, cut, release := withSignals()
	defer release()
	for _, ended := range []context.Context{stop, cut} {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ended.Done():
		case <-t.Context().Done():
			t.Fatal("the signal is not heard")
		}
	}
}

func TestWriteModel(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	if got := runWith(nil, "sim", "--write-model", dir); got.code != exitOK || got.stdout != "wrote the built-in model to "+dir+"\n" {
		t.Fatalf("%+v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err != nil {
		t.Fatal(err)
	}
}

func TestSimFlags(t *testing.T) {
	got, err := parseSim(nil, environment{}.lookup)
	if err != nil {
		t.Fatal(err)
	}
	e := got.Engine
	if e.Model != "" || e.ServedName != "remora-tiny" || e.BlockSize != 16 || e.Blocks != 1024 || e.MaxModelLen != 0 || e.MaxSeqs != 64 ||
		e.StepTime != 10*time.Millisecond || e.PrefillTokensPerStep != 0 || e.Lease != 30*time.Second || e.Seed != 0 ||
		got.Host != "127.0.0.1" || got.GRPCPort != 50051 || got.HTTPPort != 0 || got.SidePort != 0 {
		t.Fatalf("defaults: %+v", got)
	}
	got, err = parseSim(strings.Fields("--model-path /m --model a --host ::1 --grpc-port 0 --http-port 1 --side-channel-port 2 --block-size 32 "+
		"--num-blocks 9 --max-model-len 100 --max-num-seqs 3 --step-time 1ms --prefill-tokens-per-step 5 --lease 12s --seed 18446744073709551615"),
		environment{"DYN_LOGGING_JSONL": "true"}.lookup)
	if err != nil {
		t.Fatal(err)
	}
	e = got.Engine
	if e.Model != "/m" || e.ServedName != "a" || e.BlockSize != 32 || e.Blocks != 9 || e.MaxModelLen != 100 || e.MaxSeqs != 3 ||
		e.StepTime != time.Millisecond || e.PrefillTokensPerStep != 5 || e.Lease != 12*time.Second || e.Seed != 1<<64-1 ||
		got.Host != "::1" || got.GRPCPort != 0 || got.HTTPPort != 1 || got.SidePort != 2 || got.Log.Format != logging.JSONL {
		t.Fatalf("all set: %+v", got)
	}
	for _, bad := range []string{"--block-size=0", "--num-blocks=1", "--step-time=5", "--step-time=-1ms", "--step-time=0s", "--lease=x", "--seed=-1", "--max-num-seqs=0", "extra"} {
		if _, err = parseSim([]string{bad}, environment{}.lookup); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestUpFlags(t *testing.T) {
	for args, want := range map[string]upConfig{
		"": {Host: "127.0.0.1", Port: 8000, StepTime: 10 * time.Millisecond},
		"--port=0 --aggregated --host 0.0.0.0 --step-time 5ms": {Host: "0.0.0.0", Aggregated: true, StepTime: 5 * time.Millisecond},
	} {
		got, err := parseUp(strings.Fields(args), environment{}.lookup)
		if err != nil {
			t.Fatal(err)
		}
		got.Log = want.Log
		if got.Host != want.Host || got.Port != want.Port || got.Aggregated != want.Aggregated || got.StepTime != want.StepTime {
			t.Errorf("%s: got %+v", args, got)
		}
	}
}

func TestLogFormatPrecedence(t *testing.T) {
	got, err := parseUp(nil, environment{"DYN_LOGGING_JSONL": "1", "DYN_LOGGING_CONSOLE_FORMAT": "readable"}.lookup)
	if err != nil || got.Log.Format != logging.Readable {
		t.Fatalf("%+v, %v", got, err)
	}
}

// announced receives what a command prints, line by line.
type announced chan string

func (a announced) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		a <- strings.TrimSuffix(line, "\n")
	}
	return len(text), nil
}

func TestSimRunsUntilStopped(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	stop, stopNow := context.WithCancel(t.Context())
	defer stopNow()
	out := make(announced, 16)
	code := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		code <- run(stop, t.Context(), system{args: []string{"sim", "--grpc-port=0"}, lookup: environment{}.lookup, stdout: out, stderr: &stderr})
	}()
	at := map[string]string{}
	for range 4 {
		select {
		case line := <-out:
			key, value, _ := strings.Cut(line, " ")
			at[key] = value
		case c := <-code:
			t.Fatalf("ended with code %d: %s", c, &stderr)
		}
	}
	if _, err := os.Stat(filepath.Join(at["model"], "config.json")); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"grpc", "http", "side-channel"} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", at[key])
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		if err = conn.Close(); err != nil {
			t.Error(err)
		}
	}
	stopNow()
	if c := <-code; c != exitOK {
		t.Fatalf("a stop ends with code %d: %s", c, &stderr)
	}
}

func TestSimPortTaken(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	port := listening(t, "127.0.0.1:0")
	got := runWith(nil, "sim", "--grpc-port=0", "--http-port="+port)
	if got.code != exitFailed || !strings.HasPrefix(got.stderr, "remora sim: --http-port: listen tcp 127.0.0.1:"+port) {
		t.Fatalf("%+v", got)
	}
}

func TestSimRefusesSizes(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	got := runWith(nil, "sim", "--grpc-port=0", "--num-blocks=4", "--max-model-len=1000")
	if got.code != exitFailed || !strings.HasPrefix(got.stderr, "remora sim: ") || strings.Count(got.stderr, "\n") != 1 {
		t.Fatalf("%+v", got)
	}
}
