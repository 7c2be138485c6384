package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/memnet"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/modelcard"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/tinymodel"
	"remora/internal/vllm"
	"remora/internal/vllm/vllmtest"
)

// The stock times of a shutdown.
const (
	grace   = 5 * time.Second
	timeout = 30 * time.Second
)

// whole is a worker as Run makes it, between a scripted engine and a frontend that finds it in discovery, all in memory and in
// a bubble. Its rig is the frontend's side alone.
type whole struct {
	*rig

	cfg       Config
	memory    *discovery.Memory
	client    *requestplane.Client
	system    *memnet.Listener
	sockets   map[string]*memnet.Listener // of the event plane, by address; guarded by mu
	mu        sync.Mutex
	stop, cut context.CancelFunc
	ready     chan Ready
	done      chan struct{} // closed when Run has returned
	err       error         // what it returned; read after done
}

// addressed is a listener in memory that goes by a TCP address.
type addressed struct {
	*memnet.Listener

	addr string
}

// Addr implements net.Listener.
func (l addressed) Addr() net.Addr {
	addr, err := net.ResolveTCPAddr("tcp", l.addr)
	if err != nil {
		panic(err)
	}
	return addr
}

// listen gives the request plane's listener first, then one of its own to each socket of the event plane.
func (w *whole) listen(plane *memnet.Listener) func(network, address string) (net.Listener, error) {
	next := 3
	return func(string, string) (net.Listener, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		at, listener := fmt.Sprintf("127.0.0.1:%d", next), plane
		if next > 3 {
			listener = memnet.Listen(64 << 10)
			w.sockets[at] = listener
		}
		next++
		return addressed{listener, at}, nil
	}
}

// inWhole prepares a worker, lets prepare change how, and runs it and test.
func inWhole(t *testing.T, role protocol.Role, prepare func(w *whole), test func(w *whole)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		model := t.TempDir()
		if err := tinymodel.Write(model); err != nil {
			t.Fatal(err)
		}
		w := &whole{
			rig:    &rig{t: t, role: role, engine: vllmtest.New(t), taps: &taps{Listener: memnet.Listen(64 << 10)}},
			memory: new(discovery.Memory), system: memnet.Listen(1 << 10), ready: make(chan Ready, 1), done: make(chan struct{}),
			sockets: map[string]*memnet.Listener{},
		}
		w.engine.Set(func(b *vllmtest.Behaviour) { b.Model.ModelId = model })
		w.frontend = requestplane.NewResponseServer(w.taps, requestplane.ResponseServerConfig{Address: "127.0.0.1:2"})
		var serving sync.WaitGroup
		serving.Go(func() { _ = w.frontend.Serve() })
		plane := memnet.Listen(64 << 10)
		w.client = &requestplane.Client{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return plane.DialContext(ctx) }}
		endpoint, err := vllm.ParseEndpoint("127.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		w.cfg = Config{
			Role: role, Address: discovery.Address{Namespace: "n", Component: "c", Endpoint: "e"}, EndpointTypes: modelcard.Chat,
			Codec: protocol.MsgPack, DeviceType: discovery.DeviceCPU, Engine: vllm.Config{Endpoint: endpoint, Connections: 2, Dialer: w.engine.Dial},
			StartupDeadline: time.Minute, Store: w.memory.Open(), Host: "127.0.0.1", System: w.system,
			Listen:   w.listen(plane),
			DialBack: func(ctx context.Context, _, _ string) (net.Conn, error) { return w.taps.dial(ctx) },
			Running:  20, Waiting: 20, GracePeriod: grace, ShutdownTimeout: timeout, OnReady: func(r Ready) { w.ready <- r },
		}
		if prepare != nil {
			prepare(w)
		}
		var stop, cut context.Context
		cut, w.cut = context.WithCancel(t.Context())
		stop, w.stop = context.WithCancel(t.Context())
		go func() {
			defer close(w.done)
			w.err = Run(stop, cut, w.cfg)
		}()
		test(w)
		w.cut()
		<-w.done
		w.stop()
		w.wg.Wait()
		for _, bucket := range []discovery.Bucket{discovery.Instances, discovery.ModelCards, discovery.EventChannels, discovery.EventSources} {
			if w.published(bucket) != "" {
				t.Errorf("left in %s: %s", bucket, w.published(bucket))
			}
		}
		w.client.Close()
		w.frontend.Close()
		serving.Wait()
		w.engine.Close()
	})
}

// published gives the value of the one record in a bucket, "" without one.
func (w *whole) published(bucket discovery.Bucket) string {
	w.t.Helper()
	synctest.Wait()
	store := w.memory.Open()
	defer store.Close(w.t.Context())
	events, err := store.Watch(w.t.Context(), bucket)
	if err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
	select {
	case ev := <-events:
		return string(ev.Value)
	default:
		return ""
	}
}

// send asks the worker that discovery names, as it named it last.
func (w *whole) send(target, id string) (*open, error) {
	incoming, info := w.frontend.Register(w.t.Context(), id, protocol.MsgPack)
	control := &requestplane.Control{
		ID: id, RequestType: "single_in", ResponseType: "many_out", Codec: protocol.MsgPack, Connection: info,
	}
	raw := protocol.AppendRequest(nil, protocol.MsgPack, w.body())
	if err := w.client.Send(w.t.Context(), target, requestplane.Headers{RequestID: id}, control, raw); err != nil {
		incoming.Kill()
		return nil, err
	}
	return &open{Incoming: incoming, rig: w.rig, id: id, subject: info.Subject}, nil
}

// mustSend is send for a worker that takes everything.
func (w *whole) mustSend(target, id string) *open {
	w.t.Helper()
	o, err := w.send(target, id)
	if err != nil {
		w.t.Fatalf("%s: %v", id, err)
	}
	return o
}

// target waits for the worker to be registered and gives its address from discovery.
func (w *whole) target() string {
	w.t.Helper()
	select {
	case <-w.ready:
	case <-w.done:
		w.t.Fatalf("it did not start: %v", w.err)
	}
	instance, err := discovery.DecodeInstance([]byte(w.published(discovery.Instances)))
	if err != nil {
		w.t.Fatal(err)
	}
	return instance.Transport.TCP
}

// get asks the status server.
func (w *whole) get(path string) (code int, body string) {
	w.t.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return w.system.DialContext(ctx) },
	}}
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://status"+path, http.NoBody)
	if err != nil {
		w.t.Fatal(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// ends waits for Run and checks what it returns and when, since began.
func (w *whole) ends(want error, began time.Time, least, most time.Duration) {
	w.t.Helper()
	<-w.done
	if !errors.Is(w.err, want) || want == nil && w.err != nil {
		w.t.Errorf("Run returned %v, want %v", w.err, want)
	}
	if took := time.Since(began); took < least || took > most {
		w.t.Errorf("it took %v, want %v to %v", took, least, most)
	}
}
