package engine_test

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"remora/bench/internal/engine"
	pb "remora/proto/vllm"
)

// peer is an HTTP/2 client that gives credit by hand and looks at each frame.
type peer struct {
	*http2.Framer

	t    *testing.T
	data map[uint32]int // DATA bytes by stream
	done map[uint32]bool
}

func newPeer(t *testing.T, window uint32) *peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- engine.New("/model").Serve(l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = l.Close()
		<-served
	})
	if err = conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err = io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	p := &peer{http2.NewFramer(conn, conn), t, map[uint32]int{}, map[uint32]bool{}}
	p.must(p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}))
	return p
}

func (p *peer) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) call(stream uint32, method string, request proto.Message) {
	p.t.Helper()
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {"content-type", "application/grpc"}} {
		p.must(e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
	}
	p.must(p.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true}))
	msg, err := proto.Marshal(request)
	p.must(err)
	p.must(p.WriteData(stream, true, append([]byte{0, 0, 0, byte(len(msg) >> 8), byte(len(msg))}, msg...)))
}

// quiet reads until the engine, asked by a ping, has nothing more to send.
func (p *peer) quiet() {
	p.t.Helper()
	for pings := range 3 { // a pump that runs is behind the answer of one ping, not of the next after a flush
		p.must(p.WritePing(false, [8]byte{7: byte(pings)}))
		for ack := false; !ack; {
			f, err := p.ReadFrame()
			p.must(err)
			switch f := f.(type) {
			case *http2.DataFrame:
				p.data[f.StreamID] += int(f.Length)
			case *http2.HeadersFrame:
				p.done[f.StreamID] = f.StreamEnded()
			case *http2.PingFrame:
				ack = f.IsAck()
			}
		}
	}
}

// slack is what a message may leave unused: the engine does not split one.
const slack = 64

func TestWindowsAreKept(t *testing.T) {
	const window = 1000
	p := newPeer(t, window)
	const generate = "/vllm.Inference/GenerateStream"
	want := func(stream uint32, credit int) {
		t.Helper()
		p.quiet()
		for deadline := time.Now().Add(10 * time.Second); p.data[stream] < credit-slack && time.Now().Before(deadline); {
			p.quiet()
		}
		if got := p.data[stream]; got > credit || got < credit-slack {
			t.Fatalf("stream %d got %d bytes of %d", stream, got, credit)
		}
	}
	p.call(1, generate, ask("flat", 3, 1_000_000, 0))
	want(1, window)
	p.call(3, generate, ask("paced", 3, 1_000_000, time.Millisecond))
	p.must(p.WriteWindowUpdate(1, 500))
	want(1, window+500)
	want(3, window)

	// Now the connection's credit: 65,535 bytes less what has been sent.
	p.must(p.WriteWindowUpdate(1, 1<<20))
	p.must(p.WriteWindowUpdate(3, 1<<20))
	total := func() int { return p.data[1] + p.data[3] + p.data[5] }
	for deadline := time.Now().Add(10 * time.Second); total() < 65535-slack && time.Now().Before(deadline); {
		p.quiet()
	}
	if got := total(); got > 65535 || got < 65535-slack {
		t.Fatalf("%d bytes on the connection", got)
	}
	p.call(5, "/vllm.Control/Abort", &pb.AbortRequest{RequestIds: []string{"flat", "paced"}})
	p.quiet()
	if total() > 65535 || p.done[1] || p.done[3] {
		t.Fatalf("%d bytes on the connection, ended: %v", total(), p.done)
	}
	p.must(p.WriteWindowUpdate(0, 1000))
	ended := func() bool { return p.done[1] && p.done[3] && p.done[5] }
	for deadline := time.Now().Add(10 * time.Second); !ended() && time.Now().Before(deadline); {
		p.quiet()
	}
	if !ended() {
		t.Fatalf("ended: %v", p.done)
	}
}
