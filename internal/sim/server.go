package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"remora/internal/sim/core"
	pb "remora/proto/vllm"
)

// stopGrace bounds how long open connections are waited for when the server stops.
const stopGrace = 2 * time.Second

// Server is one simulated engine. Make it with New and start it with Run.
type Server struct {
	cfg        Config // set once
	instanceID string // set once
	loop       *loop
	health     *healthServer
	faults     *faultSet
	stopping   chan struct{} // closed by Run when its context ends
	used       atomic.Bool
	address    address  // set once by Run, before anything is served
	fetch      *fetcher // set once by Run; nil without a side channel
}

// Listeners are where an engine is reached. Run closes them. HTTP may be nil. Without a side channel the engine has no
// connector: hand-off parameters are ignored.
type Listeners struct {
	GRPC, HTTP, SideChannel net.Listener
}

// New makes an engine. Nothing runs yet.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	engine, err := core.New(cfg.core())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	stopping := make(chan struct{})
	health := newHealth(stopping)
	s := &Server{
		cfg:        cfg,
		instanceID: strconv.FormatUint(randomUint64()>>1, 10),
		loop:       newLoop(engine, cfg.StepTime, health.Shutdown),
		health:     health,
		faults:     newFaultSet(),
		stopping:   stopping,
	}
	for _, f := range cfg.Faults {
		s.apply(f, true)
	}
	return s, nil
}

// EngineID is the name of this engine in hand-offs.
func (s *Server) EngineID() string { return s.cfg.EngineID }

// Stats describes the engine as it was after its last step or call.
func (s *Server) Stats() core.Stats { return s.loop.snapshot() }

// connector says whether this engine takes part in hand-offs.
func (s *Server) connector() bool { return s.fetch != nil }

// Run serves until the context ends (nil), a listener fails, or the engine has been dead for a while (ErrEngineDead).
func (s *Server) Run(ctx context.Context, l Listeners) error {
	if l.GRPC == nil {
		return fmt.Errorf("%w: no gRPC listener", ErrConfig)
	}
	if s.used.Swap(true) {
		return ErrUsed
	}
	// The loop outlives the servers, so that their handlers always find it.
	loopCtx, stopLoop := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLoop()
	group, ctx := errgroup.WithContext(ctx)

	if l.SideChannel != nil {
		s.address = s.reachedAt(l.SideChannel.Addr())
		s.fetch = newFetcher(loopCtx, s.cfg, s.loop, s.faults)
		s.loop.fetch = s.fetch
		give := newGiver(s.cfg, s.loop)
		group.Go(func() error { return give.serve(ctx, l.SideChannel) })
	}
	server := s.grpcServer()
	group.Go(func() error {
		if err := server.Serve(l.GRPC); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("sim: grpc: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		s.health.Shutdown()
		close(s.stopping)
		stopServer(server)
		return nil
	})
	if l.HTTP != nil {
		s.runHTTP(ctx, group, l.HTTP)
	}
	group.Go(func() error { return s.watchDeath(ctx) })

	var loopDone sync.WaitGroup
	loopDone.Go(func() { s.loop.run(loopCtx) })
	err := group.Wait()
	stopLoop()
	loopDone.Wait()
	if s.fetch != nil {
		s.fetch.wait()
	}
	return err
}

func (s *Server) grpcServer() *grpc.Server {
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(hardRequestBytes),
		// The real server has no policy against pings.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Millisecond, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Hour, Timeout: 20 * time.Second}),
		grpc.WaitForHandlers(true),
	)
	pb.RegisterInferenceServer(server, &inference{s: s})
	pb.RegisterControlServer(server, &control{s: s})
	healthpb.RegisterHealthServer(server, s.health)
	return server
}

// stopServer sends GOAWAY, waits for the handlers, which end by themselves, and cuts what is left after the grace.
func stopServer(server *grpc.Server) {
	cut := time.AfterFunc(stopGrace, server.Stop)
	server.GracefulStop()
	cut.Stop()
}

func (s *Server) runHTTP(ctx context.Context, group *errgroup.Group, l net.Listener) {
	server := s.httpServer()
	group.Go(func() error {
		if err := server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("sim: http: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		if err := server.Close(); err != nil {
			return fmt.Errorf("sim: http: %w", err)
		}
		return nil
	})
}

// watchDeath ends the server some time after its engine has died.
func (s *Server) watchDeath(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.loop.died:
	}
	s.cfg.Log.Error("engine core died")
	timer := time.NewTimer(s.cfg.DeathLinger)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-timer.C:
		return ErrEngineDead
	}
}

// reachedAt says where other engines find this one's side channel.
func (s *Server) reachedAt(addr net.Addr) address {
	a := address{host: s.cfg.SideChannelHost, port: s.cfg.SideChannelPort}
	if tcp, ok := addr.(*net.TCPAddr); ok {
		setDefault(&a.port, tcp.Port)
		if tcp.IP.IsUnspecified() {
			setDefault(&a.host, "127.0.0.1")
		}
		setDefault(&a.host, tcp.IP.String())
	}
	return a
}
