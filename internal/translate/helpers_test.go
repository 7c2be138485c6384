package translate

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

// engine is a text engine with two aliases and blocks of 32 tokens.
func engine(role protocol.Role) *Engine {
	return &Engine{Role: role, ServedName: "served", ModelID: "org/model", Aliases: []string{"alias-a", "alias-b"}, BlockSize: 32}
}

// request reads a request with the prompt 1, 2, 3 and the given further members.
func request(tb testing.TB, members string) *protocol.PreprocessedRequest {
	tb.Helper()
	if !strings.Contains(members, `"token_ids"`) {
		members = strings.TrimSuffix(`"token_ids":[1,2,3],`+members, ",")
	}
	r, err := protocol.ParseRequest(protocol.JSON, []byte("{"+members+"}"))
	if err != nil {
		tb.Fatalf("%s: %v", members, err)
	}
	return r
}

func value(tb testing.TB, text string) protocol.Value {
	tb.Helper()
	v, err := protocol.ParseValue(protocol.JSON, []byte(text))
	if err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	return v
}

// convert converts what must not be refused.
func convert(tb testing.TB, e *Engine, members string) *Call {
	tb.Helper()
	call, refusal := e.Convert("id", request(tb, members))
	if refusal != nil {
		tb.Fatalf("%s refused: %v", members, refusal)
	}
	return call
}

// recording is one exchange with a real engine.
type recording struct {
	name      string
	request   *pb.GenerateRequest
	responses []*pb.GenerateResponse
}

// recordings are kept beside the messages that they are recordings of.
func recordings(tb testing.TB) []recording {
	tb.Helper()
	paths, err := filepath.Glob("../../proto/vllm/testdata/*-*.json")
	if err != nil {
		tb.Fatal(err)
	}
	var out []recording
	for _, path := range paths {
		text, failed := os.ReadFile(path)
		if failed != nil {
			tb.Fatal(failed)
		}
		var file struct {
			RPC       string
			Request   json.RawMessage
			Responses []json.RawMessage
		}
		if err = json.Unmarshal(text, &file); err != nil {
			tb.Fatalf("%s: %v", path, err)
		}
		if file.RPC == "" {
			continue // not an exchange
		}
		r := recording{name: strings.TrimSuffix(filepath.Base(path), ".json"), request: &pb.GenerateRequest{}}
		if err = protojson.Unmarshal(file.Request, r.request); err != nil {
			tb.Fatalf("%s: %v", path, err)
		}
		for _, raw := range file.Responses {
			m := &pb.GenerateResponse{}
			if err = protojson.Unmarshal(raw, m); err != nil {
				tb.Fatalf("%s: %v", path, err)
			}
			r.responses = append(r.responses, m)
		}
		out = append(out, r)
	}
	if len(out) < 15 {
		tb.Fatalf("only %d recordings found", len(out))
	}
	return out
}
