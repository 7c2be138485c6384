package main

import (
	"context"
	"time"

	"remora/cmd/remora/internal/flags"
	"remora/cmd/remora/internal/logging"
)

// upConfig is all that the small deployment is told.
type upConfig struct {
	Host       string
	Port       uint16        // of the front door; 0: any
	Aggregated bool          // one engine instead of a prefill and a decode engine
	StepTime   time.Duration // of the simulated engines

	Log logging.Options
}

// up is the command: it runs engines, sidecars and a front door until it is told to stop.
func up(stop, cut context.Context, sys system) error {
	config, err := parseUp(sys.args, sys.lookup)
	if err != nil {
		return err
	}
	return runUp(stop, cut, config, sys.stdout, logging.New(sys.stderr, config.Log))
}

func parseUp(args []string, lookup func(string) (string, bool)) (upConfig, error) {
	var config upConfig
	var log logSettings
	from, err := upTable(&config, &log).Parse(args, lookup)
	if err != nil {
		return upConfig{}, err //nolint:wrapcheck // conclude tells the kinds apart
	}
	config.Log = log.options(from)
	return config, nil
}

func upHelp() *flags.Set { return upTable(new(upConfig), new(logSettings)) }

func upTable(c *upConfig, log *logSettings) *flags.Set {
	return &flags.Set{
		Command: "remora up",
		Summary: "Run everything on this machine in one process: simulated engines, a sidecar for each, and a front door with OpenAI's " +
			"HTTP API. For trying, developing and testing.",
		Groups: []flags.Group{
			{Title: "Options", Flags: []flags.Flag{
				{Name: "port", Default: "8000", Value: port(&c.Port), Help: "Port of the front door; 0 takes any."},
				{Name: "host", Default: "127.0.0.1", Value: flags.Text(&c.Host), Help: "Host or address of the front door. It has no authentication: think before you open it to a network."},
				{Name: "aggregated", Value: flags.Switch(&c.Aggregated), Help: "One engine that does everything, instead of a prefill and a decode engine."},
				{Name: "step-time", Default: "10ms", Value: duration(&c.StepTime), Help: "How long a step of the engines takes: each gives every running request a token."},
			}},
			{Title: "Logging", Variables: log.variables()},
		},
	}
}
