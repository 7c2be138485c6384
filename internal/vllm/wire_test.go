package vllm_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"remora/internal/memnet"

	"remora/internal/vllm"
)

// rawServer speaks HTTP/2 by hand, for answers that no gRPC server gives on purpose.
type rawServer struct {
	// answer is called for each HEADERS frame, with the count of those before it.
	answer func(framer *http2.Framer, stream uint32, before int) error

	mu    sync.Mutex
	calls int // guarded by mu
}

// start serves until the test ends and returns the dialer.
func (s *rawServer) start(t *testing.T) vllm.Dialer {
	t.Helper()
	listener := memnet.Listen(64 << 10)
	serving := serveEach(listener, func(conn net.Conn) { s.serve(t, conn) })
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
	return func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }
}

// serveEach serves every connection of a listener on a goroutine of its own. The group is done when the listener is closed and
// the last one has been served.
func serveEach(listener net.Listener, serve func(conn net.Conn)) *sync.WaitGroup {
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { serve(conn) })
		}
	})
	return &serving
}

func (s *rawServer) serve(t *testing.T, conn net.Conn) {
	defer conn.Close()
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(conn, preface); err != nil {
		t.Errorf("preface: %v", err)
		return
	}
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(); err != nil {
		t.Errorf("settings: %v", err)
		return
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return // the client has gone
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			err = framer.WritePing(true, frame.Data)
		case *http2.HeadersFrame:
			s.mu.Lock()
			before := s.calls
			s.calls++
			s.mu.Unlock()
			err = s.answer(framer, frame.StreamID, before)
		}
		if err != nil {
			return
		}
	}
}

func (s *rawServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// headers writes a header block of name, value, name, value...
func headers(framer *http2.Framer, stream uint32, end bool, fields ...string) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		if err := encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			return err
		}
	}
	return framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end,
	})
}

func good(framer *http2.Framer, stream uint32) error {
	return headers(framer, stream, false, ":status", "200", "content-type", "application/grpc")
}

// These pin the texts and codes by which grpc-go's own verdicts are told from the peer's words.
func TestWhoWroteTheStatus(t *testing.T) { overBackends(t, testWhoWroteTheStatus) }

func testWhoWroteTheStatus(t *testing.T, backend vllm.Backend) {
	reset := func(code http2.ErrCode) func(*http2.Framer, uint32, int) error {
		return func(framer *http2.Framer, stream uint32, _ int) error { return framer.WriteRSTStream(stream, code) }
	}
	tests := []struct {
		name   string
		answer func(framer *http2.Framer, stream uint32, before int) error
		calls  int // HEADERS frames seen
		want   vllm.Status
		text   string
		kind   vllm.Kind
	}{
		{
			name: "reset as cancelled, which nobody here asked for", answer: reset(http2.ErrCodeCancel), calls: 1,
			want: vllm.Status{Code: codes.Canceled, Transport: true}, text: "CANCEL", kind: vllm.Disconnected,
		},
		{
			name: "reset as internal error", answer: reset(http2.ErrCodeInternal), calls: 1,
			want: vllm.Status{Code: codes.Internal, Transport: true}, text: "INTERNAL_ERROR", kind: vllm.Disconnected,
		},
		{
			name: "reset as too much", answer: reset(http2.ErrCodeEnhanceYourCalm), calls: 1,
			want: vllm.Status{Code: codes.ResourceExhausted, Transport: true}, text: "ENHANCE_YOUR_CALM", kind: vllm.Disconnected,
		},
		{
			// grpc-go tries a refused stream once more by itself, which is safe: the peer says that it did nothing.
			name: "stream refused", answer: reset(http2.ErrCodeRefusedStream), calls: 2,
			want: vllm.Status{Code: codes.Unavailable, Transport: true, NotSent: true}, text: "REFUSED_STREAM", kind: vllm.CannotConnect,
		},
		{
			name: "refused once, then answered",
			answer: func(framer *http2.Framer, stream uint32, before int) error {
				if before == 0 {
					return framer.WriteRSTStream(stream, http2.ErrCodeRefusedStream)
				}
				return headers(framer, stream, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "8", "grpc-message", "queue is full")
			},
			calls: 2,
			want:  vllm.Status{Code: codes.ResourceExhausted}, text: "queue is full", kind: vllm.Overloaded,
		},
		{
			name: "reset after the headers",
			answer: func(framer *http2.Framer, stream uint32, _ int) error {
				if err := good(framer, stream); err != nil {
					return err
				}
				return framer.WriteRSTStream(stream, http2.ErrCodeInternal)
			},
			calls: 1,
			want:  vllm.Status{Code: codes.Internal, Transport: true}, text: "INTERNAL_ERROR", kind: vllm.Disconnected,
		},
		{
			name: "bytes that are no message",
			answer: func(framer *http2.Framer, stream uint32, _ int) error {
				if err := good(framer, stream); err != nil {
					return err
				}
				return framer.WriteData(stream, false, []byte{0, 0, 0, 0, 2, 0xff, 0xff})
			},
			calls: 1,
			want:  vllm.Status{Code: codes.DataLoss}, text: "failed to unmarshal", kind: vllm.Protocol,
		},
		{
			name: "a message of 4 GiB announced",
			answer: func(framer *http2.Framer, stream uint32, _ int) error {
				if err := good(framer, stream); err != nil {
					return err
				}
				return framer.WriteData(stream, false, []byte{0, 0xff, 0xff, 0xff, 0xff})
			},
			calls: 1,
			want:  vllm.Status{Code: codes.DataLoss}, text: "larger than max", kind: vllm.Protocol,
		},
		{
			name: "connection closed",
			answer: func(*http2.Framer, uint32, int) error {
				return io.EOF
			},
			calls: 1,
			want:  vllm.Status{Code: codes.Unavailable, Transport: true}, kind: vllm.Disconnected,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &rawServer{answer: test.answer}
				client, err := vllm.Dial(t.Context(), vllm.Config{
					Endpoint: engineEndpoint, Dialer: server.start(t), Backend: backend, MaxConnections: 1,
				})
				if err != nil {
					t.Fatal(err)
				}
				sink := newRecorder(t, nil)
				client.Open(request("a"), nil, sink)
				status := sink.end()
				if !strings.Contains(status.Message, test.text) || status.RPC != "GenerateStream" {
					t.Errorf("text %q", status)
				}
				kind := vllm.KindOf(status)
				status.RPC, status.Message = "", ""
				if status != test.want || kind != test.kind {
					t.Errorf("status %+v of kind %v, want %+v of kind %v", status, kind, test.want, test.kind)
				}
				if got := server.count(); got != test.calls {
					t.Errorf("the server saw %d requests, want %d", got, test.calls)
				}
				if err = client.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The stream that the engine does not open because it has enough of them is not sent, and a Drop knows that.
func TestDropWhileTheEngineTakesNoMoreStreams(t *testing.T) {
	overBackends(t, testDropWhileTheEngineTakesNoMoreStreams)
}

func testDropWhileTheEngineTakesNoMoreStreams(t *testing.T, backend vllm.Backend) {
	synctest.Test(t, func(t *testing.T) {
		server := &rawServer{answer: func(framer *http2.Framer, _ uint32, before int) error {
			if before > 0 {
				return nil
			}
			return framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
		}}
		client, err := vllm.Dial(t.Context(), vllm.Config{
			Endpoint: engineEndpoint, Dialer: server.start(t), Backend: backend, MaxConnections: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		first, second := newRecorder(t, nil), newRecorder(t, nil)
		client.Open(request("a"), nil, first)
		synctest.Wait()
		waiting := client.Open(request("b"), nil, second)
		synctest.Wait()
		waiting.Drop()
		if status := second.end(); !status.Dropped || !status.NotSent {
			t.Errorf("status %+v", status)
		}
		if err = client.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if status := first.end(); !status.Dropped || status.NotSent {
			t.Errorf("status %+v", status)
		}
		if server.count() != 1 {
			t.Errorf("%d requests sent", server.count())
		}
	})
}
