package engine

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "remora/proto/vllm"
)

// Server is the engine.
type Server struct {
	model string // folder of the model; set once
	wheel *wheel // set once
	name  string // instance id; set once

	mu   sync.Mutex
	live map[string]*stream // guarded by mu; by request id
}

// New returns an engine that serves the model in a folder.
func New(model string) *Server {
	return &Server{
		model: model, wheel: newWheel(), live: map[string]*stream{},
		name: strconv.FormatInt(time.Now().UnixNano(), 16),
	}
}

// Serve accepts connections until the listener fails.
func (e *Server) Serve(l net.Listener) error {
	go e.wheel.run()
	for {
		raw, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		c := &conn{
			server: e, net: raw, wake: make(chan struct{}, 1), closed: make(chan struct{}),
			window: initialWindow, initial: initialWindow, streams: map[uint32]*stream{},
		}
		go c.run()
	}
}

// initialWindow is HTTP/2's, until settings say otherwise.
const initialWindow = 65535

func (e *Server) logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

func (e *Server) remember(s *stream, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.live[id] = s
}

func (e *Server) forget(s *stream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.live[s.request.id] == s {
		delete(e.live, s.request.id)
	}
}

// abort ends the live streams with these ids.
func (e *Server) abort(ids []string) {
	for _, id := range ids {
		e.mu.Lock()
		s := e.live[id]
		e.mu.Unlock()
		if s != nil {
			s.conn.abort(s)
		}
	}
}

const (
	inference = "/vllm.Inference/"
	control   = "/vllm.Control/"
	health    = "/grpc.health.v1.Health/"
)

// answer serves a call whose request has arrived whole.
func (c *conn) answer(s *stream) {
	if len(s.body) < grpcPrefix || s.body[0] != 0 {
		c.refuse(s, "3", "no plain gRPC message")
		return
	}
	msg := s.body[grpcPrefix:]
	switch s.method {
	case inference + "GenerateStream":
		r, err := parseRequest(msg)
		if err != nil {
			c.refuse(s, "3", err.Error())
			return
		}
		c.generate(s, r)
	case control + "GetServerInfo":
		c.reply(s, c.server.serverInfo())
	case control + "GetModelInfo":
		c.reply(s, c.server.modelInfo())
	case control + "GetKvEventSources":
		c.reply(s, &pb.GetKvEventSourcesResponse{})
	case control + "ListLoras":
		c.reply(s, &pb.ListLorasResponse{})
	case control + "Abort":
		var request pb.AbortRequest
		if err := proto.Unmarshal(msg, &request); err != nil {
			c.refuse(s, "3", "AbortRequest can't be read")
			return
		}
		c.server.abort(request.GetRequestIds())
		c.reply(s, &pb.AbortResponse{})
	case health + "Check":
		c.say(s, serving(), true)
	case health + "Watch":
		c.say(s, serving(), false)
	default:
		c.refuse(s, "12", "not implemented")
	}
}

// serving is HealthCheckResponse{status: SERVING}.
func serving() []byte { return protowire.AppendVarint([]byte{0x08}, 1) }

func (c *conn) reply(s *stream, m proto.Message) {
	msg, err := proto.MarshalOptions{}.MarshalAppend([]byte{}, m) // not nil where it is empty
	if err != nil {
		c.refuse(s, "13", "answer can't be encoded")
		return
	}
	c.say(s, msg, true)
}

// say answers with one message. A Watch stays open after it.
func (c *conn) say(s *stream, msg []byte, end bool) {
	c.mu.Lock()
	if !s.done {
		c.out = appendHeaders(c.out, s.id, 0, blockOK)
		s.reply, s.last = msg, end
		c.pay(s)
	}
	c.mu.Unlock()
}

func (c *conn) refuse(s *stream, code, message string) {
	c.mu.Lock()
	c.out = appendHeaders(c.out, s.id, flagEndStream, blockFailed(code, message[:min(len(message), 100)]))
	c.forget(s)
	c.mu.Unlock()
	c.server.logf("%s refused: %s", s.method, message)
}

// The sizes that the engine claims leave room for every load.
func (e *Server) serverInfo() *pb.ServerInfo {
	const blockSize = 16
	attention := uint64(blockSize)
	return &pb.ServerInfo{
		EngineVersion: "0.32.0", ApiVersion: "vllm", InstanceId: e.name,
		Parallelism: &pb.ParallelismInfo{
			TensorParallelSize: 1, PipelineParallelSize: 1, DataParallelSize: 1, DecodeContextParallelSize: 1, WorldSize: 1,
			DataParallelSizeLocal: 1,
		},
		MaxModelLen: 1 << 30, KvBlockSize: blockSize, TotalKvBlocks: 1 << 26, MaxRunningRequests: 4096,
		MaxBatchedTokens: 1 << 20, Rl: &pb.RlCapabilities{}, EffectiveAttentionBlockSize: &attention,
	}
}

func (e *Server) modelInfo() *pb.ModelInfo {
	return &pb.ModelInfo{
		ModelId: e.model, ServedModelName: "bench", SupportsTextInput: true, SupportsTokenIdsInput: true,
	}
}
