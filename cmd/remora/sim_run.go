package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"remora/internal/sim"
	"remora/internal/tinymodel"
)

// runSim serves until stop ends; the engine then takes two seconds at most. cut ends stop too and needs no watching.
func runSim(stop context.Context, config simConfig, stdout io.Writer) error {
	if config.Engine.Model == "" {
		// One folder for all simulators of a user, and it stays: engines of a pair must name the same model, and frontends
		// read the files when they please.
		config.Engine.Model = filepath.Join(os.TempDir(), fmt.Sprintf("remora-tiny-%d", os.Getuid()))
		if err := tinymodel.Write(config.Engine.Model); err != nil {
			return err //nolint:wrapcheck // it names its stage
		}
	}
	server, err := sim.New(config.Engine)
	if err != nil {
		return err //nolint:wrapcheck // it names its stage
	}
	listeners, err := listenSim(stop, config)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "model %s\ngrpc %s\nhttp %s\nside-channel %s\n", config.Engine.Model,
		listeners.GRPC.Addr(), listeners.HTTP.Addr(), listeners.SideChannel.Addr())
	return server.Run(stop, listeners) //nolint:wrapcheck // it names its stage
}

// listenSim opens all three listeners, or none.
func listenSim(ctx context.Context, config simConfig) (sim.Listeners, error) {
	var opened []net.Listener
	for _, p := range []struct {
		flag string
		port uint16
	}{{"--grpc-port", config.GRPCPort}, {"--http-port", config.HTTPPort}, {"--side-channel-port", config.SidePort}} {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(config.Host, strconv.Itoa(int(p.port))))
		if err != nil {
			for _, o := range opened {
				err = errors.Join(err, o.Close())
			}
			return sim.Listeners{}, fmt.Errorf("%s: %w", p.flag, err)
		}
		opened = append(opened, l)
	}
	return sim.Listeners{GRPC: opened[0], HTTP: opened[1], SideChannel: opened[2]}, nil
}
