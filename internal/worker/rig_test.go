package worker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/test/bufconn"

	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/dynamo/status"
	"remora/internal/handoff"
	"remora/internal/translate"
	"remora/internal/vllm"
	"remora/internal/vllm/vllmtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is one service between a scripted engine and the frontend's side of the response stream, all in memory and in a
// synctest bubble, so that time is virtual.
type rig struct {
	t        *testing.T
	engine   *vllmtest.Engine
	svc      *service
	frontend *requestplane.ResponseServer
	listener *tapListener
	refuse   bool // dial-backs fail
	wg       sync.WaitGroup
}

// tapListener remembers the last connection, to say things on it that the frontend's side never says by itself.
type tapListener struct {
	*bufconn.Listener

	mu   sync.Mutex
	last net.Conn // guarded by mu
}

func (l *tapListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	l.mu.Lock()
	l.last = conn
	l.mu.Unlock()
	return conn, err
}

func bubble(t *testing.T, role protocol.Role, test func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, engine: vllmtest.New(t), listener: &tapListener{Listener: bufconn.Listen(1 << 20)}}
		endpoint, err := vllm.ParseEndpoint("127.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		client, err := vllm.Dial(t.Context(), vllm.Config{Endpoint: endpoint, Dialer: r.engine.Dial})
		if err != nil {
			t.Fatal(err)
		}
		r.frontend = requestplane.NewResponseServer(r.listener, requestplane.ResponseServerConfig{Address: "127.0.0.1:2"})
		var serving sync.WaitGroup
		serving.Go(func() { _ = r.frontend.Serve() })
		ctx, end := context.WithCancel(t.Context())
		metrics := status.NewMetrics()
		r.svc = &service{
			ctx: ctx, engine: client, metrics: metrics, gate: newGate(4, 2, metrics), live: make(map[string]*request),
			log:       slog.New(slog.DiscardHandler),
			translate: &translate.Engine{Role: role, ServedName: "tiny", ModelID: "/models/tiny", BlockSize: 16},
			handoffs:  newHandoffs(30*time.Second, 16, translate.HandoffStrict),
			machine:   handoff.Config{Role: machineRole(role), DrainDeadline: 30 * time.Second, ShutdownRead: shutdownRead},
			dialer: &requestplane.Dialer{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				if r.refuse {
					return nil, errors.New("connection refused by the test")
				}
				return r.listener.DialContext(ctx)
			}},
		}
		test(r)
		r.wg.Wait()
		end()
		r.svc.background.Wait()
		r.frontend.Close()
		serving.Wait()
		if err := client.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if inside, live, places := r.svc.gate.inside(), len(r.svc.live), len(r.svc.gate.places); inside+live+places != 0 {
			t.Errorf("left behind: %d requests in the gate, %d in the service, %d places", inside, live, places)
		}
		r.engine.Close()
	})
}

// handoffParams is what a NIXL prefill engine hands over for a prompt of up to 16 tokens.
func handoffParams() protocol.Value {
	m := func(k string, v protocol.Value) protocol.Member { return protocol.Member{Key: k, Value: v} }
	return protocol.Map(
		m("do_remote_prefill", protocol.Bool(true)), m("do_remote_decode", protocol.Bool(false)),
		m("remote_block_ids", protocol.List(protocol.List(protocol.Int(7)))), m("remote_engine_id", protocol.String("p")),
		m("remote_request_id", protocol.String("r-1-0a1b2c3d")), m("remote_host", protocol.String("127.0.0.1")),
		m("remote_port", protocol.Int(5600)), m("tp_size", protocol.Int(1)),
	)
}

func body(role protocol.Role) *protocol.PreprocessedRequest {
	maxTokens := uint32(50)
	b := &protocol.PreprocessedRequest{
		Model: "tiny", TokenIDs: []uint32{1, 2, 3, 4}, StopConditions: protocol.StopConditions{MaxTokens: &maxTokens},
	}
	if role == protocol.Decode {
		b.PrefillResult = &protocol.PrefillResult{DisaggregatedParams: handoffParams()}
	}
	return b
}

// open is one request as its frontend sees it.
type open struct {
	*requestplane.Incoming

	rig *rig
	id  string
}

// send runs a request with the role's body.
func (r *rig) send(id string) *open {
	return r.sendBody(id, protocol.AppendRequest(nil, protocol.MsgPack, body(r.svc.translate.Role)))
}

func (r *rig) sendBody(id string, raw []byte) *open {
	incoming, info := r.frontend.Register(r.t.Context(), id, protocol.MsgPack)
	in := &requestplane.Request{
		Path: "x", Body: raw, ReceivedAt: time.Now(),
		Control: requestplane.Control{ID: id, Codec: protocol.MsgPack, Connection: info},
	}
	if err := r.svc.Admit(in); err != nil {
		r.t.Fatalf("admit: %v", err)
	}
	r.wg.Go(func() { r.svc.Serve(r.t.Context(), in) })
	return &open{Incoming: incoming, rig: r, id: id}
}

// say puts one control word on the response connection that was opened last.
func (r *rig) say(word string) {
	r.listener.mu.Lock()
	conn := r.listener.last
	r.listener.mu.Unlock()
	frame := make([]byte, 24, 24+len(word)+2)
	binary.BigEndian.PutUint64(frame, uint64(len(word)+2))
	if _, err := conn.Write(append(frame, `"`+word+`"`...)); err != nil {
		r.t.Errorf("say %s: %v", word, err)
	}
}

// cut breaks the response connection that was opened last, without a word.
func (r *rig) cut() {
	r.listener.mu.Lock()
	defer r.listener.mu.Unlock()
	_ = r.listener.last.Close()
}

// read gives the rest of the response as one line: tokens, finish reasons, errors, "final" or the way it broke.
func (o *open) read() string {
	var words []string
	for {
		item, err := o.Next(o.rig.t.Context())
		var typed *protocol.Error
		switch {
		case errors.Is(err, io.EOF):
			return strings.Join(append(words, "final"), " ")
		case errors.As(err, &typed):
			return strings.Join(append(words, "prologue("+kindName(typed.Kind)+")"), " ")
		case err != nil:
			return strings.Join(append(words, "broken"), " ")
		case item.Error != nil:
			words = append(words, "error("+kindName(item.Error.Kind)+")")
		default:
			for _, id := range item.Data.TokenIDs {
				words = append(words, fmt.Sprint(id))
			}
			if item.Data.FinishReason != "" {
				words = append(words, string(item.Data.FinishReason))
			}
		}
	}
}

func kindName(k protocol.ErrorKind) string {
	if k.Backend {
		return "Backend." + k.Name
	}
	return k.Name
}
