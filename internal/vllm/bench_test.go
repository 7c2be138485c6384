package vllm_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"remora/internal/vllm"
	pb "remora/proto/vllm"
)

// counter is the cheapest sink.
type counter struct {
	messages, calls int
	ended           chan vllm.Status
}

func (c *counter) OnHeaders(bool) {}

func (c *counter) OnMessages(messages []*pb.GenerateResponse, _ bool) {
	c.messages += len(messages)
	c.calls++
}

func (c *counter) OnEnd(status vllm.Status) { c.ended <- status }

// benchEngine answers streams with token messages as cheaply as it can: all streams of a connection in one write, flat out.
// It begins when that many streams are open, and keeps to no window: those of both backends are widened for it.
type benchEngine struct {
	streams, rounds int
	open            atomic.Int32
	begin           chan struct{} // closed when all are open
}

// tokenFrame is a message of one token with its prefix.
var tokenFrame = []byte{0, 0, 0, 0, 9, 0x12, 7, 0x18, 1, 0x22, 3, 0x8d, 0xa7, 0x05}

func (e *benchEngine) serve(conn net.Conn) error {
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return fmt.Errorf("preface: %w", err)
	}
	var mu sync.Mutex // of writes, windows and ids
	changed := sync.NewCond(&mu)
	framer := http2.NewFramer(conn, conn)
	framer.SetReuseFrames()
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 10_000}); err != nil {
		return err
	}
	windows, ids, closed := map[uint32]int{0: 65535}, []uint32{}, false
	initial := 65535
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() {
		<-e.begin
		mu.Lock()
		defer mu.Unlock()
		var round bytes.Buffer
		writer := http2.NewFramer(&round, nil)
		for range e.rounds {
			for _, id := range ids {
				for !closed && (windows[id] < len(tokenFrame) || windows[0] < len(tokenFrame)) {
					if round.Len() > 0 { // what is held up must not be held back
						_, _ = conn.Write(round.Bytes())
						round.Reset()
					}
					changed.Wait()
				}
				windows[id] -= len(tokenFrame)
				windows[0] -= len(tokenFrame)
				_ = writer.WriteData(id, false, tokenFrame)
			}
			if round.Len() > 8<<10 {
				block := round.Bytes()
				mu.Unlock()
				_, _ = conn.Write(block)
				mu.Lock()
				round.Reset()
			}
		}
		var block bytes.Buffer
		encoder := hpack.NewEncoder(&block)
		for _, id := range ids {
			block.Reset()
			_ = encoder.WriteField(hpack.HeaderField{Name: "grpc-status", Value: "0"})
			_ = writer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true})
		}
		_, _ = conn.Write(round.Bytes())
	})
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for {
		frame, err := framer.ReadFrame()
		mu.Lock()
		if err != nil {
			closed = true
			changed.Broadcast()
			mu.Unlock()
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if value, ok := frame.Value(http2.SettingInitialWindowSize); ok {
				initial = int(value)
			}
			if !frame.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				err = framer.WritePing(true, frame.Data)
			}
		case *http2.WindowUpdateFrame:
			windows[frame.StreamID] += int(frame.Increment)
			changed.Broadcast()
		case *http2.HeadersFrame:
			windows[frame.StreamID] = initial
		case *http2.DataFrame:
			if frame.StreamEnded() {
				ids = append(ids, frame.StreamID)
				block.Reset()
				_ = encoder.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
				_ = encoder.WriteField(hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
				err = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: frame.StreamID, BlockFragment: block.Bytes(), EndHeaders: true})
				if int(e.open.Add(1)) == e.streams {
					close(e.begin)
				}
			}
		}
		mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// BenchmarkRelay is messages of one token each from an engine over loopback TCP into sinks, flat out, with 8 connections.
// The time is that of both ends; batch is how many messages a sink call brings.
func BenchmarkRelay(b *testing.B) {
	for _, backend := range []struct {
		name string
		kind vllm.Backend
	}{{"grpc", vllm.BackendGRPC}, {"h2", vllm.BackendH2}} {
		for _, streams := range []int{1, 64, 1000} {
			b.Run(fmt.Sprintf("%s/streams=%d", backend.name, streams), func(b *testing.B) { relay(b, backend.kind, streams) })
		}
	}
}

func relay(b *testing.B, backend vllm.Backend, streams int) {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	engine := &benchEngine{streams: streams, rounds: max(1, b.N/streams), begin: make(chan struct{})}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, closed := listener.Accept()
			if closed != nil {
				return
			}
			serving.Go(func() { _ = engine.serve(conn) })
		}
	})
	defer serving.Wait()
	defer listener.Close()
	endpoint, err := vllm.ParseEndpoint(listener.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	client, err := vllm.Dial(b.Context(), vllm.Config{Endpoint: endpoint, Connections: 8, Backend: backend})
	if err != nil {
		b.Fatal(err)
	}
	sinks := make([]*counter, streams)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range sinks {
		sinks[i] = &counter{ended: make(chan vllm.Status, 1)}
		client.Open(request(fmt.Sprint("r", i)), nil, sinks[i])
	}
	messages, calls := 0, 0
	for _, sink := range sinks {
		if status := <-sink.ended; status != (vllm.Status{}) {
			b.Errorf("%+v", status)
		}
		messages += sink.messages
		calls += sink.calls
	}
	b.StopTimer()
	b.ReportMetric(float64(messages)/float64(max(1, calls)), "batch")
	if messages != streams*engine.rounds {
		b.Errorf("%d messages, want %d", messages, streams*engine.rounds)
	}
	if err = client.Close(b.Context()); err != nil {
		b.Error(err)
	}
}
