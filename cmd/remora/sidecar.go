package main

import (
	"context"
	"os/signal"
	"syscall"

	"remora/cmd/remora/internal/flags"
	"remora/cmd/remora/internal/logging"
)

// sidecar is the command: it reads its configuration, makes the logger and runs the worker until it is told to stop.
func sidecar(stop, cut context.Context, sys system) error {
	config, err := parseSidecar(sys.args, sys.lookup)
	if err != nil {
		return err
	}
	// The reader of the log may go, with the program at the other end of its pipe. Without this the next line would kill the
	// process, and with it every answer and every hand-off under way; so it is lost, and the worker goes on.
	signal.Ignore(syscall.SIGPIPE)
	log := logging.New(sys.stderr, config.Log)
	for _, n := range config.Notices {
		log.WarnContext(stop, n)
	}
	return runSidecar(stop, cut, config, log)
}

func sidecarHelp() *flags.Set { return new(sidecarFlags).table() }
