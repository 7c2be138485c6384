package kvpub

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"remora/internal/sim/core"
	"remora/internal/zmq"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConfig: the names and defaults of vLLM's kv-events-config; what it refuses is refused.
//
// Rules: events-config.
func TestConfig(t *testing.T) {
	for text, want := range map[string]Config{
		`{}`:                              {false, "null", "tcp://*:5557", "", 10_000, 100_000, 100_000, ""},
		`{"enable_kv_cache_events":true}`: {true, "zmq", "tcp://*:5557", "", 10_000, 100_000, 100_000, ""},
		`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5757","replay_endpoint":"tcp://*:5857","buffer_steps":7,"hwm":8,"max_queue_size":9,"topic":"kv"}`: {
			true, "zmq", "tcp://*:5757", "tcp://*:5857", 7, 8, 9, "kv",
		},
		`{"enable_kv_cache_events":false,"endpoint":"nonsense"}`: {false, "null", "nonsense", "", 10_000, 100_000, 100_000, ""},
	} {
		if got, err := ParseConfig(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		``, `null x`, `[]`, `{"enable":true}`, `{"enable_kv_cache_events":1}`, `{} {}`, `{"publisher":"kafka"}`, `{"hwm":-1}`,
		`{"enable_kv_cache_events":true,"endpoint":"tcp://127.0.0.1:5557"}`, `{"enable_kv_cache_events":true,"endpoint":"tcp://*"}`,
		`{"enable_kv_cache_events":true,"endpoint":"tcp://*:x"}`, `{"enable_kv_cache_events":true,"replay_endpoint":"udp://*:1"}`,
	} {
		if got, err := ParseConfig(text); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}

// Rules: events-config.
func TestEndpoints(t *testing.T) {
	for _, tt := range []struct {
		endpoint string
		rank     uint32
		at       string
	}{
		{"tcp://*:5557", 0, "tcp://*:5557"},
		{"tcp://*:5557", 3, "tcp://*:5560"},
		{"tcp://0.0.0.0:5557", 1, "tcp://0.0.0.0:5558"},
		{"tcp://*:0", 3, "tcp://*:0"},
		{"tcp://10.0.0.1:5557", 3, "tcp://10.0.0.1:5560"},
		{"ipc:///run/events", 0, "ipc:///run/events"},
	} {
		at, err := atRank(tt.endpoint, tt.rank)
		if err != nil || at != tt.at {
			t.Errorf("%s, rank %d: %s, %v", tt.endpoint, tt.rank, at, err)
		}
		if here := onHost(at, "localhost"); here == at && binds(at) && at[:3] == "tcp" {
			t.Errorf("%s listens everywhere", here)
		}
	}
	if got := onHost("tcp://*:1", "fe80"+"::1"); got != "tcp://[fe80"+"::1]:1" {
		t.Error(got)
	}
	for _, endpoint := range []string{"tcp://*:65535", "ipc:///run/events"} {
		if at, err := atRank(endpoint, 1); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %s %v", endpoint, at, err)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5757","replay_endpoint":"tcp://*:5857"}`, uint32(1))
	f.Add(`{"endpoint":":"}`, uint32(0))
	f.Fuzz(func(t *testing.T, text string, rank uint32) {
		c, err := ParseConfig(text)
		if err != nil {
			return
		}
		if again, err := c.WithDefaults(); err != nil || again != c {
			t.Errorf("%+v is not good twice: %v", c, err)
		}
		if c.Publishes() {
			at, err := atRank(c.Endpoint, rank)
			if here := onHost(at, "127.0.0.1"); err == nil && withPort(at, here) != at {
				t.Errorf("%s on this host is %s", at, here)
			}
		}
	})
}

// listener collects what a subscription brings.
type listener struct {
	connected chan struct{}
	messages  chan string
}

func (l listener) Connected()         { l.connected <- struct{}{} }
func (l listener) Disconnected(error) {}
func (l listener) Message(frames [][]byte) {
	l.messages <- fmt.Sprintf("%s %d", frames[0], binary.BigEndian.Uint64(frames[1]))
}

func open(t *testing.T, change func(*Options)) *Publisher {
	t.Helper()
	config, err := Config{Enable: true, Endpoint: "tcp://*:0", ReplayEndpoint: "tcp://*:0", Topic: "kv", BufferSteps: 4}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Config: config, BlockSize: 4, Host: "127.0.0.1", Network: ZeroMQ{}}
	if change != nil {
		change(&o)
	}
	p, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func event(n uint64) []core.Event { return []core.Event{{Kind: core.Removed, Hashes: []uint64{n}}} }

func endpoint(t *testing.T, text string) zmq.Endpoint {
	t.Helper()
	at, err := zmq.ParseEndpoint(text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestOverZeroMQ subscribes, loses a message, asks for all of them again, and sees a restart.
//
// Rules: events-frames, events-replay, events-lost.
func TestOverZeroMQ(t *testing.T) {
	p := open(t, nil)
	events, replay := p.Bound()
	if told, toldReplay := p.Endpoints(); told == "tcp://*:0" || toldReplay == told || told[:8] != "tcp://*:" || events != onHost(told, "127.0.0.1") {
		t.Errorf("told %s and %s, at %s and %s", told, toldReplay, events, replay)
	}
	ctx, stop := context.WithCancel(t.Context())
	heard := listener{make(chan struct{}, 8), make(chan string, 100)}
	done := make(chan error, 1)
	go func() { done <- (&zmq.Sub{Endpoint: endpoint(t, events)}).Run(ctx, heard) }()
	<-heard.connected
	n := uint64(0)
	next := func(lost bool) {
		p.Publish(event(n), Form{}, lost)
		n++
	}
	first := ""
	for first == "" { // the subscription takes a moment
		next(false)
		select {
		case first = <-heard.messages:
		case <-time.After(time.Millisecond):
		}
	}
	next(true)
	next(false)
	for got := ""; got != fmt.Sprintf("kv %d", n-1); {
		if got = <-heard.messages; got == fmt.Sprintf("kv %d", n-2) {
			t.Error("a lost message has come")
		}
	}
	var all []string
	for kept := n - min(n, 4); kept < n; kept++ {
		all = append(all, fmt.Sprintf("kv %d", kept))
	}
	if got := ask(t, replay, 0); !slices.Equal(got, append(all, fmt.Sprintf(" %d", uint64(math.MaxUint64)))) {
		t.Errorf("%v, want %v and an end", got, all)
	}
	if err := p.Restart(); err != nil {
		t.Fatal(err)
	}
	if again, _ := p.Bound(); again != events {
		t.Errorf("at %s, was at %s", again, events)
	}
	if got := ask(t, replay, 0); !slices.Equal(got, []string{fmt.Sprintf(" %d", uint64(math.MaxUint64))}) {
		t.Error(got)
	}
	<-heard.connected
	n = 0
	for got := ""; got == ""; {
		next(false)
		select {
		case got = <-heard.messages:
		case <-time.After(time.Millisecond):
		}
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	p.Close()
	next(false) // to nobody
}

// ask sends a replay request and returns topic and number of the answers.
func ask(t *testing.T, at string, from uint64) []string {
	t.Helper()
	conn, err := zmq.DialDealer(t.Context(), endpoint(t, at), zmq.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Send(t.Context(), nil, number(from)); err != nil {
		t.Fatal(err)
	}
	var all []string
	for {
		frames, err := conn.Receive(t.Context())
		if err != nil || len(frames) != 4 || len(frames[0]) > 0 {
			t.Fatal(frames, err)
		}
		sequence := binary.BigEndian.Uint64(frames[2])
		all = append(all, fmt.Sprintf("%s %d", frames[1], sequence))
		if sequence == endOfReplay {
			return all
		}
	}
}

func TestOpenFails(t *testing.T) {
	p := open(t, nil)
	events, replay := p.Bound()
	for _, taken := range []func(*Options){
		func(o *Options) { o.Config.Endpoint = events },
		func(o *Options) { o.Config.ReplayEndpoint = replay },
		func(o *Options) { o.Config.Endpoint = "ipc:///nowhere/at/all" },
		func(o *Options) { o.Config.Endpoint, o.Rank = "tcp://*:65535", 1 },
		func(o *Options) { o.Config.ReplayEndpoint, o.Rank = "tcp://*:65535", 1 },
		func(o *Options) { o.Host = "not a host" },
	} {
		o := p.opts
		o.Config.Endpoint, o.Config.ReplayEndpoint = "tcp://*:0", "tcp://*:0"
		taken(&o)
		if got, err := Open(o); err == nil {
			got.Close()
			t.Errorf("%+v opens", o)
		}
	}
}

// TestWithoutReplay: no second socket, and a publisher without one restarts too.
func TestWithoutReplay(t *testing.T) {
	p := open(t, func(o *Options) { o.Config.ReplayEndpoint = "" })
	if _, replay := p.Endpoints(); replay != "" {
		t.Error(replay)
	}
	p.Publish(event(1), Form{}, false)
	if err := p.Restart(); err != nil {
		t.Fatal(err)
	}
	p.Close()
	p.Close()
}
