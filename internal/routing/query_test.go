package routing

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/dynamo/eventplane"
	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/memnet"
)

// TestQueryFrames: the stock sidecar's response to the query of a router that starts, frame by frame.
func TestQueryFrames(t *testing.T) {
	recorded, err := os.ReadFile("testdata/kv-recovery-query.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(recorded)) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "hex="); ok {
			want = append(want, text)
		}
	}
	_, question, _ := strings.Cut(want[0], "86a9776f726b65725f6964") // its first key is worker_id
	body, err := hex.DecodeString("86a9776f726b65725f6964" + question)
	if err != nil {
		t.Fatal(err)
	}
	p := eventplane.NewPublisher(eventplane.Config{WorkerID: 7542304613624184315})
	in := &requestplane.Request{Body: body, Control: requestplane.Control{
		ID: "912f77ef-b750-4ee5-bc35-2c02b6bc17ae", Codec: protocol.MsgPack,
		Connection: requestplane.ConnectionInfo{Address: "127.0.0.1:35911", Subject: "6e0b4a9b-8417-470b-9a7d-e41c7d292b6e"},
	}}
	synctest.Test(t, func(t *testing.T) {
		near, far := memnet.Pipe(64 << 10)
		q := &queries{
			publisher: p, turns: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler),
			dialer: &requestplane.Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil }},
		}
		if err := q.Admit(in); err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		go func() { defer close(served); q.Serve(t.Context(), in) }()
		expected := strings.Join(want[2:], "") // without the request, its acknowledgement and the handshake
		got := make([]byte, 4096)
		read := 0
		for !strings.HasSuffix(hex.EncodeToString(got[:read]), hex.EncodeToString([]byte(`"sentinel"`))) {
			n, err := far.Read(got[read:])
			if err != nil {
				t.Fatalf("%v after %q", err, got[:read])
			}
			read += n
		}
		handshake := 24 + int(binary.BigEndian.Uint64(got))
		if frames := hex.EncodeToString(got[handshake:read]); frames != expected {
			t.Errorf("got  %s\nwant %s", frames, expected)
		}
		_ = far.Close()
		<-served
		if len(q.turns) != 0 {
			t.Error("its turn is not over")
		}
	})
}

// TestQueryOfADeafRouter: who does not read holds up the others for half a minute, and no longer.
func TestQueryOfADeafRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := eventplane.Event{Kind: eventplane.Stored}
		for i := range uint64(10_000) {
			e.Blocks = append(e.Blocks, eventplane.Block{Hash: i << 32, TokensHash: i << 32})
		}
		pub := eventplane.NewPublisher(eventplane.Config{WorkerID: 1, Socket: nowhere{}})
		pub.Publish(e)
		near, far := memnet.Pipe(1 << 10)
		q := &queries{
			publisher: pub, turns: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler),
			dialer: &requestplane.Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil }},
		}
		began := time.Now()
		q.Serve(t.Context(), &requestplane.Request{Body: []byte{0x80}, Control: requestplane.Control{
			Codec: protocol.MsgPack, Connection: requestplane.ConnectionInfo{Address: "127.0.0.1:1"},
		}})
		if took := time.Since(began); took != queryPatience {
			t.Errorf("it took %v", took)
		}
		_, _ = io.Copy(io.Discard, far)
		_ = far.Close()
	})
}

// TestQueriesOfLingeringRouters: who has its answer and does not hang up keeps nobody else from asking, who leaves while it
// waits is forgotten, and there is a bound to all of them.
func TestQueriesOfLingeringRouters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pub := eventplane.NewPublisher(eventplane.Config{WorkerID: 1, Socket: nowhere{}})
		routers := make(chan net.Conn, queriesInside+1)
		q := &queries{
			publisher: pub, turns: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler),
			dialer: &requestplane.Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) {
				near, far := memnet.Pipe(64 << 10)
				routers <- far
				return near, nil
			}},
		}
		ask := func(body []byte) error {
			in := &requestplane.Request{Body: body, Control: requestplane.Control{
				Codec: protocol.MsgPack, Connection: requestplane.ConnectionInfo{Address: "127.0.0.1:1"},
			}}
			if err := q.Admit(in); err != nil {
				return err
			}
			go q.Serve(t.Context(), in)
			return nil
		}
		answer := func(router net.Conn) string {
			buf := make([]byte, 4<<10)
			n, err := router.Read(buf)
			if err != nil {
				t.Error(err)
			}
			return string(buf[:n])
		}
		began := time.Now()
		for range queriesInside {
			if err := ask([]byte{0x80}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		var refusal *requestplane.Refusal
		if err := ask([]byte{0x80}); !errors.As(err, &refusal) || !refusal.Overloaded {
			t.Errorf("one more than there is room for: %v", err)
		}
		for range queriesInside {
			if got := answer(<-routers); !strings.Contains(got, "sentinel") {
				t.Fatalf("no whole answer: %q", got)
			}
		}
		if time.Since(began) != 0 {
			t.Errorf("the last answer came after %v", time.Since(began))
		}
		time.Sleep(time.Minute) // longer than anybody lingers
		synctest.Wait()
		if n := q.inside.Load(); n != 0 {
			t.Errorf("%d are inside after all have their answer", n)
		}

		q.turns <- struct{}{} // somebody else's
		if err := ask([]byte{0x80}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		_ = (<-routers).Close()
		synctest.Wait()
		if n := q.inside.Load(); n != 0 {
			t.Error("a router that left still waits for its turn")
		}
		<-q.turns

		if err := ask(make([]byte, maxQuery+1)); err != nil {
			t.Fatal(err)
		}
		router := <-routers
		synctest.Wait()
		if got := answer(router); !strings.Contains(got, "question about KV events") {
			t.Errorf("a question that is too long: %q", got)
		}
		_ = router.Close()
	})
}

type nowhere struct{}

func (nowhere) Publish(...[]byte) int { return 0 }
