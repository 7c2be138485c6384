package zmq

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// libzmq is a Python process that drives sockets of the C library.
type libzmq struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Scanner
}

// startLibzmq wants a venv that has pyzmq: that of Dynamo or of vLLM, named as `make test` names them.
func startLibzmq(t *testing.T) *libzmq {
	t.Helper()
	var python string
	for _, name := range []string{"REMORA_DYNAMO_VENV", "REMORA_VLLM_VENV"} {
		path := filepath.Join(os.Getenv(name), "bin", "python")
		if os.Getenv(name) != "" && exec.CommandContext(t.Context(), path, "-c", "import zmq").Run() == nil {
			python = path
			break
		}
	}
	if python == "" {
		t.Skip("neither REMORA_DYNAMO_VENV nor REMORA_VLLM_VENV names a venv with pyzmq")
	}
	cmd := exec.CommandContext(t.Context(), python, "testdata/peer.py")
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = wait
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Errorf("the peer: %v", err)
		}
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 8<<20)
	return &libzmq{t, in, lines}
}

// do sends one line and returns the answer.
func (z *libzmq) do(words ...string) string {
	z.t.Helper()
	z.ask(words...)
	return z.answer()
}

func (z *libzmq) ask(words ...string) {
	z.t.Helper()
	if _, err := fmt.Fprintln(z.in, strings.Join(words, " ")); err != nil {
		z.t.Fatal(err)
	}
}

func (z *libzmq) answer() string {
	z.t.Helper()
	if !z.out.Scan() {
		z.t.Fatalf("the peer has ended: %v", z.out.Err())
	}
	return z.out.Text()
}

func (z *libzmq) send(name string, frames ...string) {
	z.t.Helper()
	words := []string{"send", name}
	for _, frame := range frames {
		words = append(words, "x"+hex.EncodeToString([]byte(frame)))
	}
	z.do(words...)
}

func (z *libzmq) receive(name string) [][]byte {
	z.t.Helper()
	z.ask("receive", name)
	return z.received()
}

func (z *libzmq) received() [][]byte {
	z.t.Helper()
	var out [][]byte
	for word := range strings.FieldsSeq(z.answer()) {
		frame, err := hex.DecodeString(word[1:])
		if err != nil {
			z.t.Fatal(err)
		}
		out = append(out, frame)
	}
	return out
}

// writeTap tells of writes.
type writeTap struct {
	net.Conn

	writes chan<- struct{}
}

func (w writeTap) Write(data []byte) (int, error) {
	w.writes <- struct{}{}
	return w.Conn.Write(data)
}

// TestLibzmq meets the C library, which the engine and Dynamo's router use: each of our sockets with its partner.
func TestLibzmq(t *testing.T) {
	long := strings.Repeat("x", 300<<10)
	ipc := "ipc://" + filepath.Join(t.TempDir(), "socket")

	t.Run("its PUB, our SUB", func(t *testing.T) {
		z := startLibzmq(t)
		z.do("open", "pub", "XPUB") // an XPUB tells of subscriptions, so that nothing has to be waited for
		at := z.do("bind", "pub", "tcp://127.0.0.1:*")
		l := newListener()
		subscribe(t, &Sub{Endpoint: endpoint(t, at), Topic: "kv"}, l)
		for range 3 {
			await(t, l.connected, "connection")
			wantFrames(t, z.receive("pub"), "\x01kv")
			z.send("pub", "other", "1")
			z.send("pub", "kv", "", long)
			z.send("pub", "kv-more")
			wantFrames(t, await(t, l.messages, "message"), "kv", "", long)
			wantFrames(t, await(t, l.messages, "message"), "kv-more")
			z.do("close", "pub")
			await(t, l.gone, "disconnection")
			z.do("open", "pub", "XPUB")
			for z.do("bind", "pub", at) == "" {
				t.Fatal("not bound")
			}
		}
	})
	t.Run("its PUB with heartbeats, our SUB over ipc", func(t *testing.T) {
		z := startLibzmq(t)
		z.do("open", "pub", "XPUB", "HEARTBEAT_IVL=20", "HEARTBEAT_TIMEOUT=200", "HEARTBEAT_TTL=400")
		z.do("bind", "pub", ipc)
		l := newListener()
		writes := make(chan struct{}, 1<<10)
		subscribe(t, &Sub{Endpoint: endpoint(t, ipc), Dial: func(ctx context.Context) (net.Conn, error) {
			raw, err := new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(ipc, "ipc://"))
			return writeTap{raw, writes}, err
		}}, l)
		wantFrames(t, z.receive("pub"), "\x01")
		for range 3 + 30 { // greeting, READY, SUBSCRIBE; and PONGs for three times as long as it would wait for one
			await(t, writes, "PONG")
		}
		z.send("pub", "t", "still here")
		wantFrames(t, await(t, l.messages, "message"), "t", "still here")
		if len(l.gone) > 0 {
			t.Errorf("disconnected: %v", <-l.gone)
		}
	})
	t.Run("our PUB, its SUB", func(t *testing.T) {
		z := startLibzmq(t)
		pub, topics := publisher(t, "tcp://127.0.0.1:*", PubConfig{})
		z.do("open", "sub", "SUB")
		z.do("connect", "sub", pub.Endpoint().String())
		z.do("subscribe", "sub", "x"+hex.EncodeToString([]byte("kv")))
		for range 3 {
			z.ask("receive", "sub") // a socket of libzmq subscribes again only while somebody calls it
			if topic := await(t, topics, "subscription"); topic != "kv" {
				t.Fatalf("topic %q", topic)
			}
			pub.Publish(raws("other", "1")...)
			pub.Publish(raws("kv", "", long)...)
			pub.Publish(raws("kv-more")...)
			wantFrames(t, z.received(), "kv", "", long)
			wantFrames(t, z.receive("sub"), "kv-more")
			at := pub.Endpoint().String()
			pub.Close()
			pub, topics = publisher(t, at, PubConfig{})
		}
		z.ask("receive", "sub")
		await(t, topics, "subscription")
		pub.Publish(raws("kv", "once more")...)
		wantFrames(t, z.received(), "kv", "once more")
		z.do("subscribe", "sub", "xff")
		await(t, topics, "subscription")
		z.do("unsubscribe", "sub", "x"+hex.EncodeToString([]byte("kv")))
		z.do("subscribe", "sub", "xfe")
		await(t, topics, "subscription")
		pub.Publish(raws("kv", "1")...)
		pub.Publish(raws("\xff", "2")...)
		wantFrames(t, z.receive("sub"), "\xff", "2")
	})
	t.Run("its ROUTER, our DEALER", func(t *testing.T) {
		z := startLibzmq(t)
		z.do("open", "router", "ROUTER")
		at := z.do("bind", "router", "tcp://127.0.0.1:*")
		conn, err := DialDealer(t.Context(), endpoint(t, at), Limits{})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err = conn.Send(t.Context(), raws("", "12345678")...); err != nil {
			t.Fatal(err)
		}
		got := z.receive("router")
		wantFrames(t, got[1:], "", "12345678")
		z.send("router", string(got[0]), "", long)
		if got, err = conn.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantFrames(t, got, "", long)
	})
	t.Run("our ROUTER, its DEALER and REQ", func(t *testing.T) {
		z := startLibzmq(t)
		router, err := ListenRouter(endpoint(t, "tcp://127.0.0.1:*"), RouterConfig{}, func(request [][]byte, reply func(frames ...[]byte) error) {
			for range 2 {
				if err := reply(request...); err != nil {
					t.Error(err)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer router.Close()
		z.do("open", "dealer", "DEALER")
		z.do("connect", "dealer", router.Endpoint().String())
		z.do("open", "req", "REQ")
		z.do("connect", "req", router.Endpoint().String())
		z.send("dealer", "", "q", long)
		z.send("req", "one answer only")
		wantFrames(t, z.receive("dealer"), "", "q", long)
		wantFrames(t, z.receive("dealer"), "", "q", long)
		wantFrames(t, z.receive("req"), "one answer only")
	})
}
