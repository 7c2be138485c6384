package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/memnet"

	pb "remora/proto/vllm"
)

// network connects engines of one test by name.
type network map[string]*memnet.Listener

func (n network) dial(ctx context.Context, addr string) (net.Conn, error) {
	l, ok := n[addr]
	if !ok {
		return nil, errors.New("connection refused")
	}
	conn, err := l.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// engine is a running server with a client.
type engine struct {
	*Server

	infer pb.InferenceClient
	ctrl  pb.ControlClient
	conn  *grpc.ClientConn
	stop  context.CancelFunc
	done  chan error
}

// start runs an engine until the test ends. Name is its side channel's address in the network, port 1 for rank 0.
func start(t *testing.T, nw network, name string, change func(*Config)) *engine {
	t.Helper()
	return startWith(t, nw, name, nil, change)
}

// startWith is start with a listener for HTTP.
func startWith(t *testing.T, nw network, name string, web net.Listener, change func(*Config)) *engine {
	t.Helper()
	cfg := Config{
		Model: "/models/tiny", ServedName: "tiny", BlockSize: 4, Blocks: 65, MaxModelLen: 128, MaxSeqs: 4,
		StepTime: 10 * time.Millisecond, Lease: 12 * time.Second, Seed: 7, SideChannelHost: name, SideChannelPort: 1, Dial: nw.dial,
	}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	front := memnet.Listen(1 << 16)
	var sides []net.Listener
	for _, r := range s.ranks {
		side := memnet.Listen(1 << 16)
		nw[fmt.Sprintf("%s:%d", name, 1+r.number)] = side
		sides = append(sides, side)
	}
	conn, err := grpc.NewClient("passthrough:///"+name,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return front.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil { // Run would do it, some time later
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &engine{Server: s, infer: pb.NewInferenceClient(conn), ctrl: pb.NewControlClient(conn), conn: conn, stop: cancel, done: make(chan error, 1)}
	go func() {
		e.done <- s.Run(ctx, Listeners{GRPC: front, HTTP: web, SideChannels: sides})
		close(e.done)
	}()
	t.Cleanup(func() { e.end() })
	return e
}

// end stops the engine as SIGTERM does and returns what Run said, nil the second time.
func (e *engine) end() error {
	e.stop()
	err := <-e.done
	e.conn.Close()
	return err
}

// reply is what a stream gave.
type reply struct {
	msgs []*pb.GenerateResponse
	err  error
}

func (r reply) tokens() []uint32 {
	var ids []uint32
	for _, m := range r.msgs {
		ids = append(ids, m.GetOutputs().GetTokenIds()...)
	}
	return ids
}

func (r reply) text() string {
	text := ""
	for _, m := range r.msgs {
		text += m.GetOutputs().GetText()
	}
	return text
}

func (r reply) finish() *pb.FinishInfo {
	if len(r.msgs) == 0 {
		return nil
	}
	return r.msgs[len(r.msgs)-1].GetOutputs().GetFinishInfo()
}

func (r reply) handOff(t *testing.T) *structpb.Struct {
	t.Helper()
	params := r.finish().GetKvTransferParams()
	if r.err != nil || params == nil {
		t.Fatalf("no hand-off: %v, %v", r.err, r.finish())
	}
	return params
}

func (e *engine) open(ctx context.Context, t *testing.T, req *pb.GenerateRequest) grpc.ServerStreamingClient[pb.GenerateResponse] {
	t.Helper()
	stream, err := e.infer.GenerateStream(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func readAll(stream grpc.ServerStreamingClient[pb.GenerateResponse]) (r reply) {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return r
		}
		if err != nil {
			r.err = err
			return r
		}
		r.msgs = append(r.msgs, m)
	}
}

func (e *engine) generate(t *testing.T, req *pb.GenerateRequest) reply {
	t.Helper()
	return readAll(e.open(t.Context(), t, req))
}

func (e *engine) tokens(t *testing.T, req *pb.GenerateRequest) []uint32 {
	t.Helper()
	r := e.generate(t, req)
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.tokens()
}

func words(n int, salt uint32) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = 256 + (uint32(i)*37+salt*101)%248
	}
	return ids
}

func request(id string, prompt []uint32, n uint32) *pb.GenerateRequest {
	return &pb.GenerateRequest{
		RequestId: id,
		Prompt:    &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: prompt}},
		Stopping:  &pb.StoppingCriteria{MaxNewTokens: n},
		Response:  &pb.ResponseOptions{OutputTokenIds: true},
	}
}

func prefillRequest(t *testing.T, id string, prompt []uint32) *pb.GenerateRequest {
	t.Helper()
	params, err := structpb.NewStruct(map[string]any{
		"do_remote_decode": true, "do_remote_prefill": false,
		"remote_engine_id": nil, "remote_block_ids": nil, "remote_host": nil, "remote_port": nil,
	})
	if err != nil {
		t.Fatal(err)
	}
	req := request(id, prompt, 1)
	req.Kv = &pb.KVCacheParameters{KvTransferParams: params}
	return req
}

func decodeRequest(id string, prompt []uint32, n uint32, handOff *structpb.Struct) *pb.GenerateRequest {
	req := request(id, prompt, n)
	req.Kv = &pb.KVCacheParameters{KvTransferParams: handOff}
	return req
}

func wantStatus(t *testing.T, err error, want string) {
	t.Helper()
	if got := status.Convert(err); got.Code().String()+": "+got.Message() != want {
		t.Errorf("got  %v: %s\nwant %s", got.Code(), got.Message(), want)
	}
}
