package sim

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	pb "remora/proto/vllm"
)

// likeRecorded sets an engine up like the one that the answers in testdata were recorded from.
func likeRecorded(c *Config) { c.BlockSize, c.Blocks, c.MaxModelLen = 32, 65, 512 }

func load(t *testing.T, name string, into any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func parseRequest(t *testing.T, raw json.RawMessage) *pb.GenerateRequest {
	t.Helper()
	req := &pb.GenerateRequest{}
	if err := protojson.Unmarshal(raw, req); err != nil {
		t.Fatal(err)
	}
	return req
}

// TestRecordedRefusals sends every request that a real engine was seen to refuse: code, words and the absence of headers are
// the same. Two of the recorded cases fail inside the engine's grammar compiler, which is not simulated.
//
// Rules: refusals-without-headers.
func TestRecordedRefusals(t *testing.T) {
	var cases []struct {
		Case         string
		Request      json.RawMessage
		Metadata     [][]string
		Code         string
		Message      string
		HeadersFirst bool `json:"headers_first"`
	}
	load(t, "errors.json", &cases)
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", likeRecorded)
		for _, tt := range cases {
			req := request("", words(512, 1), 3)
			if string(tt.Request) != `"(long)"` {
				req = parseRequest(t, tt.Request)
			}
			if req.GetModel() == "" {
				req.Model = "tiny"
			}
			if tt.HeadersFirst {
				tt.Code, tt.HeadersFirst = codes.Unimplemented.String(), false
				tt.Message = "this simulated engine cannot constrain its output by a " + strings.TrimPrefix(strings.TrimPrefix(tt.Case, "bad "), "a ")
			}
			md := metadata.MD{}
			for _, kv := range tt.Metadata {
				md.Append(kv[0], kv[1])
			}
			ctx := metadata.NewOutgoingContext(t.Context(), md)
			stream := e.open(ctx, t, req)
			r := readAll(stream)
			got := status.Convert(r.err)
			words := regexp.MustCompile("`[0-9a-f-]{36}`").ReplaceAllString(got.Message(), "`<id>`")
			if code := strings.ReplaceAll(tt.Code, "_", ""); !strings.EqualFold(code, got.Code().String()) || words != tt.Message {
				t.Errorf("%s:\ngot  %v %s\nwant %s %s", tt.Case, got.Code(), words, tt.Code, tt.Message)
			}
			if md, err := stream.Header(); err == nil && len(md) > 0 {
				t.Errorf("%s: refused after headers %v", tt.Case, md)
			}
		}
		wantBase(t, e)
	})
}

// recording is one request and what a real engine answered.
type recording struct {
	RPC       string
	Request   json.RawMessage
	Responses []json.RawMessage
}

// TestRecordedShapes sends recorded requests: the answers have the same messages with the same fields. Values differ, and text
// may be held back at other places.
func TestRecordedShapes(t *testing.T) {
	for _, name := range []string{
		"agg-eos", "agg-length", "agg-logprobs", "agg-no-text", "agg-stop-token", "agg-text-defaults", "agg-unary", "agg-utf8",
		"pd-prefill", "pd-prefill-n3", "pd-prefill-short", "pd-prefill-stop", "pd-decode", "pd-decode-1",
	} {
		t.Run(name, func(t *testing.T) {
			var rec recording
			load(t, name+".json", &rec)
			synctest.Test(t, func(t *testing.T) {
				nw := network{}
				p, d := start(t, nw, "p", likeRecorded), start(t, nw, "d", likeRecorded)
				req := parseRequest(t, rec.Request)
				target := p
				if strings.HasPrefix(name, "pd-decode") {
					pre := p.generate(t, prefillRequest(t, "pre", req.GetTokenIds().GetIds()))
					req.Kv.KvTransferParams = pre.handOff(t)
					target = d
				}
				if name == "agg-stop-token" { // the one that this model says in the same place
					req.Stopping.StopTokenIds = p.tokens(t, request("unstopped", req.GetTokenIds().GetIds(), 6))[5:]
				}
				var r reply
				if rec.RPC == "Generate" {
					m, err := target.infer.Generate(t.Context(), req)
					r = reply{msgs: []*pb.GenerateResponse{m}, err: err}
				} else {
					r = target.generate(t, req)
				}
				if r.err != nil || len(r.msgs) != len(rec.Responses) {
					t.Fatalf("%d messages, %v; want %d", len(r.msgs), r.err, len(rec.Responses))
				}
				for i, m := range r.msgs {
					want := &pb.GenerateResponse{}
					if err := protojson.Unmarshal(rec.Responses[i], want); err != nil {
						t.Fatal(err)
					}
					if got, want := shape(t, m), shape(t, want); !slices.Equal(got, want) {
						t.Errorf("message %d:\ngot  %v\nwant %v", i, got, want)
					}
					if got, want := m.GetOutputs(), want.GetOutputs(); name == "agg-utf8" && // the same bytes in both models
						(got.GetText() != want.GetText() || !slices.Equal(got.GetTokenIds(), want.GetTokenIds())) {
						t.Errorf("message %d:\ngot  %v\nwant %v", i, got, want)
					}
				}
			})
		})
	}
}

// shape lists the paths of all fields but texts, with the kind of each value; numbers that must agree are kept.
func shape(t *testing.T, m *pb.GenerateResponse) []string {
	t.Helper()
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	paths := map[string]bool{}
	walk(v, "", paths)
	return slices.Sorted(maps.Keys(paths))
}

func walk(v any, path string, paths map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if key != "text" {
				walk(value, path+"."+key, paths)
			}
		}
	case []any:
		for _, item := range v {
			walk(item, path+"[]", paths)
		}
	case string:
		paths[path+"="+kindOf(path, v)] = true
	case bool:
		paths[path+"="+map[bool]string{true: "true", false: "false"}[v]] = true
	case nil:
		paths[path+"=null"] = true
	default:
		paths[path] = true
	}
}

// kindOf keeps words out of a fixed set and hides the rest.
func kindOf(path, v string) string {
	if strings.HasSuffix(path, "finish_reason") || strings.HasSuffix(path, "transfer_mode") {
		return v
	}
	return "text"
}

// Rules: no-proto-version.
func TestRecordedControl(t *testing.T) {
	var rec struct {
		GetServerInfo struct{ Response json.RawMessage }
	}
	load(t, "control-info.json", &rec)
	want := &pb.ServerInfo{}
	if err := protojson.Unmarshal(rec.GetServerInfo.Response, want); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", likeRecorded)
		got, err := e.ctrl.GetServerInfo(t.Context(), &pb.GetServerInfoRequest{})
		if err != nil || got.GetInstanceId() == "" {
			t.Fatal(got, err)
		}
		want.InstanceId = got.GetInstanceId()
		if got.String() != want.String() {
			t.Errorf("got  %v\nwant %v", got, want)
		}
		model, err := e.ctrl.GetModelInfo(t.Context(), &pb.GetModelInfoRequest{})
		if err != nil || model.GetModelId() != "/models/tiny" || model.GetServedModelName() != "tiny" || !model.GetSupportsTokenIdsInput() || !model.GetSupportsTextInput() {
			t.Error(model, err)
		}
		sources, err := e.ctrl.GetKvEventSources(t.Context(), &pb.GetKvEventSourcesRequest{})
		if err != nil || len(sources.GetSources()) != 0 {
			t.Error(sources, err)
		}
		_, err = e.ctrl.ListLoras(t.Context(), &pb.ListLorasRequest{})
		wantStatus(t, err, "FailedPrecondition: engine was not started with LoRA enabled")
	})
}
