package vllm

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// The refusals and failures of a real vLLM 0.32.0: each is of the kind that a client should be told.
func TestKindsOfRecordedErrors(t *testing.T) {
	text, err := os.ReadFile("testdata/engine-errors.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Case, Message string
		Code          codes.Code
		HeadersFirst  bool `json:"headers_first"`
	}
	if err = json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 {
		t.Fatal("no cases")
	}
	for _, c := range cases {
		want := InvalidArgument
		switch c.Code {
		case codes.Internal:
			want = Unknown
		case codes.Unimplemented:
			want = Unimplemented
		default:
		}
		got := KindOf(Status{RPC: "GenerateStream", Code: c.Code, Message: c.Message})
		if got != want {
			t.Errorf("%s: %v is of kind %v, want %v", c.Case, c.Code, got, want)
		}
		if c.HeadersFirst && got == InvalidArgument {
			t.Errorf("%s: a refusal that comes after headers", c.Case)
		}
	}
}

// The bytes of GetServerInfo that vLLM 0.32.0 sent are what the tests' stand-in tells.
func TestRecordedServerInfo(t *testing.T) {
	const recorded = "0a06302e33322e301204766c6c6d1a1331373936303431333832363135313932383438220c08011001180128013001380128800430" +
		"20384140044880105a007020"
	wire, err := hex.DecodeString(recorded)
	if err != nil {
		t.Fatal(err)
	}
	server := new(pb.ServerInfo)
	if err = proto.Unmarshal(wire, server); err != nil {
		t.Fatal(err)
	}
	if want := vllmtest.DefaultServer(); !proto.Equal(server, want) {
		t.Errorf("recorded %v, stand-in %v", server, want)
	}
}
