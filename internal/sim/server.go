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

	pb "remora/proto/vllm"

	"remora/internal/sleep"
)

// stopGrace bounds how long open connections are waited for when the server stops.
const stopGrace = 2 * time.Second

// Server is one simulated engine. Make it with New and start it with Run.
type Server struct {
	cfg         Config  // set once
	instanceID  string  // set once
	ranks       []*rank // set once; the local ones, lowest first
	health      *healthServer
	faults      *faultSet
	stopping    chan struct{} // closed by Run when its context ends
	died        chan struct{} // closed by the first rank that dies
	deathOnce   sync.Once
	restart     chan struct{} // closed by Restart
	restartOnce sync.Once
	used        atomic.Bool
	placing     sync.Mutex // held while a rank is chosen
}

// Listeners are where an engine is reached. Run closes them. HTTP may be nil. There is one side channel for each local rank,
// lowest first; without any the engine has no connector: hand-off parameters are ignored.
type Listeners struct {
	GRPC, HTTP   net.Listener
	SideChannels []net.Listener
}

// New makes an engine. Nothing runs yet.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	stopping := make(chan struct{})
	s := &Server{
		cfg:        cfg,
		instanceID: strconv.FormatUint(randomUint64()>>1, 10),
		health:     newHealth(stopping),
		faults:     newFaultSet(),
		stopping:   stopping,
		died:       make(chan struct{}),
		restart:    make(chan struct{}),
	}
	for i := range cfg.DataParallelSizeLocal {
		r, err := newRank(cfg, i, s.onDeath)
		if err != nil {
			return nil, err
		}
		s.ranks = append(s.ranks, r)
	}
	for _, f := range cfg.Faults {
		s.faults.set(f, always)
		s.applyServer(f, true)
		for _, r := range s.ranks {
			r.apply(f, true)
		}
	}
	return s, nil
}

// onDeath is called by the loop of a rank that has died, before any stream learns of it.
func (s *Server) onDeath() {
	s.health.Shutdown()
	s.deathOnce.Do(func() { close(s.died) })
}

// connector says whether this engine takes part in hand-offs.
func (s *Server) connector() bool { return s.ranks[0].fetch != nil }

// Run serves until the context ends (nil), a listener fails, the engine has been dead for a while (ErrEngineDead), or Restart
// was called (ErrRestart).
func (s *Server) Run(ctx context.Context, l Listeners) error {
	if l.GRPC == nil {
		return fmt.Errorf("%w: no gRPC listener", ErrConfig)
	}
	if n := len(l.SideChannels); n != 0 && n != len(s.ranks) {
		return fmt.Errorf("%w: %d side channels for %d ranks", ErrConfig, n, len(s.ranks))
	}
	if s.used.Swap(true) {
		return ErrUsed
	}
	if err := s.Listen(); err != nil {
		return err
	}
	defer s.closeEvents()
	// The loops outlive the servers, so that their handlers always find them.
	loopCtx, stopLoop := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLoop()
	group, ctx := errgroup.WithContext(ctx)

	for i, side := range l.SideChannels {
		r := s.ranks[i]
		r.address = r.reachedAt(side.Addr())
		r.fetch = newFetcher(loopCtx, r.cfg, r.loop, s.faults)
		r.loop.fetch = r.fetch
		give := newGiver(r.cfg, r.loop)
		group.Go(func() error { return give.serve(ctx, side) })
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
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-s.restart:
			return ErrRestart
		}
	})

	var loops sync.WaitGroup
	for _, r := range s.ranks {
		loops.Go(func() { r.loop.run(loopCtx) })
	}
	err := group.Wait()
	stopLoop()
	loops.Wait()
	for _, r := range s.ranks {
		if r.fetch != nil {
			r.fetch.wait()
		}
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
	case <-s.died:
	}
	s.cfg.Log.Error("engine core died")
	for _, r := range s.ranks { // they do not live without each other
		if r.loop.call(ctx, r.loop.engine.Kill) != nil {
			return nil //nolint:nilerr // the server stops
		}
	}
	if sleep.For(ctx, s.cfg.DeathLinger) {
		return ErrEngineDead
	}
	return nil
}
