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

	"remora/internal/memnet"

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
	role     protocol.Role
	engine   *vllmtest.Engine
	svc      *service
	frontend *requestplane.ResponseServer
	taps     *taps
	dialing  func(ctx context.Context) error // runs before every dial-back; nil: nothing. Set before the first request
	wg       sync.WaitGroup
	handoffs int // made so far; the test's goroutine's
	// dpRank and prefillRank are what bodies ask for; nil: nothing. Set before the first request.
	dpRank, prefillRank *uint32
}

func bubble(t *testing.T, role protocol.Role, test func(r *rig)) {
	t.Helper()
	bubbleOn(t, vllm.BackendH2, role, test)
}

func bubbleOn(t *testing.T, backend vllm.Backend, role protocol.Role, test func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, role: role, engine: vllmtest.New(t), taps: &taps{Listener: memnet.Listen(64 << 10)}}
		endpoint, err := vllm.ParseEndpoint("127.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		client, err := vllm.Dial(t.Context(), vllm.Config{Endpoint: endpoint, Backend: backend, Dialer: r.engine.Dial})
		if err != nil {
			t.Fatal(err)
		}
		r.frontend = requestplane.NewResponseServer(r.taps, requestplane.ResponseServerConfig{Address: "127.0.0.1:2"})
		var serving sync.WaitGroup
		serving.Go(func() { _ = r.frontend.Serve() })
		ctx, end := context.WithCancel(t.Context())
		metrics := status.NewMetrics()
		metrics.Bind(status.Identity{Namespace: "n", Component: "c", Endpoint: "e", WorkerID: 1, Model: "tiny"})
		r.svc = &service{
			ctx: ctx, engine: client, metrics: metrics, gate: newGate(4, 2, metrics), live: make(map[string]*request),
			log:       slog.New(slog.DiscardHandler),
			translate: &translate.Engine{Role: role, ServedName: "tiny", ModelID: "/models/tiny", BlockSize: 16},
			handoffs:  newHandoffs(30*time.Second, 16, translate.HandoffStrict),
			machine:   handoff.Config{Role: machineRole(role), DrainDeadline: 30 * time.Second, ShutdownRead: shutdownRead},
			dialer: &requestplane.Dialer{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				if r.dialing != nil {
					if err := r.dialing(ctx); err != nil {
						return nil, err
					}
				}
				return r.taps.dial(ctx)
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

// handoffParams is what a NIXL prefill engine hands over for a prompt of up to 16 tokens, each time another one.
func (r *rig) handoffParams() protocol.Value {
	r.handoffs++
	m := func(k string, v protocol.Value) protocol.Member { return protocol.Member{Key: k, Value: v} }
	return protocol.Map(
		m("do_remote_prefill", protocol.Bool(true)), m("do_remote_decode", protocol.Bool(false)),
		m("remote_block_ids", protocol.List(protocol.List(protocol.Int(7)))), m("remote_engine_id", protocol.String("p")),
		m("remote_request_id", protocol.String(fmt.Sprintf("r-%d-0a1b2c3d", r.handoffs))), m("remote_host", protocol.String("127.0.0.1")),
		m("remote_port", protocol.Int(5600)), m("tp_size", protocol.Int(1)),
	)
}

func (r *rig) body() *protocol.PreprocessedRequest {
	maxTokens := uint32(50)
	b := &protocol.PreprocessedRequest{
		Model: "tiny", TokenIDs: []uint32{1, 2, 3, 4}, StopConditions: protocol.StopConditions{MaxTokens: &maxTokens},
	}
	b.Routing.DPRank, b.Routing.PrefillDPRank = r.dpRank, r.prefillRank
	if r.role == protocol.Decode {
		b.PrefillResult = &protocol.PrefillResult{DisaggregatedParams: r.handoffParams()}
	}
	return b
}

// open is one request as its frontend sees it.
type open struct {
	*requestplane.Incoming

	rig     *rig
	id      string
	subject string
}

// send runs a request with the role's body.
func (r *rig) send(id string) *open {
	o, err := r.try(id)
	if err != nil {
		r.t.Fatalf("admit: %v", err)
	}
	return o
}

// try is send for a request that the gate may refuse.
func (r *rig) try(id string) (*open, error) {
	return r.sendBody(id, protocol.AppendRequest(nil, protocol.MsgPack, r.body()))
}

func (r *rig) sendBody(id string, raw []byte) (*open, error) {
	incoming, info := r.frontend.Register(r.t.Context(), id, protocol.MsgPack)
	in := &requestplane.Request{
		Path: "x", Body: raw, ReceivedAt: time.Now(),
		Control: requestplane.Control{ID: id, Codec: protocol.MsgPack, Connection: info},
	}
	return r.sendRequest(incoming, in)
}

func (r *rig) sendRequest(incoming *requestplane.Incoming, in *requestplane.Request) (*open, error) {
	if err := r.svc.Admit(in); err != nil {
		incoming.Kill()
		return nil, err
	}
	r.wg.Go(func() { r.svc.Serve(r.t.Context(), in) })
	return &open{Incoming: incoming, rig: r, id: in.Control.ID, subject: in.Control.Connection.Subject}, nil
}

// say puts one control word on the response connection.
func (o *open) say(word string) {
	conn := o.rig.taps.of(&o.rig.taps.accepted, o.subject)
	if conn == nil {
		o.rig.t.Errorf("say %s: not connected", word)
		return
	}
	frame := make([]byte, 24, 24+len(word)+2)
	binary.BigEndian.PutUint64(frame, uint64(len(word)+2))
	_, _ = conn.Write(append(frame, `"`+word+`"`...)) // the worker may have hung up in the meantime
}

// cut breaks the response connection without a word.
func (o *open) cut() {
	if conn := o.rig.taps.of(&o.rig.taps.accepted, o.subject); conn != nil {
		_ = conn.Close()
	}
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
