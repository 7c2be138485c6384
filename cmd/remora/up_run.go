package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"remora/cmd/remora/internal/logging"
	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/modelcard"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/frontdoor"
	"remora/internal/sim"
	"remora/internal/tinymodel"
	"remora/internal/vllm"
	"remora/internal/worker"
)

// upModel is the name under which the small deployment serves the built-in model.
const upModel = "remora-tiny"

const (
	loopback = "127.0.0.1"
	// upStartLimit bounds how long everything may take to be ready; it takes well under a second.
	upStartLimit = 30 * time.Second
	// upShutdown is what running answers get at a stop.
	upShutdown = 5 * time.Second
)

// deployment is the small deployment in one process. Parts stop in the opposite order of their start: the front door, then the
// workers, then the engines, so that nothing loses its ground while it still has requests.
type deployment struct {
	config upConfig
	log    *slog.Logger
	out    io.Writer
	kv     string // the discovery folder

	engines, workers, door errgroup.Group
	ready                  chan string   // what a worker says when it is registered; one a worker
	failed                 chan struct{} // closed when the first part breaks
	broke                  sync.Once
	models                 func() []string // what the front door can serve now; set by startDoor
}

// runUp serves until stop ends, and at once ends when cut does.
func runUp(stop, cut context.Context, c upConfig, stdout io.Writer, log *slog.Logger) (err error) {
	dir, err := os.MkdirTemp("", "remora-up-")
	if err != nil {
		return fmt.Errorf("make a folder for model and discovery: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	model := filepath.Join(dir, "model")
	if err = tinymodel.Write(model); err != nil {
		return err //nolint:wrapcheck // it names its stage
	}
	door, err := net.Listen("tcp", net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))))
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("the front door can't listen (choose another --port, or 0 for any): %w", err)
	}
	if err != nil {
		return fmt.Errorf("the front door can't listen: %w", err)
	}
	d := &deployment{
		config: c, log: log, out: stdout, kv: filepath.Join(dir, "discovery"), ready: make(chan string, 2), failed: make(chan struct{}),
	}
	return d.run(stop, cut, model, door)
}

// openFiles is how many files the process may have open, connections among them.
func openFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return limit.Cur
}

// doorConnections is how many connections the front door may have with so many open files. The request on each needs two more,
// the ends of its worker's answer, and waits for them with the first one in its hand: what does not fit at once would stand still.
func doorConnections(files uint64) int {
	const others = 160 // about 40 at rest; the parts keep some connections to each other
	return max(8, (int(min(files, 30_000))-others)/3)
}

func (d *deployment) run(stop, cut context.Context, model string, door net.Listener) error {
	roles := []protocol.Role{protocol.Prefill, protocol.Decode}
	if d.config.Aggregated {
		roles = []protocol.Role{protocol.Aggregated}
	}
	enginesCtx, stopEngines := context.WithCancel(context.Background())
	workersCtx, stopWorkers := context.WithCancel(context.Background())
	doorCtx, stopDoor := context.WithCancel(context.Background())
	defer stopEngines()
	defer stopWorkers()
	defer stopDoor()

	began := time.Now()
	err := func() error {
		for _, role := range roles {
			endpoint, err := d.startEngine(enginesCtx, role, model)
			if err != nil {
				return err
			}
			if err := d.startWorker(workersCtx, cut, role, endpoint); err != nil {
				return err
			}
		}
		return d.startDoor(doorCtx, cut, door)
	}()
	if err != nil {
		_ = door.Close()
	} else {
		err = d.serve(stop, roles, door.Addr(), began)
	}

	// Each wait is bounded by the part itself; a cut ends the workers at once and with them what the others wait for.
	stopDoor()
	err = errors.Join(err, d.door.Wait())
	stopWorkers()
	err = errors.Join(err, d.workers.Wait())
	stopEngines()
	return errors.Join(err, d.engines.Wait())
}

// part runs one part; the first that fails ends the deployment.
func (d *deployment) part(group *errgroup.Group, name string, run func() error) {
	group.Go(func() error {
		err := run()
		if err == nil {
			return nil
		}
		err = fmt.Errorf("%s: %w", name, err)
		d.broke.Do(func() { close(d.failed) })
		return err
	})
}

// startEngine runs one simulated engine and returns its gRPC address.
func (d *deployment) startEngine(ctx context.Context, role protocol.Role, model string) (string, error) {
	config := sim.Config{
		Model: model, ServedName: upModel, StepTime: d.config.StepTime, Log: d.log.With(logging.TargetKey, "remora::sim"),
		DataParallelSize: d.config.Ranks.Size, DataParallelStartRank: d.config.Ranks.Start, DataParallelSizeLocal: d.config.Ranks.Local,
	}
	server, err := sim.New(config)
	if err != nil {
		return "", err //nolint:wrapcheck // it names its stage
	}
	_, local := config.LocalRanks()
	l := sim.Listeners{SideChannels: make([]net.Listener, local)}
	into := []*net.Listener{&l.GRPC, &l.HTTP}
	for i := range l.SideChannels {
		into = append(into, &l.SideChannels[i])
	}
	for _, listener := range into {
		if *listener, err = net.Listen("tcp", net.JoinHostPort(loopback, "0")); err != nil {
			return "", fmt.Errorf("listen for the %s engine: %w", role, err)
		}
	}
	endpoint := l.GRPC.Addr().String()
	fmt.Fprintf(d.out, "%-10s engine   gRPC %s, metrics http://%s/metrics\n", role, endpoint, l.HTTP.Addr())
	d.part(&d.engines, role.String()+" engine", func() error { return server.Run(ctx, l) })
	return endpoint, nil
}

// startWorker runs the sidecar of one engine.
func (d *deployment) startWorker(stop, cut context.Context, role protocol.Role, engine string) error {
	endpoint, err := vllm.ParseEndpoint(engine)
	if err != nil {
		return err //nolint:wrapcheck // it says all
	}
	log := d.log.With(logging.TargetKey, "remora::worker", "worker", role.String())
	store, err := discovery.OpenFile(d.kv, log)
	if err != nil {
		return err //nolint:wrapcheck // it says all
	}
	component := "backend"
	if role == protocol.Prefill {
		component = "prefill"
	}
	cfg := worker.Config{
		Role: role, Address: discovery.Address{Namespace: "dynamo", Component: component, Endpoint: "generate"},
		EndpointTypes: modelcard.Chat | modelcard.Completions, Codec: protocol.MsgPack, DeviceType: discovery.DeviceCPU,
		Engine: vllm.Config{Endpoint: endpoint, Connections: 1, Log: log}, StartupDeadline: upStartLimit,
		Store: store, Host: loopback, ShutdownTimeout: upShutdown, Log: log,
		OnReady: func(r worker.Ready) {
			d.ready <- fmt.Sprintf("%-10s worker   %s, instance %x", role, r.Address, r.InstanceID)
		},
	}
	d.part(&d.workers, role.String()+" worker", func() error { return worker.Run(stop, cut, cfg) })
	return nil
}

// startDoor runs the front door and its side of the request plane.
func (d *deployment) startDoor(stop, cut context.Context, listener net.Listener) error {
	log := d.log.With(logging.TargetKey, "remora::frontdoor")
	store, err := discovery.OpenFile(d.kv, log)
	if err != nil {
		return err //nolint:wrapcheck // it says all
	}
	answers, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return errors.Join(fmt.Errorf("listen for the workers' answers: %w", err), store.Close(stop))
	}
	responses := requestplane.NewResponseServer(answers, requestplane.ResponseServerConfig{Logger: log})
	client := new(requestplane.Client)
	server := frontdoor.New(frontdoor.Config{
		Store: store, Plane: frontdoor.NewPlane(client, responses), Model: frontdoor.TinyModel{}, Log: log, ShutdownTime: upShutdown,
		MaxConnections: doorConnections(openFiles()),
	})
	d.models = server.Models
	d.part(&d.door, "answers", responses.Serve)
	d.part(&d.door, "front door", func() error {
		err := server.Run(stop, cut, listener)
		client.Close()
		responses.Close()
		return errors.Join(err, store.Close(context.WithoutCancel(stop)))
	})
	return nil
}

// caller is the address at which this machine's clients find a listener; one on every address names none.
func caller(listener net.Addr) string {
	at, err := netip.ParseAddrPort(listener.String())
	if err != nil || !at.Addr().IsUnspecified() {
		return listener.String()
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port()).String()
}

// serve says when everything is ready and how to use it, and waits for the end.
func (d *deployment) serve(stop context.Context, roles []protocol.Role, door net.Addr, began time.Time) error {
	limit := time.NewTimer(upStartLimit)
	defer limit.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for registered := 0; registered < len(roles) || len(d.models()) == 0; {
		select {
		case line := <-d.ready:
			registered++
			fmt.Fprintln(d.out, line)
		case <-look.C:
		case <-stop.Done():
			return nil
		case <-d.failed:
			return nil // the part's own error is reported by its group
		case <-limit.C:
			return fmt.Errorf("not ready within %v", upStartLimit)
		}
	}
	fmt.Fprintf(d.out, "front door            http://%s, ready after %v\n\n"+
		"curl -N http://%s/v1/chat/completions -H 'Content-Type: application/json' \\\n"+
		"  -d '{\"model\":\"%s\",\"stream\":true,\"max_tokens\":40,\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}'\n\n"+
		"Ctrl-C ends it all.\n", caller(door), time.Since(began).Round(time.Millisecond), caller(door), upModel)
	select {
	case <-stop.Done():
	case <-d.failed:
	}
	return nil
}
