package vllmtest

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"remora/internal/memnet"

	pb "remora/proto/vllm"
)

// Address is the address that an in-memory engine goes by; Dial ignores what it is asked for.
const Address = "engine.test:50051"

// Names of the health services of a vLLM engine.
const (
	InferenceService = "vllm.Inference"
	ControlService   = "vllm.Control"
)

// Behaviour is what the engine does; change it with Engine.Set.
type Behaviour struct {
	// Script returns the steps of a request. Nil: Answer(3).
	Script func(request *pb.GenerateRequest) []Step
	// Model and Server answer discovery; DefaultModel and DefaultServer at first.
	Model  *pb.ModelInfo
	Server *pb.ServerInfo
	// Sources are where KV events are published, as GetKvEventSources tells it.
	Sources []*pb.KvEventSource
	// Control, when not nil, runs before every Control call (also Abort) with the method's short name; an error is the
	// answer. It may block.
	Control func(ctx context.Context, method string) error
	// Deaf makes Abort answer OK and do nothing, as an engine does with an id it has not registered yet.
	Deaf bool
}

// Engine is the stand-in. Its methods may be called from any goroutine.
type Engine struct {
	pb.UnimplementedInferenceServer
	pb.UnimplementedControlServer

	health  *health.Server
	noCheck bool          // set once
	noWatch bool          // set once
	down    bool          // set once; start refusing
	closing chan struct{} // closed by Close
	port    *port
	ice     ice
	servers sync.WaitGroup // goroutines of Serve and GracefulStop

	deafHealth atomic.Bool

	mu        sync.Mutex
	behaviour Behaviour                 // guarded by mu
	scripts   map[string][]Step         // guarded by mu
	calls     map[string]map[*Call]bool // guarded by mu; running handlers by request id
	events    []Event                   // guarded by mu
	changed   chan struct{}             // guarded by mu; closed and replaced by record
	server    *grpc.Server              // guarded by mu
	old       []*grpc.Server            // guarded by mu; servers that GoAway retired
	closed    bool                      // guarded by mu
}

// Option changes how New makes an engine.
type Option func(e *Engine)

// WithoutHealth leaves the health service out, as a server that is no vLLM may.
func WithoutHealth() Option { return func(e *Engine) { e.noCheck = true } }

// WithoutWatch makes Health.Watch UNIMPLEMENTED, as simple servers leave it.
func WithoutWatch() Option { return func(e *Engine) { e.noWatch = true } }

// Down makes an engine that refuses connections until Up is called.
func Down() Option { return func(e *Engine) { e.down = true } }

// New starts an engine and registers its end with t.Cleanup.
func New(tb testing.TB, options ...Option) *Engine {
	tb.Helper()
	e := &Engine{
		health:  health.NewServer(),
		closing: make(chan struct{}),
		port:    &port{open: make(map[net.Conn]bool)},
		scripts: make(map[string][]Step),
		calls:   make(map[string]map[*Call]bool),
		changed: make(chan struct{}),
	}
	e.behaviour = Behaviour{Model: DefaultModel(), Server: DefaultServer()}
	e.SetAllHealth(healthpb.HealthCheckResponse_SERVING)
	for _, option := range options {
		option(e)
	}
	if !e.down {
		e.Up()
	}
	tb.Cleanup(e.Close)
	return e
}

// DefaultModel is what a small engine tells of its model.
func DefaultModel() *pb.ModelInfo {
	return &pb.ModelInfo{
		ModelId: "/models/tiny", ServedModelName: "tiny",
		SupportsTextInput: true, SupportsTokenIdsInput: true,
	}
}

// DefaultServer is what a small vLLM 0.32.0 tells of itself.
func DefaultServer() *pb.ServerInfo {
	return &pb.ServerInfo{
		EngineVersion: "0.32.0", ApiVersion: "vllm", InstanceId: "1796041382615192848",
		Parallelism: &pb.ParallelismInfo{
			TensorParallelSize: 1, PipelineParallelSize: 1, DataParallelSize: 1,
			DecodeContextParallelSize: 1, WorldSize: 1, DataParallelSizeLocal: 1,
		},
		MaxModelLen: 512, KvBlockSize: 32, TotalKvBlocks: 65, MaxRunningRequests: 4, MaxBatchedTokens: 2048,
		Rl: &pb.RlCapabilities{}, EffectiveAttentionBlockSize: proto.Uint64(32),
	}
}

// Answer is a plain good answer of n tokens with ids from 1 up.
func Answer(n int) []Step {
	steps := []Step{Headers(), func(c *Call) error { return Prompt(len(c.Request.GetTokenIds().GetIds()))(c) }}
	for id := uint32(1); int(id) < n; id++ {
		steps = append(steps, Tokens(id))
	}
	return append(steps, FinishToken(pb.FinishInfo_LENGTH, uint32(n)))
}

// Dial connects to the engine, whatever the address; it has the shape of vllm.Dialer.
func (e *Engine) Dial(ctx context.Context, _ string) (net.Conn, error) { return e.port.dial(ctx) }

// Loopback makes the engine listen on 127.0.0.1 as well and returns host:port. Not for synctest bubbles.
func (e *Engine) Loopback(tb testing.TB) string {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("listen on loopback: %v", err)
	}
	e.mu.Lock()
	e.serveLocked(listener)
	e.mu.Unlock()
	return listener.Addr().String()
}

// Set changes the behaviour of later calls.
func (e *Engine) Set(change func(b *Behaviour)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.behaviour)
}

// Script sets the steps of requests with this id; it goes before Behaviour.Script.
func (e *Engine) Script(id string, steps ...Step) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.scripts[id] = steps
}

// SetDeafHealth keeps health checks from being answered, as an engine does that has no time for them. Watch goes on.
func (e *Engine) SetDeafHealth(deaf bool) { e.deafHealth.Store(deaf) }

// SetHealth sets what the health service says of a service.
func (e *Engine) SetHealth(service string, serving healthpb.HealthCheckResponse_ServingStatus) {
	e.health.SetServingStatus(service, serving)
}

// Connections returns how many in-memory connections are open now and how many were ever made.
func (e *Engine) Connections() (open, made int) { return e.port.counts() }

// SetAllHealth sets what the health service says of all services, which change together in vLLM.
func (e *Engine) SetAllHealth(serving healthpb.HealthCheckResponse_ServingStatus) {
	for _, service := range []string{"", InferenceService, ControlService} {
		e.health.SetServingStatus(service, serving)
	}
}

// Restart puts another process in the engine's place, which tells that instance id, and breaks every connection. No dial is
// refused meanwhile.
func (e *Engine) Restart(instance string) {
	e.mu.Lock()
	server, _ := proto.Clone(e.behaviour.Server).(*pb.ServerInfo)
	server.InstanceId = instance
	e.behaviour.Server = server
	e.freshLocked()
	e.mu.Unlock()
	e.port.kill()
}

// Kill breaks every in-memory connection at once, as a process killed does. New dials succeed.
func (e *Engine) Kill() { e.port.kill() }

// Down breaks every connection and refuses new ones until Up.
func (e *Engine) Down() {
	e.port.setTarget(nil)
	e.port.kill()
}

// Up makes the engine take connections again, with a fresh server.
func (e *Engine) Up() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.freshLocked()
}

// GoAway tells the connected clients to leave (HTTP/2 GOAWAY); their open streams run on. New dials reach a fresh server.
func (e *Engine) GoAway() {
	e.mu.Lock()
	defer e.mu.Unlock()
	retired := e.server
	if e.closed || retired == nil {
		return
	}
	e.freshLocked()
	e.servers.Go(retired.GracefulStop)
}

func (e *Engine) freshLocked() {
	if e.closed {
		return
	}
	if e.server != nil {
		e.old = append(e.old, e.server)
	}
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(32 << 20),
		// vLLM's server (hyper) does not punish pings.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
	e.server = grpc.NewServer(options...)
	pb.RegisterInferenceServer(e.server, e)
	pb.RegisterControlServer(e.server, e)
	if !e.noCheck {
		healthpb.RegisterHealthServer(e.server, recordingHealth{Server: e.health, engine: e})
	}
	listener := memnet.Listen(64 << 10)
	e.serveLocked(listener)
	e.port.setTarget(listener)
}

func (e *Engine) serveLocked(listener net.Listener) {
	server := e.server
	e.servers.Go(func() {
		// The error of Serve is that of the listener which Close closed.
		_ = server.Serve(icyListener{Listener: listener, ice: &e.ice})
	})
}

// Close ends the engine and waits for its goroutines. t.Cleanup calls it; calling it twice is allowed.
func (e *Engine) Close() {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.closed = true
	servers := slices.Clone(e.old)
	if e.server != nil {
		servers = append(servers, e.server)
	}
	e.mu.Unlock()
	close(e.closing)
	e.Down()
	e.health.Shutdown()
	for _, server := range servers {
		server.Stop()
	}
	e.servers.Wait()
}

// GenerateStream runs the request's script.
func (e *Engine) GenerateStream(request *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	call := &Call{Request: request, Metadata: md, engine: e, stream: stream, aborted: make(chan struct{})}
	rank := ""
	if values := md.Get("x-data-parallel-rank"); len(values) > 0 {
		rank = values[0]
	}
	steps := e.begin(call)
	e.record(Event{Kind: Received, ID: call.ID(), Request: request, Rank: rank})
	err := call.run(steps)
	e.end(call)
	if stream.Context().Err() != nil && err != nil {
		e.record(Event{Kind: Dropped, ID: call.ID()})
		return err
	}
	e.record(Event{Kind: Ended, ID: call.ID(), Err: err})
	return err
}

func (c *Call) run(steps []Step) error {
	for _, step := range steps {
		err := step(c)
		if errors.Is(err, errEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) begin(call *Call) []Step {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.calls[call.ID()] == nil {
		e.calls[call.ID()] = make(map[*Call]bool)
	}
	e.calls[call.ID()][call] = true
	if steps, ok := e.scripts[call.ID()]; ok {
		return steps
	}
	if e.behaviour.Script != nil {
		return e.behaviour.Script(call.Request)
	}
	return Answer(3)
}

func (e *Engine) end(call *Call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.calls[call.ID()], call)
	if len(e.calls[call.ID()]) == 0 {
		delete(e.calls, call.ID())
	}
}

// Generate is not scripted: the sidecar never calls it.
func (e *Engine) Generate(context.Context, *pb.GenerateRequest) (*pb.GenerateResponse, error) {
	return nil, status.Error(codes.Unimplemented, "the stand-in only streams")
}
