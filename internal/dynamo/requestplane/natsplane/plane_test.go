package natsplane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/requestplane"
)

var address = discovery.Address{Namespace: "dynamo", Component: "backend", Endpoint: "generate"}

const subject = "dynamo_backend.generate-1a2b"

// handler is a worker's: it admits what admit says, and serves until it is released or its context ends.
type handler struct {
	admit   error
	served  chan *requestplane.Request
	release chan struct{}
	ended   chan error // of the contexts of requests that were not released
}

func newHandler(admit error) *handler {
	return &handler{admit: admit, served: make(chan *requestplane.Request, 10), release: make(chan struct{}), ended: make(chan error, 10)}
}

func (h *handler) Admit(*requestplane.Request) error { return h.admit }

func (h *handler) Serve(ctx context.Context, req *requestplane.Request) {
	h.served <- req
	select {
	case <-h.release:
	case <-ctx.Done():
		h.ended <- ctx.Err()
	}
}

// meter is a Meter that remembers.
type meter struct {
	f          *fake
	mu         sync.Mutex
	up         bool
	reconnects int
}

func (m *meter) SetPlaneUp(up bool) {
	m.mu.Lock()
	m.up = up
	m.mu.Unlock()
	m.f.change(func() {})
}

func (m *meter) PlaneReconnected() {
	m.mu.Lock()
	m.reconnects++
	m.mu.Unlock()
	m.f.change(func() {})
}

func (m *meter) said() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprintf("up %v, reconnects %d", m.up, m.reconnects)
}

func opened(t *testing.T, f *fake) (*Plane, *meter) {
	t.Helper()
	m := &meter{f: f}
	p, err := Open(t.Context(), Config{Servers: []string{"nats://nats.test:4222"}, Dial: f.dial, Meter: m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, m
}

func attach(t *testing.T, p *Plane, a discovery.Address, h requestplane.Handler) {
	t.Helper()
	transport, err := p.Attach(a, 0x1a2b, h)
	if err != nil || transport != (discovery.Transport{NATS: a.Subject(0x1a2b)}) {
		t.Fatalf("%+v, %v", transport, err)
	}
}

// message is a request as the stock frontend writes it.
func message(id string) string {
	control := fmt.Sprintf(`{"id":%q,"request_type":"single_in","response_type":"many_out","payload_codec":"msgpack","connection_info":{"transport":"tcp_server",`+
		`"info":"{\"address\":\"127.0.0.1:9\",\"subject\":\"s\",\"context\":\"%s\",\"stream_type\":\"response\"}"}}`, id, id)
	var b []byte
	b = binary.BigEndian.AppendUint64(b, uint64(len(control)))
	b = binary.BigEndian.AppendUint64(b, uint64(len("body")))
	b = binary.BigEndian.AppendUint64(b, 0)
	return string(b) + control + "body"
}

func TestRequestIsAcknowledgedAndServed(t *testing.T) {
	f := newFake(t)
	p, m := opened(t, f)
	h := newHandler(nil)
	attach(t, p, address, h)
	f.mu.Lock()
	if _, queue := f.sid(subject); queue != "q" {
		t.Errorf("queue group %q", queue)
	}
	f.mu.Unlock()
	if ack := f.send(subject, "request-id: r1\r\nx-frontend-send-ts-ns: 42\r\ntraceparent: t\r\n", message("r1")); ack != "" {
		t.Errorf("ack %q", ack)
	}
	req := <-h.served
	if req.Control.ID != "r1" || string(req.Body) != "body" || req.Path != subject || req.Unacked || req.Malformed != nil ||
		req.Headers != (requestplane.Headers{RequestID: "r1", FrontendSendNS: 42, TraceParent: "t"}) || req.ReceivedAt.IsZero() {
		t.Errorf("%+v", req)
	}
	if m.said() != "up true, reconnects 0" {
		t.Error(m.said())
	}
	close(h.release)
}

// TestRefusals are said in the words of the TCP plane, which the stock frontend understands here, too.
func TestRefusals(t *testing.T) {
	f := newFake(t)
	p, _ := opened(t, f)
	other := address
	for endpoint, admit := range map[string]error{
		"full": requestplane.Overloaded(), "stopping": requestplane.Unavailable("draining"), "broken": errors.New("no idea"), "fine": nil,
	} {
		other.Endpoint = endpoint
		attach(t, p, other, newHandler(admit))
	}
	for _, c := range []struct{ endpoint, payload, want string }{
		{"full", message("r"), "Server overloaded: worker at capacity"},
		{"stopping", message("r"), "Server unavailable: draining"},
		{"broken", message("r"), "Server unavailable: no idea"},
		{"fine", "", "Server unavailable: message of 0 bytes is too short"},
		{"fine", strings.Repeat("x", 30), "Server unavailable: parts of"},
		{"fine", strings.ReplaceAll(message("r"), "tcp_server", "tcp_ser?er"), "Server unavailable: connection_info: unknown transport"},
		{"fine", message("r"), ""},
	} {
		if ack := f.send("dynamo_backend."+c.endpoint+"-1a2b", "", c.payload); !strings.HasPrefix(ack, c.want) || ack != "" && c.want == "" {
			t.Errorf("%s %.20q: %q, want %q", c.endpoint, c.payload, ack, c.want)
		}
	}
}

// TestMalformedIsServed: where the consumer can be dialled, it hears what is wrong.
func TestMalformedIsServed(t *testing.T) {
	f := newFake(t)
	p, _ := opened(t, f)
	h := newHandler(nil)
	attach(t, p, address, h)
	if ack := f.send(subject, "", strings.Replace(message("r"), "many_out", "some_out", 1)); ack != "" {
		t.Errorf("ack %q", ack)
	}
	if req := <-h.served; req.Malformed == nil || !strings.Contains(req.Malformed.Message, "response_type") {
		t.Errorf("%+v", req.Malformed)
	}
	close(h.release)
}

// TestCloseWaits: the subjects go, contexts end, and Close returns after the requests.
func TestCloseWaits(t *testing.T) {
	f := newFake(t)
	p, m := opened(t, f)
	h := newHandler(nil)
	attach(t, p, address, h)
	f.send(subject, "", message("r"))
	<-h.served
	p.Close()
	if len(h.ended) != 1 {
		t.Error("the request still runs")
	}
	p.Close()
	if _, err := p.Attach(address, 1, h); !errors.Is(err, requestplane.ErrClosed) {
		t.Errorf("attach after Close: %v", err)
	}
	f.wait("the client to leave", func() bool { return f.conn == nil })
	if m.said() != "up true, reconnects 0" { // it was not lost
		t.Error(m.said())
	}
}

// TestServerRestarts: what runs goes on, and the subjects are taken up again.
func TestServerRestarts(t *testing.T) {
	f := newFake(t)
	p, m := opened(t, f)
	h := newHandler(nil)
	attach(t, p, address, h)
	f.send(subject, "", message("before"))
	<-h.served
	f.stop()
	f.wait("the plane to notice", func() bool { return m.said() == "up false, reconnects 0" })
	f.start()
	f.wait("the subject", func() bool { sid, _ := f.sid(subject); return sid != "" && m.said() == "up true, reconnects 1" })
	if ack := f.send(subject, "", message("after")); ack != "" {
		t.Errorf("ack %q", ack)
	}
	if req := <-h.served; req.Control.ID != "after" || len(h.ended) > 0 {
		t.Errorf("%+v, ended %d", req.Control, len(h.ended))
	}
	close(h.release)
}

// TestCloseWithoutServer does not wait for it.
func TestCloseWithoutServer(t *testing.T) {
	f := newFake(t)
	p, m := opened(t, f)
	attach(t, p, address, newHandler(nil))
	f.stop()
	f.wait("the plane to notice", func() bool { return m.said() == "up false, reconnects 0" })
	p.Close()
}

func TestLogins(t *testing.T) {

	for name, c := range map[string]struct {
		set  func(c *Config)
		want []string
	}{
		"nothing":  {func(*Config) {}, []string{`"user":"user"`, `"pass":"user"`}},
		"password": {func(c *Config) { c.Username, c.Password, c.Token = "u", "p", "t" }, []string{`"user":"u"`, `"pass":"p"`}},
		"token":    {func(c *Config) { c.Token, c.NKeySeed = "t", "not looked at" }, []string{`"auth_token":"t"`}},
		"in URL":   {func(c *Config) { c.Servers = []string{"nats://a:b@nats.test:4222"} }, []string{`"user":"a"`, `"pass":"b"`}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			cfg := Config{Servers: []string{"nats://nats.test:4222"}, Dial: f.dial}
			c.set(&cfg)
			p, err := Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			p.Close()
			for _, want := range c.want {
				if !strings.Contains(f.connects[0], want) {
					t.Errorf("%s is not in %s", want, f.connects[0])
				}
			}
		})
	}
}

func TestOpenFails(t *testing.T) {
	f := newFake(t)
	f.refuse = "Authorization Violation"
	cfg := Config{Servers: []string{"nats://u:secret@nats.test:4222"}, Dial: f.dial, StartTimeout: time.Hour}
	if _, err := Open(t.Context(), cfg); !errors.Is(err, ErrRefused) || strings.Contains(err.Error(), "secret") {
		t.Errorf("refused: %v", err)
	}
	f.stop()
	cfg.StartTimeout = time.Nanosecond
	if _, err := Open(t.Context(), cfg); !errors.Is(err, ErrUnreachable) || strings.Contains(err.Error(), "secret") {
		t.Errorf("away: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cfg.StartTimeout = time.Hour
	if _, err := Open(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
	for name, spoil := range map[string]func(c *Config){
		"nkey":        func(c *Config) { c.NKeySeed = "SUx" },
		"credentials": func(c *Config) { c.CertFile, c.KeyFile, c.Servers = "/no", "/no", []string{"tls://nats.test:4222"} },
		"no server":   func(c *Config) { c.Servers = nil },
	} {
		bad := Config{Servers: []string{"nats://nats.test:4222"}, Dial: f.dial}
		spoil(&bad)
		if _, err := Open(t.Context(), bad); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
