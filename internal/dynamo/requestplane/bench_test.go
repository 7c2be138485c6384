package requestplane

import (
	"context"
	"io"
	"net"
	"testing"

	"remora/internal/dynamo/protocol"
)

// BenchmarkWriteFrames is the cost of one token item, its encoding included, on a loopback connection with a consumer that keeps up.
func BenchmarkWriteFrames(b *testing.B) {
	l := listen(b)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		conn, err := l.Accept()
		if err == nil {
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	}()
	info := ConnectionInfo{Transport: transportTCP, Address: l.Addr().String(), Subject: "s", StreamType: streamResponse}
	s, err := (&Dialer{}).Dial(b.Context(), info, func(Event) {})
	if err != nil {
		b.Fatal(err)
	}
	item := tokens(4711)
	var frames []byte
	b.ReportAllocs()
	for b.Loop() {
		frames = AppendItem(frames[:0], protocol.MsgPack, &item)
		if err := s.WriteFrames(frames, nil); err != nil {
			b.Fatal(err)
		}
	}
	s.Close()
	s.Wait()
	_ = l.Close()
	<-drained
}

// BenchmarkServerConn is the cost of one request frame, from its bytes to the acknowledgement, with headers and control parsed.
func BenchmarkServerConn(b *testing.B) {
	s := NewServer(ServerConfig{})
	s.Handle("w/generate", handlerFunc{serve: func(context.Context, *Request) {}})
	info := ConnectionInfo{Transport: transportTCP, Address: "127.0.0.1:1", Subject: "s", Context: "r", StreamType: streamResponse}
	msg, err := encodeFrame("w/generate", encodeHeaders("w/generate", &Headers{RequestID: "r"}),
		encodeControl(generateControl("r", protocol.MsgPack, info)), make([]byte, 1000))
	if err != nil {
		b.Fatal(err)
	}
	near, far := net.Pipe()
	s.start(far)
	b.ReportAllocs()
	ack := make([]byte, 4)
	for b.Loop() {
		if _, err := near.Write(msg); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(near, ack); err != nil {
			b.Fatal(err)
		}
	}
	_ = near.Close()
	s.Close()
}
