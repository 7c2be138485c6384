package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/modelcard"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
	"remora/internal/memnet"
	"remora/internal/sim"
	"remora/internal/vllm"
	serving "remora/internal/worker"
)

// site is a pair of simulated engines behind real workers, and the response server of one frontend, all in memory and in a
// bubble. It is what the storms run through.
type site struct {
	t      *testing.T
	model  string // its folder
	memory discovery.Memory

	mu        sync.Mutex
	listeners map[string]*memnet.Listener // guarded by mu; by address
	legs      map[string]*stormLeg        // guarded by mu; by the address that it is dialled back at
	dead      bool                        // guarded by mu; so is the frontend

	front   *requestplane.ResponseServer
	fronts  *acceptor
	client  *requestplane.Client
	serving sync.WaitGroup

	engines map[role]*simEngine
	workers map[role]*realWorker
}

// simEngine is a running simulated engine.
type simEngine struct {
	*sim.Server

	stop context.CancelFunc
	done chan struct{} // closed when Run has returned
	err  error         // what it returned; read after done
}

// realWorker is a running worker.
type realWorker struct {
	metrics   *status.Metrics
	target    string
	stop, cut context.CancelFunc
	done      chan struct{}
	err       error
}

// newSite starts everything and waits until both workers are registered.
func newSite(t *testing.T, model string, p *stormPlan) *site {
	t.Helper()
	s := &site{
		t: t, model: model, listeners: map[string]*memnet.Listener{}, legs: map[string]*stormLeg{},
		engines: map[role]*simEngine{}, workers: map[role]*realWorker{}, fronts: &acceptor{queue: make(chan net.Conn), done: make(chan struct{})},
	}
	s.front = requestplane.NewResponseServer(s.fronts, requestplane.ResponseServerConfig{Address: "127.0.0.1:9"})
	s.serving.Go(func() { _ = s.front.Serve() })
	s.client = &requestplane.Client{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return s.dial(ctx, address) }}
	for i, as := range []role{rolePrefill, roleDecode} {
		s.startEngine(as, 100+i, p)
		s.startWorker(as, 100+i, p)
	}
	return s
}

// listen opens a listener at an address of this site.
func (s *site) listen(address string, size int) *memnet.Listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := memnet.Listen(size)
	s.listeners[address] = l
	return l
}

func (s *site) dial(ctx context.Context, address string) (net.Conn, error) {
	s.mu.Lock()
	l := s.listeners[address]
	s.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	return l.DialContext(ctx)
}

// dialBack connects a worker to the frontend, which keeps its end by leg.
func (s *site) dialBack(ctx context.Context, _, address string) (net.Conn, error) {
	s.mu.Lock()
	leg, dead := s.legs[address], s.dead
	s.mu.Unlock()
	if leg != nil && leg.unreachable && leg.client.hangs {
		<-ctx.Done()
	}
	if dead || leg == nil || leg.unreachable {
		return nil, errors.New("no route to host")
	}
	near, far := memnet.Pipe(64 << 10)
	s.mu.Lock()
	leg.conn = far
	if s.dead {
		_ = far.Close()
	}
	s.mu.Unlock()
	if err := s.fronts.hand(ctx, far); err != nil {
		return nil, err
	}
	return near, nil
}

// acceptor is a listener whose connections are made by somebody else, who keeps the ends that it accepts.
type acceptor struct {
	queue chan net.Conn
	done  chan struct{} // closed by Close
	once  sync.Once
}

func (a *acceptor) hand(ctx context.Context, conn net.Conn) error {
	select {
	case a.queue <- conn:
		return nil
	case <-a.done:
		return net.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Accept implements net.Listener.
func (a *acceptor) Accept() (net.Conn, error) {
	select {
	case conn := <-a.queue:
		return conn, nil
	case <-a.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (a *acceptor) Close() error {
	a.once.Do(func() { close(a.done) })
	return nil
}

// Addr implements net.Listener.
func (*acceptor) Addr() net.Addr { return memnet.Addr{} }

// named is a listener in memory that goes by a TCP address.
type named struct {
	net.Listener

	addr *net.TCPAddr
}

// Addr implements net.Listener.
func (l named) Addr() net.Addr { return l.addr }

func (s *site) startEngine(as role, port int, p *stormPlan) {
	address := fmt.Sprintf("127.0.0.1:%d", port)
	cfg := sim.Config{
		Model: s.model, ServedName: "model", BlockSize: blockSize, Blocks: p.blocks, MaxModelLen: 128, MaxSeqs: p.seqs,
		StepTime: stormStep, Lease: p.lease, Seed: stormSeed, SideChannelHost: "127.0.0.1", SideChannelPort: port + 100, ReadDelay: p.readDelay,
		Dial: s.dial,
	}
	if p.spoil != nil {
		p.spoil(as, &serving.Config{}, &cfg)
	}
	server, err := sim.New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	e := &simEngine{Server: server, done: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	e.stop = stop
	grpc, side := s.listen(address, 64<<10), s.listen(fmt.Sprintf("127.0.0.1:%d", port+100), 64<<10)
	go func() {
		defer close(e.done)
		e.err = server.Run(ctx, sim.Listeners{GRPC: grpc, SideChannels: []net.Listener{side}})
	}()
	s.engines[as] = e
}

func (s *site) startWorker(as role, port int, p *stormPlan) {
	endpoint, err := vllm.ParseEndpoint(fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		s.t.Fatal(err)
	}
	w := &realWorker{metrics: status.NewMetrics(), done: make(chan struct{})}
	ready := make(chan serving.Ready, 1)
	next := port*10 - 1
	cfg := serving.Config{
		Role: protocol.Prefill, Address: discovery.Address{Namespace: "n", Component: string(as), Endpoint: "e"},
		EndpointTypes: modelcard.Chat, Codec: protocol.MsgPack, DeviceType: discovery.DeviceCPU,
		Engine: vllm.Config{
			Endpoint: endpoint, Connections: 1, Backend: p.backend,
			Dialer: s.dial,
		},
		StartupDeadline: time.Minute, Store: s.memory.Open(), Host: "127.0.0.1", DialBack: s.dialBack,
		Listen: func(string, string) (net.Listener, error) {
			next++
			addr := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: next}
			return named{s.listen(addr.String(), 64<<10), addr}, nil
		},
		Running: p.places, Waiting: 1000, Metrics: w.metrics, DrainDeadline: p.deadline, Policy: p.policy, Lease: p.lease,
		ReleaseDeclined: p.releases, GracePeriod: stormGrace, ShutdownTimeout: stormTimeout, OnReady: func(r serving.Ready) { ready <- r },
	}
	if as == roleDecode {
		cfg.Role = protocol.Decode
	}
	if p.spoil != nil {
		p.spoil(as, &cfg, &sim.Config{})
	}
	stop, cut := context.Background(), context.Background()
	stop, w.stop = context.WithCancel(stop)
	cut, w.cut = context.WithCancel(cut)
	go func() {
		defer close(w.done)
		w.err = serving.Run(stop, cut, cfg)
	}()
	select {
	case r := <-ready:
		w.target = cfg.Address.TCP(r.Address, r.InstanceID)
	case <-w.done:
		s.t.Fatalf("the %s worker did not start: %v", as, w.err)
	}
	s.workers[as] = w
}

// close ends everything that still runs, the engines last.
func (s *site) close() {
	for _, w := range s.workers {
		w.stop()
		<-w.done
		w.cut()
	}
	for _, e := range s.engines {
		e.stop()
		<-e.done
	}
	s.client.Close()
	s.front.Close()
	s.serving.Wait()
}

// count sums the samples of a worker's metric whose labels contain all of the given pairs.
func (w *realWorker) count(name string, labels ...string) (sum float64) {
	answer := httptest.NewRecorder()
	w.metrics.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/metrics", http.NoBody))
samples:
	for line := range strings.Lines(answer.Body.String()) {
		sample, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if sample != name && !strings.HasPrefix(sample, name+"{") {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(sample, label) {
				continue samples
			}
		}
		if value, err := strconv.ParseFloat(text, 64); err == nil {
			sum += value
		}
	}
	return sum
}
