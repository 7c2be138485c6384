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

func ptr[T any](v T) *T { return &v }

// engine is a text engine with two aliases and blocks of 32 tokens.
func engine(role protocol.Role) *Engine {
	return &Engine{Role: role, ServedName: "served", ModelID: "org/model", Aliases: []string{"alias-a", "alias-b"}, BlockSize: 32}
}

// request reads a request with the prompt 1, 2, 3 and the given further members.
func request(t testing.TB, members string) *protocol.PreprocessedRequest {
	t.Helper()
	if !strings.Contains(members, `"token_ids"`) {
		members = strings.TrimSuffix(`"token_ids":[1,2,3],`+members, ",")
	}
	r, err := protocol.ParseRequest(protocol.JSON, []byte("{"+members+"}"))
	if err != nil {
		t.Fatalf("%s: %v", members, err)
	}
	return r
}

func value(t testing.TB, text string) protocol.Value {
	t.Helper()
	v, err := protocol.ParseValue(protocol.JSON, []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// convert converts what must not be refused.
func convert(t testing.TB, e *Engine, members string) *Call {
	t.Helper()
	call, refusal := e.Convert("id", request(t, members))
	if refusal != nil {
		t.Fatalf("%s refused: %v", members, refusal)
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
func recordings(t testing.TB) []recording {
	t.Helper()
	paths, err := filepath.Glob("../../proto/vllm/testdata/*-*.json")
	if err != nil {
		t.Fatal(err)
	}
	var out []recording
	for _, path := range paths {
		text, failed := os.ReadFile(path)
		if failed != nil {
			t.Fatal(failed)
		}
		var file struct {
			RPC       string
			Request   json.RawMessage
			Responses []json.RawMessage
		}
		if err = json.Unmarshal(text, &file); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if file.RPC == "" {
			continue // not an exchange
		}
		r := recording{name: strings.TrimSuffix(filepath.Base(path), ".json"), request: &pb.GenerateRequest{}}
		if err = protojson.Unmarshal(file.Request, r.request); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, raw := range file.Responses {
			m := &pb.GenerateResponse{}
			if err = protojson.Unmarshal(raw, m); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			r.responses = append(r.responses, m)
		}
		out = append(out, r)
	}
	if len(out) < 15 {
		t.Fatalf("only %d recordings found", len(out))
	}
	return out
}
