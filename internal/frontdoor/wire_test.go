package frontdoor

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
)

// wireWorker is a worker behind the real request plane; the test plays its engine.
type wireWorker struct {
	t        *testing.T
	listener net.Listener
	dialer   requestplane.Dialer
	calls    chan *wireCall

	mu    sync.Mutex
	admit error // guarded by mu
}

// wireCall is a request that has been accepted and whose response stream is open.
type wireCall struct {
	t       *testing.T
	frame   *requestplane.Request
	request *protocol.PreprocessedRequest
	stream  *requestplane.ResponseStream
	opened  bool // the prologue has been sent
	dialErr error
	events  chan requestplane.Event
	done    chan struct{} // closed by finish
}

func startWireWorker(t *testing.T) *wireWorker {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wireWorker{t: t, listener: ln, calls: make(chan *wireCall, 10)}
	server := requestplane.NewServer(requestplane.ServerConfig{})
	for _, role := range []protocol.Role{protocol.Aggregated, protocol.Prefill} {
		for id := range uint64(4) {
			_, path, _ := strings.Cut(address(role).TCP("x", id), "/")
			server.Handle(path, w)
		}
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(ln); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		server.Close()
		serving.Wait()
	})
	return w
}

func (w *wireWorker) Admit(*requestplane.Request) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.admit
}

func (w *wireWorker) refuse(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.admit = err
}

func (w *wireWorker) Serve(ctx context.Context, r *requestplane.Request) {
	c := &wireCall{t: w.t, frame: r, events: make(chan requestplane.Event, 4), done: make(chan struct{})}
	request, err := protocol.ParseRequest(r.Control.Codec, r.Body)
	if err != nil {
		w.t.Error(err)
		return
	}
	c.request = request
	c.stream, c.dialErr = w.dialer.Dial(ctx, r.Control.Connection, func(e requestplane.Event) { c.events <- e })
	w.calls <- c
	select {
	case <-c.done:
	case <-ctx.Done():
	}
	if c.stream != nil {
		c.stream.Close()
		c.stream.Wait()
	}
}

func (w *wireWorker) call() *wireCall {
	w.t.Helper()
	select {
	case c := <-w.calls:
		return c
	case <-time.After(patience):
		w.t.Fatal("no request")
		return nil
	}
}

// say sends items, and before the first the prologue; without any it sends the prologue alone.
func (c *wireCall) say(items ...protocol.Item) {
	c.t.Helper()
	if err := c.stream.WriteFrames(c.frames(items), nil); err != nil {
		c.t.Fatal(err)
	}
}

func (c *wireCall) frames(items []protocol.Item) (frames []byte) {
	if !c.opened {
		c.opened = true
		frames = requestplane.AppendPrologue(frames)
	}
	for i := range items {
		frames = requestplane.AppendItem(frames, c.frame.Control.Codec, &items[i])
	}
	return frames
}

// complete sends what ends a response and waits until the consumer has left.
func (c *wireCall) complete() {
	c.t.Helper()
	c.endWith(requestplane.AppendFinal(c.frames(nil), c.frame.Control.Codec))
}

func (c *wireCall) refuse(refusal *protocol.Error) {
	c.t.Helper()
	c.endWith(requestplane.AppendErrorPrologue(nil, refusal))
}

func (c *wireCall) endWith(frames []byte) {
	c.t.Helper()
	if err := c.stream.EndFrames(requestplane.AppendSentinel(frames), nil); err != nil {
		c.t.Fatal(err)
	}
	c.stream.Wait()
}

func (c *wireCall) end() {
	c.t.Helper()
	c.complete()
	close(c.done)
}

// awaitLeaving waits until the worker is told that nobody listens any more.
func (c *wireCall) awaitLeaving() requestplane.Event {
	c.t.Helper()
	select {
	case e := <-c.events:
		if !e.Leaving() {
			c.t.Errorf("event %v", e.Kind)
		}
		close(c.done)
		return e
	case <-time.After(patience):
		c.t.Fatal("the worker was not told")
		return requestplane.Event{}
	}
}

func item(out protocol.EngineOutput) protocol.Item { return protocol.Item{Data: &out} }

// openWireDoor is openDoor with a client and a response server of its own.
func openWireDoor(t *testing.T) *door {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	responses := requestplane.NewResponseServer(ln, requestplane.ResponseServerConfig{})
	client := new(requestplane.Client)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := responses.Serve(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { // after the door's own
		client.Close()
		responses.Close()
		serving.Wait()
	})
	return openDoor(t, func(c *Config) { c.Plane = NewPlane(client, responses) })
}

// register lists the worker under a role; codec is what it advertises.
func (d *door) register(w *wireWorker, role protocol.Role, id uint64, codec string) {
	d.t.Helper()
	d.registerAt(w.listener.Addr().String(), role, id, codec)
	d.await(func() bool {
		t := d.server.registry.table.Load().served["tiny"]
		return t != nil && (t.ready || role == protocol.Prefill)
	})
}

func (d *door) registerAt(hostPort string, role protocol.Role, id uint64, codec string) {
	d.t.Helper()
	d.putCard(role, id, cardOf(role))
	a := address(role)
	value, err := discovery.Instance{
		Namespace: a.Namespace, Component: a.Component, Endpoint: a.Endpoint, InstanceID: id,
		Transport: discovery.Transport{TCP: a.TCP(hostPort, id)}, RequestPlaneCodec: codec,
	}.Encode()
	d.must(err)
	d.must(d.store.Create(d.t.Context(), discovery.Instances, a.Key(id), value))
}

func TestWirePrefillThenDecode(t *testing.T) {
	for _, codec := range []string{discovery.CodecJSON, discovery.CodecMsgPack} {
		t.Run(codec, func(t *testing.T) {
			w := startWireWorker(t)
			d := openWireDoor(t)
			d.register(w, protocol.Prefill, 1, codec)
			d.register(w, protocol.Decode, 2, codec)
			e := d.open(chatPath, streamBody)
			p := w.call()
			if p.frame.Control.Codec.String() != codec || *p.request.StopConditions.MaxTokens != 1 ||
				p.frame.Headers.RequestID != p.frame.Control.ID || p.frame.Headers.FrontendSendNS == 0 {
				t.Errorf("prefill %+v %+v", p.frame, p.request)
			}
			params := protocol.Map(protocol.Member{Key: "big", Value: protocol.Int(1 << 60)})
			p.say(item(protocol.EngineOutput{FinishReason: protocol.FinishLength, DisaggregatedParams: params}))
			p.end()
			c := w.call()
			if big, _ := c.request.PrefillResult.DisaggregatedParams.Get("big"); big.Int != 1<<60 || c.frame.Control.ID != p.frame.Control.ID {
				t.Errorf("decode %+v", c.request)
			}
			c.say()
			e.headers() // with the prologue, before the first item
			c.say(item(protocol.EngineOutput{TokenIDs: []uint32{'o'}}), item(protocol.EngineOutput{TokenIDs: []uint32{'k'}}))
			c.say(item(protocol.EngineOutput{FinishReason: protocol.FinishLength}))
			c.end()
			if text, finish := e.rest("choices.0.delta.content"); text != "ok" || finish != "length" {
				t.Errorf("%q, %q", text, finish)
			}
		})
	}
}

func TestWireClientLeaves(t *testing.T) {
	w := startWireWorker(t)
	d := openWireDoor(t)
	d.register(w, protocol.Prefill, 1, discovery.CodecMsgPack)
	d.register(w, protocol.Decode, 2, discovery.CodecMsgPack)
	prefilled := item(protocol.EngineOutput{FinishReason: protocol.FinishLength, DisaggregatedParams: handoffParams()})

	t.Run("during decode", func(t *testing.T) {
		e := d.open(chatPath, streamBody)
		p := w.call()
		p.say(prefilled)
		p.end()
		c := w.call()
		c.say(item(protocol.EngineOutput{TokenIDs: []uint32{'x'}}))
		e.headers()
		e.next()
		e.cancel()
		if event := c.awaitLeaving(); event.Kind == requestplane.EventEOF {
			t.Errorf("the worker read an end, not a kill")
		}
	})
	t.Run("during prefill", func(t *testing.T) {
		e := d.open(chatPath, streamBody)
		p := w.call()
		e.cancel()
		<-e.opened
		select {
		case event := <-p.events:
			t.Errorf("the prefill worker was told: %v", event)
		default:
		}
		p.say(prefilled)
		p.end()
		c := w.call()
		if c.request.PrefillResult == nil {
			t.Errorf("decode without the hand-off: %+v", c.request)
		}
		if c.dialErr == nil { // else the dial itself told
			c.awaitLeaving()
		} else {
			close(c.done)
		}
	})
	t.Run("stop string", func(t *testing.T) {
		answer := d.post(completionPath, promptBody(`,"stop":"x"`))
		p := w.call()
		p.say(prefilled)
		p.end()
		c := w.call()
		c.say(item(protocol.EngineOutput{TokenIDs: []uint32{'a', 'x', 'b'}}))
		c.awaitLeaving()
		if r := <-answer; r.status != http.StatusOK || r.get(t, "choices.0.text") != "a" {
			t.Errorf("%d %s", r.status, r.body)
		}
	})
}

func TestWireFailures(t *testing.T) {
	w := startWireWorker(t)
	d := openWireDoor(t)
	d.register(w, protocol.Aggregated, 1, discovery.CodecMsgPack)
	for _, tc := range []struct {
		name   string
		admit  error
		play   func(*wireCall)
		status int
	}{
		{"overloaded", requestplane.Overloaded(), nil, 529},
		{"unavailable", requestplane.Unavailable("draining"), nil, 503},
		{"refused", nil, func(c *wireCall) {
			c.refuse(&protocol.Error{Kind: protocol.ErrorInvalidArgument, Message: "m"})
		}, 400},
		{"error item", nil, func(c *wireCall) {
			c.say(protocol.Item{Error: &protocol.Error{Kind: protocol.ErrorBackendTimeout, Message: "m"}})
		}, 504},
		{"broken off", nil, func(c *wireCall) {
			c.say(item(protocol.EngineOutput{TokenIDs: []uint32{'x'}}))
			c.stream.Close()
		}, 503},
		{"no item at all", nil, (*wireCall).complete, 503},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.refuse(tc.admit)
			answer := d.post(completionPath, promptBody(""))
			if tc.play != nil {
				c := w.call()
				tc.play(c)
				close(c.done)
			}
			if r := <-answer; r.status != tc.status {
				t.Errorf("%d %s", r.status, r.body)
			}
		})
	}
}

func TestWireDeadInstance(t *testing.T) {
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	w := startWireWorker(t)
	d := openWireDoor(t)
	d.registerAt(dead.Addr().String(), protocol.Aggregated, 1, "")
	d.await(func() bool { return len(d.server.Models()) == 1 })
	if r := d.send(http.MethodPost, completionPath, promptBody("")); r.status != 503 {
		t.Errorf("alone: %d %s", r.status, r.body)
	}
	d.registerAt(w.listener.Addr().String(), protocol.Aggregated, 2, "")
	d.await(func() bool { return len(d.server.registry.table.Load().served["tiny"].front) == 2 })
	for range 2 {
		answer := d.post(completionPath, promptBody(""))
		c := w.call()
		c.say(item(protocol.EngineOutput{FinishReason: protocol.FinishStop}))
		c.end()
		if r := <-answer; r.status != 200 {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
}

func TestSendErrors(t *testing.T) {
	for err, want := range map[error]error{
		requestplane.ErrAckTimeout: ErrTimeout,
		requestplane.ErrUnknownAck: ErrProtocol,
		requestplane.ErrBusy:       ErrNotReached,
		requestplane.ErrBadAddress: ErrNotReached,
		requestplane.ErrConnection: ErrUnavailable, // broke after sending: the worker may have the request
		requestplane.ErrClosed:     ErrUnavailable,
	} {
		if got := sendError(err); !errors.Is(got, want) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
