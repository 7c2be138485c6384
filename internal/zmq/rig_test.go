package zmq

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"time"
)

// wait bounds what a test waits for; it is no measure of anything.
const wait = 20 * time.Second

// listener collects what a subscription delivers.
type listener struct {
	messages  chan [][]byte
	connected chan struct{}
	gone      chan error
}

func newListener() *listener {
	return &listener{make(chan [][]byte, 1<<16), make(chan struct{}, 1<<10), make(chan error, 1<<10)}
}

func (l *listener) Connected()             { l.connected <- struct{}{} }
func (l *listener) Disconnected(err error) { l.gone <- err }
func (l *listener) Message(frames [][]byte) {
	own := make([][]byte, len(frames))
	for i, frame := range frames {
		own[i] = bytes.Clone(frame)
	}
	l.messages <- own
}

// await takes the next element of a channel.
func await[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(wait):
		t.Fatalf("no %s", what)
		panic("unreachable")
	}
}

// subscribe runs a subscription until the test's end or until stop is called, which waits.
func subscribe(t *testing.T, sub *Sub, handler SubHandler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = sub.Run(ctx, handler) })
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return stop
}

// publisher listens on loopback and tells of subscriptions.
func publisher(t *testing.T, at string, config PubConfig) (*Pub, <-chan string) {
	t.Helper()
	topics := make(chan string, 1<<10)
	config.Subscribed = func(topic string) { topics <- topic }
	pub, err := ListenPub(endpoint(t, at), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pub.Close)
	return pub, topics
}

func endpoint(t *testing.T, text string) Endpoint {
	t.Helper()
	e, err := ParseEndpoint(text)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// texts are frames as texts.
func texts(frames [][]byte) []string {
	out := make([]string, len(frames))
	for i, frame := range frames {
		out[i] = string(frame)
	}
	return out
}

func wantFrames(t *testing.T, got [][]byte, want ...string) {
	t.Helper()
	if !slices.Equal(texts(got), want) {
		t.Fatalf("got %.80q, want %.80q", texts(got), want)
	}
}

// raws are the same the other way round.
func raws(frames ...string) [][]byte {
	out := make([][]byte, len(frames))
	for i, frame := range frames {
		out[i] = []byte(frame)
	}
	return out
}
