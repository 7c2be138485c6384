package calibration

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tinylib/msgp/msgp"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	pb "remora/proto/vllm"
)

//go:embed events.txt
var measuredEvents string

// ErrEvents is wrapped by Events for an engine that publishes something else than what was measured.
var ErrEvents = errors.New("calibration: KV events")

// Settings that an engine must have for Events, besides MaxModelLen, BlockSize and Lease.
const (
	EventRanks  = 2
	EventBlocks = 40 // on each rank; one of them is never used
	EventTopic  = "kv"
)

// Message is one message of KV events.
type Message struct {
	Sequence uint64
	Topic    string
	Payload  []byte
}

// Events takes rank 0 of a fresh engine through steps whose messages were measured (vLLM 0.32.0 on CPU), and compares: in which
// order blocks are evicted, what is stored again, where a message ends, what the cache had. read returns the messages since its
// last call. The error names the first line that differs.
func Events(ctx context.Context, e *Engine, read func(ctx context.Context) ([]Message, error)) error {
	do := &eventRun{e: e, read: read, names: map[string]string{}}
	for _, s := range eventSteps() {
		if err := do.step(metadata.AppendToOutgoingContext(ctx, "x-data-parallel-rank", "0"), s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	got, want := strings.Split(do.text.String(), "\n"), strings.Split(measuredEvents, "\n")
	for i := range max(len(got), len(want)) {
		if g, w := line(got, i), line(want, i); g != w {
			return fmt.Errorf("%w: line %d:\ngot  %s\nwant %s", ErrEvents, i+1, g, w)
		}
	}
	return nil
}

func line(lines []string, i int) string {
	if i >= len(lines) {
		return "(nothing)"
	}
	return lines[i]
}

// eventStep is one request, after a pause that clears the cache if it says so.
type eventStep struct {
	name          string
	size          int
	first, tokens uint32 // the prompt's first token, and how many to generate
	pause         bool
	change        func(r *pb.GenerateRequest)
}

func eventSteps() []eventStep {
	salt := func(r *pb.GenerateRequest) { r.Kv.CacheSalt = "salt-1" }
	steps := []eventStep{
		{name: "70", size: 70, first: 1, tokens: 2},
		{name: "70 again", size: 70, first: 1, tokens: 30},
		{name: "salt", size: 40, first: 1, tokens: 1, change: salt},
		{name: "salt 100", size: 100, first: 1, tokens: 1, change: salt},
		{name: "64", size: 64, first: 50, tokens: 1},
		{name: "64 again", size: 64, first: 50, tokens: 1},
		{name: "64 bypass", size: 64, first: 50, tokens: 1, change: func(r *pb.GenerateRequest) { r.Kv.BypassPrefixCache = true }},
	}
	for i := range uint32(5) {
		steps = append(steps, eventStep{name: fmt.Sprint("fill", i), size: 300 + int(i)*17, first: 100 + i*31, tokens: 3})
	}
	return append(steps,
		eventStep{name: "70 third", size: 70, first: 1, tokens: 2},
		eventStep{name: "512", size: 500, first: 77, tokens: 12},
		eventStep{name: "long answer", size: 30, first: 90, tokens: 100},
		eventStep{name: "prefix logprobs", size: 70, first: 1, tokens: 2, change: func(r *pb.GenerateRequest) { r.Response.PromptLogprobs = true }},
		eventStep{name: "after clear", size: 70, first: 1, tokens: 2, pause: true},
		eventStep{name: "small, no event", size: 7, first: 1, tokens: 2},
		eventStep{name: "held", size: 70, first: 200, tokens: 1, change: func(r *pb.GenerateRequest) {
			r.Kv.KvTransferParams = &structpb.Struct{Fields: map[string]*structpb.Value{"do_remote_decode": structpb.NewBoolValue(true)}}
		}},
		eventStep{name: "after a clear with held blocks", size: 70, first: 1, tokens: 2, pause: true},
	)
}

// eventRun writes down what steps come to, in the form of events.txt: a line for each request with its counts, and one for each
// message with its events. A block's name is when it was first heard of; what never differs is left out.
type eventRun struct {
	e     *Engine
	read  func(ctx context.Context) ([]Message, error)
	names map[string]string
	text  strings.Builder
}

func (do *eventRun) step(ctx context.Context, s eventStep) error {
	if s.pause {
		if err := do.pause(ctx); err != nil {
			return err
		}
	}
	ids := make([]uint32, s.size)
	for i := range ids {
		ids[i] = 5 + (s.first+uint32(i)*7)%400
	}
	req := &pb.GenerateRequest{
		RequestId: "events " + s.name, Prompt: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}},
		Stopping: &pb.StoppingCriteria{MaxNewTokens: s.tokens, IgnoreEos: true},
		Response: &pb.ResponseOptions{OutputText: new(bool), OutputTokenIds: true}, Kv: &pb.KVCacheParameters{},
	}
	if s.change != nil {
		s.change(req)
	}
	m, err := do.e.inference().Generate(ctx, req)
	if err != nil {
		return err
	}
	finish := m.GetOutputs().GetFinishInfo()
	fmt.Fprintf(&do.text, "# %s cached %d out %d\n", s.name, finish.GetNumCachedTokens(), finish.GetNumOutputTokens())
	if err = wait(ctx, "300ms"); err != nil { // for the last step, and for the publisher
		return err
	}
	messages, err := do.read(ctx)
	if err != nil {
		return err
	}
	for _, m := range messages {
		if err := do.message(m); err != nil {
			return err
		}
	}
	return nil
}

// pause clears the cache, which nobody is told of by then. It lasts as long as a hand-off is held.
func (do *eventRun) pause(ctx context.Context) error {
	begin := time.Now()
	if _, err := do.e.control().PauseGeneration(ctx, &pb.PauseGenerationRequest{Mode: pb.PauseMode_PAUSE_MODE_WAIT}); err != nil {
		return err
	}
	if took := time.Since(begin); took > Lease+3*time.Second {
		return fmt.Errorf("%w: the pause came after %v", ErrEvents, took)
	}
	messages, err := do.read(ctx)
	if err == nil && len(messages) > 0 {
		err = fmt.Errorf("%w: %d messages in a pause", ErrEvents, len(messages))
	}
	if err != nil {
		return err
	}
	_, err = do.e.control().ResumeGeneration(ctx, &pb.ResumeGenerationRequest{})
	return err
}

func (do *eventRun) message(m Message) error {
	v, rest, err := msgp.ReadIntfBytes(m.Payload)
	batch, ok := v.([]any)
	if err != nil || !ok || len(batch) != 3 || len(rest) > 0 {
		return fmt.Errorf("%w: message %d is no batch: %x", ErrEvents, m.Sequence, m.Payload)
	}
	events, _ := batch[1].([]any)
	fmt.Fprintf(&do.text, "  %d topic %q rank %v: ", m.Sequence, m.Topic, batch[2])
	for _, v := range events {
		event, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("%w: message %d has the event %v", ErrEvents, m.Sequence, v)
		}
		do.event(event)
	}
	do.text.WriteByte('\n')
	return nil
}

func (do *eventRun) name(hash any) string {
	key := fmt.Sprint(hash)
	if _, ok := do.names[key]; !ok {
		do.names[key] = fmt.Sprintf("b%d", len(do.names))
	}
	return do.names[key]
}

func (do *eventRun) event(event map[string]any) {
	usual := map[string]string{
		"block_size": "32", "lora_id": "<nil>", "lora_name": "<nil>", "medium": "GPU", "group_idx": "0", "kv_cache_spec_kind": "full_attention",
	}
	keys := make([]string, 0, len(event))
	for key, value := range event {
		text := fmt.Sprint(value)
		items, isList := value.([]any)
		switch {
		case key == "block_hashes" && isList:
			text = ""
			for _, h := range items {
				text += do.name(h) + " "
			}
		case key == "parent_block_hash" && value != nil:
			text = do.name(value)
		case key == "token_ids" && isList:
			text = fmt.Sprint(len(items))
		}
		if usual[key] != text {
			keys = append(keys, key+"="+text)
		}
	}
	slices.Sort(keys)
	fmt.Fprint(&do.text, keys)
}
