package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"remora/internal/sim"
	"remora/internal/tinymodel"
)

// runSim serves until stop ends; the engine then takes two seconds at most. cut ends stop too and needs no watching. An engine
// that is told to restart is followed by another one at the same addresses.
func runSim(stop context.Context, config simConfig, stdout io.Writer) error {
	if config.Engine.Model == "" {
		// One folder for all simulators of a user, and it stays: engines of a pair must name the same model, and frontends
		// read the files when they please.
		config.Engine.Model = filepath.Join(os.TempDir(), fmt.Sprintf("remora-tiny-%d", os.Getuid()))
		if err := tinymodel.Write(config.Engine.Model); err != nil {
			return err //nolint:wrapcheck // it names its stage
		}
	}
	if info, err := os.Stat(config.Engine.Model); err != nil || !info.IsDir() {
		return refusal("--model-path " + config.Engine.Model + " is no folder: set it to a model's, or leave it out for the built-in model")
	}
	config.Engine.EventsHost = config.Host
	for {
		server, err := sim.New(config.Engine)
		if err != nil {
			return err //nolint:wrapcheck // it names its stage
		}
		listeners, err := listenSim(stop, &config)
		if err != nil {
			return err
		}
		if err := server.Listen(); err != nil {
			return errors.Join(err, closeSim(listeners))
		}
		announceSim(stdout, config.Engine.Model, listeners, server.EventSources())
		if err := server.Run(stop, listeners); !errors.Is(err, sim.ErrRestart) {
			return err //nolint:wrapcheck // it names its stage
		}
	}
}

// announceSim says where everything is.
func announceSim(out io.Writer, model string, l sim.Listeners, events []sim.EventSource) {
	fmt.Fprintf(out, "model %s\ngrpc %s\nhttp %s\n", model, l.GRPC.Addr(), l.HTTP.Addr())
	for _, side := range l.SideChannels { // one a rank
		fmt.Fprintf(out, "side-channel %s\n", side.Addr())
	}
	for _, e := range events {
		fmt.Fprintf(out, "kv-events rank %d, %s, replay %s\n", e.Rank, e.Endpoint, cmp.Or(e.Replay, "none"))
	}
}

// listenSim opens all listeners, or none. Ports that the system chose are written down: another engine finds them again.
func listenSim(ctx context.Context, config *simConfig) (sim.Listeners, error) {
	var l sim.Listeners
	open := func(flag string, port *uint16, into *net.Listener) error {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(config.Host, strconv.Itoa(int(*port))))
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", flag, err), closeSim(l))
		}
		if at, ok := listener.Addr().(*net.TCPAddr); ok {
			*port = uint16(at.Port)
		}
		*into = listener
		return nil
	}
	if err := open("--grpc-port", &config.GRPCPort, &l.GRPC); err != nil {
		return sim.Listeners{}, err
	}
	if err := open("--http-port", &config.HTTPPort, &l.HTTP); err != nil {
		return sim.Listeners{}, err
	}
	if config.sides == nil {
		var err error
		if config.sides, err = sidePorts(config); err != nil {
			return sim.Listeners{}, errors.Join(err, closeSim(l))
		}
	}
	for i := range config.sides {
		var side net.Listener
		if err := open("--side-channel-port", &config.sides[i], &side); err != nil {
			return sim.Listeners{}, err
		}
		l.SideChannels = append(l.SideChannels, side)
	}
	return l, nil
}

// sidePorts are the ports of the local ranks: that of rank 0 and the number of the rank, or any.
func sidePorts(config *simConfig) ([]uint16, error) {
	first, local := config.Engine.LocalRanks()
	ports := make([]uint16, local)
	for i := range ports {
		if config.SidePort == 0 {
			continue
		}
		port := int(config.SidePort) + first + i
		if port > math.MaxUint16 {
			return nil, fmt.Errorf("--side-channel-port: rank %d would have port %d", first+i, port)
		}
		ports[i] = uint16(port)
	}
	return ports, nil
}

func closeSim(l sim.Listeners) error {
	var err error
	for _, o := range append([]net.Listener{l.GRPC, l.HTTP}, l.SideChannels...) {
		if o != nil {
			err = errors.Join(err, o.Close())
		}
	}
	return err
}
