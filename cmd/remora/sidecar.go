package main

import (
	"context"

	"remora/cmd/remora/internal/flags"
	"remora/cmd/remora/internal/logging"
)

// sidecar is the command: it reads its configuration, makes the logger and runs the worker until it is told to stop.
func sidecar(stop, cut context.Context, sys system) error {
	config, err := parseSidecar(sys.args, sys.lookup)
	if err != nil {
		return err
	}
	log := logging.New(sys.stderr, config.Log)
	for _, n := range config.Notices {
		log.WarnContext(stop, n)
	}
	return runSidecar(stop, cut, config, log)
}

func sidecarHelp() *flags.Set { return new(sidecarFlags).table() }
