package h2_test

import (
	"context"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"remora/internal/vllm/h2"
)

// FuzzPeer answers a few calls with whatever frames: the calls end once, in order, and nothing panics or is left. The input
// is a list of frames, each with a byte of kind, one of flags, one of stream, one of length and that many bytes; what does
// not fit comes as raw bytes.
func FuzzPeer(f *testing.F) {
	frame := func(kind http2.FrameType, flags http2.Flags, stream byte, payload ...byte) []byte {
		return append([]byte{byte(kind), byte(flags), stream, byte(len(payload))}, payload...)
	}
	const endHeaders, endStream = http2.FlagHeadersEndHeaders, http2.FlagDataEndStream
	block := func(fields ...string) []byte {
		var out []byte
		encoder := hpack.NewEncoder(collect{&out})
		for i := 0; i < len(fields); i += 2 {
			_ = encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
		}
		return out
	}
	join := func(parts ...[]byte) (all []byte) {
		for _, part := range parts {
			all = append(all, part...)
		}
		return all
	}
	good := frame(http2.FrameHeaders, endHeaders, 1, block(":status", "200", "content-type", "application/grpc")...)
	f.Add(join(good, frame(http2.FrameData, 0, 1, token(7)...), frame(http2.FrameHeaders, endHeaders|endStream, 1, block("grpc-status", "0")...)))
	f.Add(join(good, frame(http2.FrameData, endStream, 1, token(7)[:5]...), frame(http2.FrameRSTStream, 0, 3, 0, 0, 0, 7)))
	f.Add(frame(http2.FrameGoAway, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0))
	f.Add(join(frame(http2.FrameSettings, 0, 0, 0, 4, 0, 0, 0, 9), frame(http2.FrameWindowUpdate, 0, 1, 0, 0, 0, 0)))
	f.Add(join(frame(http2.FrameHeaders, 0, 1, block(":status", "200")...), frame(http2.FrameContinuation, endHeaders, 1)))
	f.Add(join(good, frame(http2.FrameData, http2.FlagDataPadded, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0)))
	f.Add(join(frame(http2.FramePing, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8), frame(http2.FramePushPromise, endHeaders, 1, 0, 0, 0, 2)))
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 1<<12 {
			return
		}
		near, far := net.Pipe()
		answered := make(chan struct{})
		go hostile(far, script, answered)
		dialled := false
		pool := h2.New(h2.Config{
			Authority: "a:1", AttemptTimeout: time.Second, PingInterval: time.Minute, PingTimeout: time.Minute,
			ReconnectFirst: time.Hour, ReconnectMost: time.Hour, MaxConnections: 1, Log: quiet,
			Dial: func(context.Context) (net.Conn, error) {
				if dialled {
					return nil, net.ErrClosed
				}
				dialled = true
				return near, nil
			},
		})
		if err := pool.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		var sinks []*sink
		var handles []*h2.Stream
		for range 3 {
			out, stream := run(t, pool, small())
			sinks, handles = append(sinks, out), append(handles, stream)
		}
		<-answered
		for _, stream := range handles {
			stream.Drop()
		}
		for _, out := range sinks {
			out.wait()
		}
		pool.Close()
		far.Close()
	})
}

// hostile takes three requests and answers with the script.
func hostile(conn net.Conn, script []byte, answered chan<- struct{}) {
	begun := make(chan struct{})
	go func() { // reads everything, so that nobody waits for it
		preface := make([]byte, len(http2.ClientPreface))
		_, _ = conn.Read(preface)
		framer := http2.NewFramer(nil, conn)
		requests := 0
		for {
			f, err := framer.ReadFrame()
			if err != nil {
				if requests < 3 {
					close(begun)
				}
				return
			}
			if data, isData := f.(*http2.DataFrame); isData && data.StreamEnded() {
				if requests++; requests == 3 {
					close(begun)
				}
			}
		}
	}()
	defer close(answered)
	if http2.NewFramer(conn, nil).WriteSettings() != nil {
		return
	}
	<-begun
	for len(script) >= 4 {
		n := min(int(script[3]), len(script)-4)
		frame := make([]byte, 9, 9+n)
		binary.BigEndian.PutUint32(frame, uint32(n)<<8)
		frame[3], frame[4], frame[8] = script[0], script[1], script[2]
		frame = append(frame, script[4:4+n]...)
		script = script[4+n:]
		if _, err := conn.Write(frame); err != nil {
			return
		}
	}
	_, _ = conn.Write(script)
}
