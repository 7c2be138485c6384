package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"remora/cmd/remora/internal/flags"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// system is what a process gets from its surroundings.
type system struct {
	args           []string // without the program's name
	lookup         func(name string) (string, bool)
	stdout, stderr io.Writer
}

// command is one word after the program's name. Its run gets the arguments after that word; stop and cut are those of
// withSignals. It returns flags.ErrHelp, a *flags.UsageError or another failure.
type command struct {
	name    string
	summary string
	table   func() *flags.Set
	run     func(stop, cut context.Context, sys system) error
}

// commands are all there are, in the order of the help.
func commands() []command {
	return []command{
		{"sidecar", "Make a vLLM engine a Dynamo worker", sidecarHelp, sidecar},
		{"sim", "Run a CPU stand-in for a vLLM engine", simHelp, simulate},
		{"up", "Run engines, sidecars and a small front door in one process, to try things out", upHelp, up},
		{"version", "Print the version", versionHelp, version},
	}
}

// run finds the command, runs it and turns its outcome into an exit code.
func run(stop, cut context.Context, sys system) int {
	if len(sys.args) == 0 {
		return complain(sys, "error: a command is required\n\n"+overview())
	}
	word := sys.args[0]
	sys.args = sys.args[1:]
	switch word {
	case "-h", "--help", "help":
		return help(sys)
	case "-V", "--version":
		word = "version"
	}
	for _, c := range commands() {
		if c.name == word {
			return conclude(sys, c, c.run(stop, cut, sys))
		}
	}
	return complain(sys, unknown(word))
}

// conclude reports a command's end.
func conclude(sys system, c command, err error) int {
	var usage *flags.UsageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, flags.ErrHelp):
		return say(sys, c.table().Help())
	case errors.As(err, &usage):
		return complain(sys, usage.Report())
	default:
		// One line, whatever the cause's text is: scripts and operators read the last line.
		fmt.Fprintf(sys.stderr, "remora %s: %s\n", c.name, strings.Join(strings.Fields(err.Error()), " "))
		return exitFailed
	}
}

// help prints the overview, or the help of the command that is named.
func help(sys system) int {
	if len(sys.args) > 1 {
		return complain(sys, unknown(sys.args[1]))
	}
	if len(sys.args) == 0 || slices.Contains([]string{"help", "-h", "--help"}, sys.args[0]) {
		return say(sys, overview())
	}
	for _, c := range commands() {
		if c.name == sys.args[0] {
			return say(sys, c.table().Help())
		}
	}
	return complain(sys, unknown(sys.args[0]))
}

// overview is the help of the program itself.
func overview() string {
	var out strings.Builder
	out.WriteString("Remora makes a stock vLLM engine a worker of NVIDIA Dynamo.\n\nUsage: remora <COMMAND> [OPTIONS]\n\nCommands:\n")
	for _, c := range commands() {
		fmt.Fprintf(&out, "  %-8s  %s\n", c.name, c.summary)
	}
	fmt.Fprintf(&out, "  %-8s  %s\n", "help", "Print this help, or that of a command: remora help sidecar")
	out.WriteString("\nEach command explains its flags with --help.\n")
	return out.String()
}

func unknown(word string) string {
	return "error: unrecognized command '" + word + "'\n\n" + overview()
}

// say prints what was asked for. A closed pipe is the reader's business.
func say(sys system, text string) int {
	if _, err := io.WriteString(sys.stdout, text); err != nil && !errors.Is(err, syscall.EPIPE) {
		fmt.Fprintf(sys.stderr, "remora: can't write the answer: %v\n", err)
		return exitFailed
	}
	return exitOK
}

// complain prints why a command line cannot be taken.
func complain(sys system, text string) int {
	_, _ = io.WriteString(sys.stderr, text)
	return exitUsage
}

// refusal is a start that is refused in one sentence: a setting that Remora cannot honour or that makes no sense.
type refusal string

func (r refusal) Error() string { return string(r) }
