package sim

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/sim/core"
	pb "remora/proto/vllm"
)

// recordedRequests are the bytes of all requests in testdata.
func recordedRequests(f *testing.F) (all [][]byte) {
	f.Helper()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil {
		f.Fatal(err)
	}
	add := func(raw json.RawMessage) {
		req := &pb.GenerateRequest{}
		if len(raw) == 0 || protojson.Unmarshal(raw, req) != nil {
			return
		}
		b, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, b)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		var one recording
		var many []recording
		if json.Unmarshal(raw, &one) == nil {
			add(one.Request)
		} else if json.Unmarshal(raw, &many) == nil {
			for _, r := range many {
				add(r.Request)
			}
		}
	}
	if len(all) < 30 {
		f.Fatalf("only %d recorded requests", len(all))
	}
	return all
}

// FuzzRequest: whatever a request says, it is refused with a code that a real engine has, or runs to its end and leaves nothing
// behind.
func FuzzRequest(f *testing.F) {
	for _, raw := range recordedRequests(f) {
		f.Add(raw, false)
		f.Add(raw, true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, multimodal bool) {
		req := &pb.GenerateRequest{}
		if proto.Unmarshal(raw, req) != nil {
			return
		}
		s, err := New(Config{Model: "m", Blocks: 33, BlockSize: 4, MaxModelLen: 120, Multimodal: multimodal, Lease: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		s.ranks[0].fetch = &fetcher{} // an engine with a connector: prepare looks at no more than that
		req.Model = ""
		j, err := s.prepare(req, nil)
		if err != nil {
			switch status.Code(err) {
			case codes.InvalidArgument, codes.FailedPrecondition, codes.Unimplemented:
			default:
				t.Fatal(err)
			}
			return
		}
		j.core.MaxTokens = min(j.core.MaxTokens, 9)
		engine := s.ranks[0].loop.engine
		if err := engine.Add(j.core); err != nil {
			t.Fatal(err)
		}
		finished := false
		for now := time.Duration(0); now < 10*time.Second; now += 100 * time.Millisecond {
			plan := engine.Schedule(now)
			for _, read := range plan.Reads {
				engine.ReadFailed(read.ID)
			}
			engine.Apply(now)
			for _, out := range engine.Take() {
				if finished {
					t.Fatalf("%+v after the end", out)
				}
				msgs, last, _, err := j.answer.add(out, address{host: "h", port: 1})
				if finished = last; out.Reason == core.Running && err != nil {
					t.Fatal(err)
				}
				for _, m := range msgs {
					if _, err := proto.Marshal(m); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := engine.Check(); err != nil {
				t.Fatal(err)
			}
		}
		src := j.core.Transfer.Consume
		hangs := src != nil && src.Defect == core.MissingKey
		if st := engine.Stats(); !st.Dead && !hangs && (!finished || st.UsedBlocks != 0) {
			t.Fatalf("finished %v: %+v", finished, st)
		}
	})
}

// TestStructBeyondRecognition: parameters of a hand-off may be any JSON at all.
func TestStructBeyondRecognition(t *testing.T) {
	deep := structpb.NewStringValue("x")
	for range 1000 {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	for name, value := range map[string]*structpb.Value{
		"deep": deep, "nothing": {}, "null": structpb.NewNullValue(), "flag": structpb.NewBoolValue(true),
		"object": structpb.NewStructValue(&structpb.Struct{}),
	} {
		fields := map[string]*structpb.Value{"do_remote_prefill": structpb.NewBoolValue(true)}
		for _, key := range []string{"remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size"} {
			fields[key] = value
		}
		if src := core.ParseTransfer((&structpb.Struct{Fields: fields}).AsMap()).Consume; src == nil || src.Defect == core.Sound {
			t.Errorf("%s: %+v", name, src)
		}
	}
}
