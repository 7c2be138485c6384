package calibration

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	pb "remora/proto/vllm"
)

// call is one Generate under way.
type call struct {
	req     *pb.GenerateRequest
	began   time.Time
	cancel  context.CancelFunc
	headers chan struct{} // closed when they are there, or never will be
	read    chan struct{} // closed when messages may be taken; at once unless the call is lazy
	readNow sync.Once
	done    chan struct{} // closed at the end
	took    time.Duration // set before done is closed
	err     error         // likewise

	mu   sync.Mutex
	msgs []*pb.GenerateResponse // guarded by mu
}

// begin sends a request. Its goroutine ends with the call; cancel makes it end.
func begin(ctx context.Context, e *Engine, req *pb.GenerateRequest, unary, lazy bool) *call {
	ctx, cancel := context.WithCancel(ctx)
	c := &call{req: req, began: time.Now(), cancel: cancel, headers: make(chan struct{}), read: make(chan struct{}), done: make(chan struct{})}
	if !lazy {
		c.goOn()
	}
	go func() {
		defer close(c.done)
		if unary {
			close(c.headers)
			var m *pb.GenerateResponse
			if m, c.err = e.inference().Generate(ctx, req); c.err == nil {
				c.add(m)
			}
		} else {
			c.err = c.stream(ctx, e)
		}
		c.took = time.Since(c.began)
	}()
	return c
}

// goOn lets a lazy call take its messages.
func (c *call) goOn() { c.readNow.Do(func() { close(c.read) }) }

func (c *call) stream(ctx context.Context, e *Engine) error {
	stream, err := e.inference().GenerateStream(ctx, c.req)
	if err == nil {
		_, err = stream.Header()
	}
	close(c.headers)
	if err != nil {
		return err
	}
	select {
	case <-c.read:
	case <-ctx.Done():
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		c.add(m)
	}
}

func (c *call) add(m *pb.GenerateResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.msgs = append(c.msgs, m)
}

// tokens returns the ids so far, and the most that came in one message.
func (c *call) tokens() (ids []uint32, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.msgs {
		got := m.GetOutputs().GetTokenIds()
		ids = append(ids, got...)
		most = max(most, len(got))
	}
	return ids, most
}

// finish returns the last message's finish_info, nil without one.
func (c *call) finish() *pb.FinishInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.msgs) == 0 {
		return nil
	}
	return c.msgs[len(c.msgs)-1].GetOutputs().GetFinishInfo()
}

// outcome is how the call ended, in a scenario's words: the finish reason, or the status code's name.
func (c *call) outcome() string {
	if c.err != nil {
		return strings.ToUpper(status.Code(c.err).String())
	}
	return c.finish().GetFinishReason().String()
}

// why is the outcome with the status message, for people.
func (c *call) why() string {
	if c.err == nil {
		return c.outcome()
	}
	return c.outcome() + ": " + status.Convert(c.err).Message()
}

// request is what the words of an open step ask for.
func request(row string, words []string, handOffs map[string]*structpb.Struct) (req *pb.GenerateRequest, unary, lazy bool, err error) {
	req = &pb.GenerateRequest{
		Stopping: &pb.StoppingCriteria{MaxNewTokens: 8, IgnoreEos: true},
		Response: &pb.ResponseOptions{OutputTokenIds: true, OutputText: new(bool)},
		Kv:       &pb.KVCacheParameters{},
	}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "prompt":
			name, size, _ := strings.Cut(value, "/")
			var n int
			n, err = strconv.Atoi(size)
			req.Prompt = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: prompt(row+" "+name, n)}}
		case "max":
			var n uint64
			n, err = strconv.ParseUint(value, 10, 32)
			req.Stopping.MaxNewTokens = uint32(n)
		case "hand":
			if req.Kv.KvTransferParams = handOffs[value]; req.GetKv().GetKvTransferParams() == nil {
				err = fmt.Errorf("%w: no hand-off %q", ErrScenario, value)
			}
		case "produce":
			req.Kv.KvTransferParams = &structpb.Struct{Fields: map[string]*structpb.Value{"do_remote_decode": structpb.NewBoolValue(true)}}
		case "salt":
			req.Kv.CacheSalt = value
		case "bypass":
			req.Kv.BypassPrefixCache = true
		case "model":
			req.Model = value
		case "id":
			req.RequestId = row + "-" + value
		case "unary":
			unary = true
		case "lazy":
			lazy = true
		default:
			err = fmt.Errorf("%w: unknown word %q", ErrScenario, word)
		}
		if err != nil {
			return nil, false, false, err
		}
	}
	return req, unary, lazy, nil
}

// prompt makes n tokens, single letters, that are a name's own: no two names share a block. Shorter ones are its beginning.
func prompt(name string, n int) []uint32 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, name)
	state := h.Sum64() | 1
	ids := make([]uint32, n)
	for i := range ids {
		state = state*6364136223846793005 + 1442695040888963407
		ids[i] = 'a' + uint32(state>>33)%26
	}
	return ids
}
