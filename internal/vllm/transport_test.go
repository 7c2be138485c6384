package vllm_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"remora/internal/memnet"
	"remora/internal/vllm"
)

// peerThatWatches takes connections, notes what clients say of their windows and what they ask to be answered, and sends a stream
// of bytes to whoever calls; it answers pings as told.
type peerThatWatches struct {
	answersPings bool

	mu      sync.Mutex
	windows []windows       // guarded by mu; one for each connection
	pings   int             // guarded by mu
	lived   []time.Duration // guarded by mu; of the connections that have ended
}

// windows are what a client says it takes: of one stream, and of all together.
type windows struct{ stream, connection uint32 }

func (p *peerThatWatches) serve(conn net.Conn) {
	defer conn.Close()
	begun := time.Now()
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	p.mu.Lock()
	at := len(p.windows)
	p.windows = append(p.windows, windows{65535, 65535})
	p.mu.Unlock()
	framer := http2.NewFramer(conn, conn)
	if framer.WriteSettings() != nil {
		return
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			break
		}
		p.mu.Lock()
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if value, ok := f.Value(http2.SettingInitialWindowSize); ok {
				p.windows[at].stream = value
			}
			if !f.IsAck() {
				_ = framer.WriteSettingsAck()
			}
		case *http2.WindowUpdateFrame:
			if f.StreamID == 0 && p.windows[at].connection == 65535 {
				p.windows[at].connection += f.Increment
			}
		case *http2.PingFrame:
			if p.pings++; p.answersPings {
				_ = framer.WritePing(true, f.Data)
			}
		case *http2.HeadersFrame:
			_ = good(framer, f.StreamID)
			for range 10 {
				_ = framer.WriteData(f.StreamID, false, append([]byte{0, 0, 0, 0x10, 0}, make([]byte, 0x1000)...))
			}
		}
		p.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lived = append(p.lived, time.Since(begun))
}

func (p *peerThatWatches) dial(t *testing.T, backend vllm.Backend) {
	t.Helper()
	listener := memnet.Listen(1 << 20)
	serving := serveEach(listener, p.serve)
	client, err := vllm.Dial(t.Context(), vllm.Config{
		Endpoint: engineEndpoint, Backend: backend, Connections: 2,
		Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(context.Background()); err != nil {
			t.Error(err)
		}
		_ = listener.Close()
		serving.Wait()
	})
	if !p.answersPings {
		return
	}
	out := newRecorder(t, nil)
	stream := client.Open(request("a"), nil, out)
	time.Sleep(10 * time.Second)
	stream.Drop()
	out.end()
}

// The windows are what they are from the first moment on, and no pings measure how large they should be.
func TestWindowsAreStatic(t *testing.T) {
	overBackends(t, func(t *testing.T, backend vllm.Backend) {
		synctest.Test(t, func(t *testing.T) {
			peer := &peerThatWatches{answersPings: true}
			peer.dial(t, backend)
			peer.mu.Lock()
			defer peer.mu.Unlock()
			for i, got := range peer.windows {
				if got != (windows{256 << 10, 4 << 20}) {
					t.Errorf("connection %d: %+v", i, got)
				}
			}
			if peer.pings > 0 || len(peer.windows) < 2 {
				t.Errorf("%d pings on %d connections", peer.pings, len(peer.windows))
			}
		})
	})
}

// A peer that is dead is noticed within 50 s, on connections without a stream, too: else the first requests after a quiet night
// would be its victims.
func TestDeadPeerIsNoticed(t *testing.T) {
	overBackends(t, func(t *testing.T, backend vllm.Backend) {
		synctest.Test(t, func(t *testing.T) {
			peer := &peerThatWatches{}
			peer.dial(t, backend)
			time.Sleep(51 * time.Second)
			synctest.Wait()
			peer.mu.Lock()
			defer peer.mu.Unlock()
			if len(peer.lived) < 2 {
				t.Fatalf("%d connections were given up, after %d pings", len(peer.lived), peer.pings)
			}
			for _, lived := range peer.lived {
				if lived < 30*time.Second {
					t.Errorf("given up after %v", lived)
				}
			}
		})
	})
}
