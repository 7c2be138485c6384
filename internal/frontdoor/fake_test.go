package frontdoor

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/protocol"
	"remora/internal/tinymodel"
)

// fakePlane is a Plane with workers that tests play by hand.
type fakePlane struct {
	calls chan *fakeCall // every Send, in order

	mu      sync.Mutex
	refused map[uint64]error // guarded by mu; by instance id: Send fails with it
	stuck   bool             // set once: Send never ends by itself
}

// fakeCall is one request at one worker, and its Stream.
type fakeCall struct {
	to      Instance
	id      string
	request *protocol.PreprocessedRequest

	ready  chan error         // the prologue
	items  chan protocol.Item // what Next returns
	end    chan error         // after the items; io.EOF for a regular end
	once   sync.Once
	killed chan struct{} // closed by Kill
}

func newFakePlane() *fakePlane {
	return &fakePlane{calls: make(chan *fakeCall, 100), refused: make(map[uint64]error)}
}

func (p *fakePlane) refuse(id uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused[id] = err
}

func (p *fakePlane) Send(ctx context.Context, to Instance, id string, r *protocol.PreprocessedRequest) (Stream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refused[to.ID]; err != nil {
		return nil, err
	}
	c := &fakeCall{
		to: to, id: id, request: r,
		ready: make(chan error, 1), items: make(chan protocol.Item, 100), end: make(chan error, 1), killed: make(chan struct{}),
	}
	p.calls <- c
	if p.stuck {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c, nil
}

func (c *fakeCall) Ready(ctx context.Context) error {
	select {
	case err := <-c.ready:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *fakeCall) Next(ctx context.Context) (protocol.Item, error) {
	select {
	case item := <-c.items:
		return item, nil
	case err := <-c.end:
		select { // the items come first
		case item := <-c.items:
			c.end <- err
			return item, nil
		default:
			return protocol.Item{}, err
		}
	case <-ctx.Done():
		return protocol.Item{}, ctx.Err()
	}
}

func (c *fakeCall) Kill() { c.once.Do(func() { close(c.killed) }) }

// The worker's side.

func (c *fakeCall) accept() { c.ready <- nil }

func (c *fakeCall) data(out protocol.EngineOutput) { c.items <- protocol.Item{Data: &out} }

func (c *fakeCall) tokens(ids ...uint32) { c.data(protocol.EngineOutput{TokenIDs: ids}) }

func (c *fakeCall) finish(reason protocol.FinishReason) {
	c.data(protocol.EngineOutput{FinishReason: reason})
	c.close()
}

func (c *fakeCall) close() { c.end <- io.EOF }

// handoff is a whole prefill.
func (c *fakeCall) handoff(params protocol.Value) {
	c.accept()
	cached := uint32(4)
	c.data(protocol.EngineOutput{
		FinishReason: protocol.FinishLength, DisaggregatedParams: params,
		Usage: &protocol.Usage{PromptTokens: 5, TotalTokens: 5, CachedTokens: &cached},
	})
	c.close()
}

// door is a running Server with a fake plane and a discovery of its own.
type door struct {
	t      *testing.T
	url    string
	server *Server
	plane  *fakePlane
	store  *discovery.MemoryStore // for the workers' records
	stop   context.CancelFunc
	cut    context.CancelFunc
	done   chan error // Run's result
}

func openDoor(t *testing.T, change func(*Config)) *door {
	t.Helper()
	var memory discovery.Memory
	d := &door{t: t, plane: newFakePlane(), store: memory.Open(), done: make(chan error, 1)}
	watched := memory.Open()
	config := Config{Store: watched, Plane: d.plane, Model: TinyModel{}, ShutdownTime: time.Second}
	if change != nil {
		change(&config)
	}
	d.server = New(config)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.url = "http://" + ln.Addr().String()
	cut, cutNow := context.WithCancel(context.Background())
	stop, stopNow := context.WithCancel(cut)
	d.stop, d.cut = stopNow, cutNow
	go func() { d.done <- d.server.Run(stop, cut, ln) }()
	t.Cleanup(func() {
		defer cutNow()
		stopNow()
		http.DefaultClient.CloseIdleConnections()
		if err, ok := <-d.done; ok && err != nil {
			t.Errorf("Run: %v", err)
		}
		for _, s := range []*discovery.MemoryStore{d.store, watched} {
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	return d
}

func address(role protocol.Role) discovery.Address {
	component := "backend"
	if role == protocol.Prefill {
		component = "prefill"
	}
	return discovery.Address{Namespace: "dynamo", Component: component, Endpoint: "generate"}
}

func cardOf(role protocol.Role) string {
	kind, needs := "Chat | Completions", "[]"
	switch role {
	case protocol.Prefill:
		kind, needs = "Prefill", `[["decode"]]`
	case protocol.Decode:
		needs = `[["prefill"]]`
	case protocol.Aggregated, protocol.Encode:
	}
	return fmt.Sprintf(`{"display_name":"tiny","model_type":%q,"model_input":"Tokens","worker_type":%q,"needs":%s,
		"runtime_config":{"context_length":%d}}`, kind, role, needs, tinymodel.MaxContext)
}

func (d *door) putInstance(role protocol.Role, id uint64) {
	d.t.Helper()
	a := address(role)
	value, err := discovery.Instance{
		Namespace: a.Namespace, Component: a.Component, Endpoint: a.Endpoint, InstanceID: id,
		Transport: discovery.Transport{TCP: a.TCP("127.0.0.1:1", id)}, RequestPlaneCodec: discovery.CodecMsgPack,
	}.Encode()
	d.must(err)
	d.must(d.store.Create(d.t.Context(), discovery.Instances, a.Key(id), value))
}

func (d *door) putCard(role protocol.Role, id uint64, card string) {
	d.t.Helper()
	a := address(role)
	value, err := discovery.Model{
		Namespace: a.Namespace, Component: a.Component, Endpoint: a.Endpoint, InstanceID: id, Card: []byte(card),
	}.Encode()
	d.must(err)
	d.must(d.store.Create(d.t.Context(), discovery.ModelCards, a.Key(id), value))
}

// serve registers workers, one a role with ids from 1 on, and waits until the model is listed.
func (d *door) serve(roles ...protocol.Role) {
	d.t.Helper()
	for i, role := range roles {
		d.putCard(role, uint64(i+1), cardOf(role))
		d.putInstance(role, uint64(i+1))
	}
	d.await(func() bool {
		t := d.server.registry.table.Load().served["tiny"]
		return t != nil && len(t.front)+len(t.prefill) == len(roles)
	})
}

func (d *door) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// patience bounds every wait of a test; none comes near it unless something is wrong.
const patience = 10 * time.Second

// await waits until ok, looking again and again.
func (d *door) await(ok func() bool) {
	d.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			d.t.Fatal("waited in vain")
		}
	}
}

// call waits for the next request that a worker gets.
func (d *door) call() *fakeCall {
	d.t.Helper()
	select {
	case c := <-d.plane.calls:
		return c
	case <-time.After(patience):
		d.t.Fatal("no worker was called")
		return nil
	}
}

// noCall checks that no worker has been called.
func (d *door) noCall() {
	d.t.Helper()
	select {
	case c := <-d.plane.calls:
		d.t.Fatalf("worker %x was called", c.to.ID)
	default:
	}
}

func (c *fakeCall) awaitKill(t *testing.T) {
	t.Helper()
	select {
	case <-c.killed:
	case <-time.After(patience):
		t.Fatal("the worker was not told")
	}
}

func (c *fakeCall) isKilled() bool {
	select {
	case <-c.killed:
		return true
	default:
		return false
	}
}
