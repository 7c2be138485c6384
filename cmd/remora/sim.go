package main

import (
	"context"
	"fmt"
	"math"
	"strings"

	"remora/cmd/remora/internal/flags"
	"remora/cmd/remora/internal/logging"
	"remora/internal/sim"
	"remora/internal/sim/kvpub"
	"remora/internal/tinymodel"
)

// simConfig is all that a simulated engine is told.
type simConfig struct {
	Engine     sim.Config // Model is empty when the built-in model is to be written out
	WriteModel string     // a folder to write the built-in model to, and be done; usually empty

	Host                         string
	GRPCPort, HTTPPort, SidePort uint16 // 0: any

	sides []uint16 // ports of the side channels, by local rank; set by listenSim

	Log logging.Options
}

// simulate is the command: it runs one simulated engine until it is told to stop.
func simulate(stop, _ context.Context, sys system) error {
	config, err := parseSim(sys.args, sys.lookup)
	if err != nil {
		return err
	}
	if config.WriteModel != "" {
		if err = tinymodel.Write(config.WriteModel); err != nil {
			return err //nolint:wrapcheck // it names its stage
		}
		fmt.Fprintln(sys.stdout, "wrote the built-in model to", config.WriteModel)
		return nil
	}
	config.Engine.Log = logging.New(sys.stderr, config.Log)
	return runSim(stop, config, sys.stdout)
}

func parseSim(args []string, lookup func(string) (string, bool)) (simConfig, error) {
	var config simConfig
	var log logSettings
	from, err := simTable(&config, &log).Parse(args, lookup)
	if err != nil {
		return simConfig{}, err //nolint:wrapcheck // conclude tells the kinds apart
	}
	config.Log = log.options(from)
	return config, nil
}

func simHelp() *flags.Set { return simTable(new(simConfig), new(logSettings)) }

func simTable(c *simConfig, log *logSettings) *flags.Set {
	size := func(dst *int, least int) flags.Value { return flags.Number(dst, least, math.MaxInt32) }
	e := &c.Engine
	return &flags.Set{
		Command: "remora sim",
		Summary: "Run a CPU stand-in for a vLLM engine: the same gRPC services, a KV block pool with prefix cache, and the hand-off of " +
			"KV caches between two of them. Its text is computed from the KV it really holds and means nothing.",
		Groups: []flags.Group{
			{Title: "Options", Flags: []flags.Flag{
				{Name: "model-path", Value: flags.Text(&e.Model), Help: "A model folder to serve instead of the built-in model, which is written to the folder for temporary files. The tokens are those of the built-in model all the same."},
				{Name: "model", Default: "remora-tiny", Value: flags.Text(&e.ServedName), Help: "The name that the model is served by."},
				{Name: "write-model", Value: flags.Text(&c.WriteModel), Help: "Write the built-in model to this folder and end."},
				{Name: "host", Default: "127.0.0.1", Value: host(&c.Host), Help: "Host or address to listen on."},
				{Name: "grpc-port", Default: "50051", Value: port(&c.GRPCPort), Help: "Port of the gRPC services; 0 takes any."},
				{Name: "http-port", Default: "0", Value: port(&c.HTTPPort), Help: "Port of /health and /metrics; 0 takes any."},
				{Name: "side-channel-port", Default: "0", Value: port(&c.SidePort), Help: "Port at which other engines fetch KV caches, of rank 0; the other ranks add their number. 0 takes any."},
				{Name: "block-size", Default: "16", Value: size(&e.BlockSize, 1), Help: "Tokens of a KV block."},
				{Name: "num-blocks", Default: "1024", Value: size(&e.Blocks, 2), Help: "KV blocks, of which one is never used."},
				{Name: "max-model-len", Value: size(&e.MaxModelLen, 2), Help: "Tokens of a prompt and its answer together. Without it, what the model and the blocks allow."},
				{Name: "max-num-seqs", Default: "64", Value: size(&e.MaxSeqs, 1), Help: "Requests that run at once."},
				{Name: "step-time", Default: "10ms", Value: duration(&e.StepTime), Help: "How long a step takes: each gives every running request a token."},
				{Name: "prefill-tokens-per-step", Value: size(&e.PrefillTokensPerStep, 1), Help: "Prompt tokens that a step takes in. Without it, all that a step has room for."},
				{Name: "lease", Default: "30s", Value: duration(&e.Lease), Help: "How long a finished prefill's blocks are held for a decode engine."},
				{Name: "data-parallel-size", Default: "1", Value: size(&e.DataParallelSize, 1), Help: "Data-parallel ranks, each with blocks, cache and scheduler of its own."},
				{Name: "data-parallel-start-rank", Default: "0", Value: size(&e.DataParallelStartRank, 0), Help: "The first rank that is here."},
				{Name: "data-parallel-size-local", Value: size(&e.DataParallelSizeLocal, 1), Help: "The number of ranks that are here. Without it, all from the first one on."},
				{Name: "kv-events-config", Value: eventsConfig(&e.KVEvents), Help: `Where changes of the prefix cache are published, in vLLM's JSON: {"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}. Also publisher, topic, buffer_steps, hwm, max_queue_size. Ports are those of rank 0; * means --host, and port 0 takes any.`},
				{Name: "multimodal", Value: flags.Switch(&e.Multimodal), Help: "Take images, video and audio. They change the text like any other part of the prompt; URLs are not fetched, their text stands for what is there. The built-in model's places for them are <|image_1|>, <|image_2|> and so on."},
				{Name: "hash-seed", Value: flags.Number(&e.HashSeed, 1, math.MaxUint64), Help: "Where block hashes begin, as PYTHONHASHSEED says for a real engine: equal blocks have one name in engines with one seed. Without it every rank has names of its own."},
				{Name: "seed", Default: "0", Value: flags.Number(&e.Seed, 0, math.MaxUint64), Help: "Stands for the weights: engines of a pair need the same."},
			}},
			{Title: "Faults", Flags: []flags.Flag{
				{Name: "faults", Value: faults(&e.Faults), Help: "What the engine does wrong from the start, as older or broken ones do: names separated by commas. They are " + faultNames() +
					". POST /sim/fault?name=NAME&on=true on the HTTP port turns one on or off later; GET /sim/fault lists them. name=events-lost&times=N strikes N times."},
				{Name: "read-delay", Default: "2s", Value: duration(&e.ReadDelay), Help: "How long the fault read-slow makes a transfer wait."},
				{Name: "engine-version", Default: "0.32.0", Value: flags.Text(&e.EngineVersion), Help: "The release that the engine says it is. It changes nothing else; engines of a pair need the same."},
			}},
			{Title: "Logging", Variables: log.variables()},
		},
	}
}

// faults takes names of faults, separated by commas.
func faults(dst *[]sim.Fault) flags.Value {
	return flags.Func(func(text string) error {
		var all []sim.Fault
		for name := range strings.SplitSeq(text, ",") {
			f, err := sim.ParseFault(strings.TrimSpace(name))
			if err != nil {
				return err //nolint:wrapcheck // it says what there is
			}
			all = append(all, f)
		}
		*dst = all
		return nil
	})
}

// eventsConfig takes vLLM's JSON.
func eventsConfig(dst *kvpub.Config) flags.Value {
	return flags.Func(func(text string) error {
		c, err := kvpub.ParseConfig(text)
		if err != nil {
			return err //nolint:wrapcheck // it says all
		}
		*dst = c
		return nil
	})
}

func faultNames() string {
	names := make([]string, 0, len(sim.Faults()))
	for _, f := range sim.Faults() {
		names = append(names, string(f))
	}
	return strings.Join(names, ", ")
}
