package main

import (
	"context"
	"math"
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
	// Ranks are the data-parallel ranks of each engine: how many there are, the first one here, how many are here.
	Ranks struct{ Size, Start, Local int }

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
				{Name: "host", Default: "127.0.0.1", Value: host(&c.Host), Help: "Host or address of the front door. It has no authentication: think before you open it to a network."},
				{Name: "aggregated", Value: flags.Switch(&c.Aggregated), Help: "One engine that does everything, instead of a prefill and a decode engine."},
				{Name: "step-time", Default: "10ms", Value: duration(&c.StepTime), Help: "How long a step of the engines takes: each gives every running request a token."},
				{Name: "data-parallel-size", Default: "1", Value: flags.Number(&c.Ranks.Size, 1, math.MaxInt32), Help: "Data-parallel ranks of each engine."},
				{Name: "data-parallel-start-rank", Default: "0", Value: flags.Number(&c.Ranks.Start, 0, math.MaxInt32), Help: "The first rank that is here."},
				{Name: "data-parallel-size-local", Value: flags.Number(&c.Ranks.Local, 1, math.MaxInt32), Help: "The number of ranks that are here. Without it, all from the first one on."},
			}},
			{Title: "Logging", Variables: log.variables()},
		},
	}
}
