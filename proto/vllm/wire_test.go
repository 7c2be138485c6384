package vllm

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
)

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func number(f float64) *structpb.Value { return structpb.NewNumberValue(f) }

func list(values ...*structpb.Value) *structpb.Value {
	return structpb.NewListValue(&structpb.ListValue{Values: values})
}

// TestGoldenBytes: composed messages, field for field in the bytes that the engine reads and writes. None has a Struct of more
// than one key, whose order would not be stable.
func TestGoldenBytes(t *testing.T) {
	for _, row := range []struct {
		name    string
		message proto.Message
		hex     string
	}{
		{
			"a prefill request",
			&GenerateRequest{
				RequestId: "r-1",
				Prompt:    &GenerateRequest_TokenIds{TokenIds: &TokenIds{Ids: []uint32{1, 2, 300}}},
				Stopping:  &StoppingCriteria{MaxNewTokens: 1},
				Kv: &KVCacheParameters{KvTransferParams: &structpb.Struct{
					Fields: map[string]*structpb.Value{"do_remote_decode": structpb.NewBoolValue(true)},
				}},
			},
			`0a 03 72 2d 31
			 22 06 0a 04 01 02 ac 02
			 42 02 08 01
			 52 1a 1a 18 0a 16 0a 10 64 6f 5f 72 65 6d 6f 74 65 5f 64 65 63 6f 64 65 12 02 20 01`,
		},
		{
			"the first message of an answer",
			&GenerateResponse{PromptInfo: &PromptInfo{NumPromptTokens: 3}},
			`0a 02 08 03`,
		},
		{
			"a token",
			&GenerateResponse{Outputs: &SequenceOutput{NumTokens: 1, TokenIds: []uint32{42}}},
			`12 05 18 01 22 01 2a`,
		},
		{
			"the last token",
			&GenerateResponse{Outputs: &SequenceOutput{
				NumTokens: 1, TokenIds: []uint32{42},
				FinishInfo: &FinishInfo{NumOutputTokens: 1, FinishReason: FinishInfo_LENGTH},
			}},
			`12 0b 18 01 22 01 2a 42 04 08 01 10 01`,
		},
		{"an abort", &AbortRequest{RequestIds: []string{"r-1"}}, `0a 03 72 2d 31`},
		{
			"block ids of a hand-off",
			&structpb.Struct{Fields: map[string]*structpb.Value{"remote_block_ids": list(list(number(111), number(112)))}},
			`0a 30 0a 10 72 65 6d 6f 74 65 5f 62 6c 6f 63 6b 5f 69 64 73
			 12 1c 32 1a 0a 18 32 16 0a 09 11 00 00 00 00 00 c0 5b 40 0a 09 11 00 00 00 00 00 00 5c 40`,
		},
		{
			"a request with media",
			&GenerateRequest{Media: []*MediaItem{{Modality: Modality_MODALITY_IMAGE, Source: &MediaItem_Url{Url: "http://h"}}, {Uuid: "u"}}},
			`72 0c 08 01 12 08 68 74 74 70 3a 2f 2f 68
			 72 03 32 01 75`,
		},
		{
			"media by URL",
			&MediaItem{Modality: Modality_MODALITY_IMAGE, Source: &MediaItem_Url{Url: "http://h"}, Uuid: "u"},
			`08 01 12 08 68 74 74 70 3a 2f 2f 68 32 01 75`,
		},
		{
			"media in a URI",
			&MediaItem{Modality: Modality_MODALITY_VIDEO, Source: &MediaItem_DataUri{DataUri: "data:,x"}, MimeType: "t"},
			`08 02 1a 07 64 61 74 61 3a 2c 78 2a 01 74`,
		},
		{
			"media in bytes",
			&MediaItem{Modality: Modality_MODALITY_AUDIO, Source: &MediaItem_RawBytes{RawBytes: []byte{0xff}}},
			`08 03 22 01 ff`,
		},
		{
			"preprocessed features",
			&MediaItem{Modality: Modality_MODALITY_IMAGE, Source: &MediaItem_Features{Features: &PreprocessedMediaFeatures{
				Kwargs: []byte("ABC"), Identifier: "i", Offset: 1, Length: 300, MmHash: new("h"), IsEmbed: []bool{true, false},
			}}},
			`08 01
			 3a 14 0a 03 41 42 43 12 01 69 18 01 20 ac 02 2a 01 68 32 02 01 00`,
		},
		{
			"features of nothing are not none",
			&PreprocessedMediaFeatures{Kwargs: []byte{}, MmHash: new("")},
			`0a 00 2a 00`,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			checkBytes(t, row.message, unhex(t, row.hex))
		})
	}
}

// checkBytes: the message is written as these bytes, and these bytes are read as the message with nothing unknown left.
func checkBytes(t *testing.T, message proto.Message, want []byte) {
	t.Helper()
	got, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(records(t, want), records(t, got)); diff != "" {
		t.Errorf("written as\n%x, want\n%x", got, want)
	}
	read := message.ProtoReflect().New().Interface()
	if err = proto.Unmarshal(want, read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(message, read, protocmp.Transform()); diff != "" {
		t.Errorf("read as something else:\n%s", diff)
	}
}

// records splits a message into its fields, ordered by number: writers may order them as they like, and Go's puts the members of
// a oneof last.
func records(t *testing.T, message []byte) []string {
	t.Helper()
	type record struct {
		number protowire.Number
		hex    string
	}
	var all []record
	for len(message) > 0 {
		number, _, n := protowire.ConsumeField(message)
		if n < 0 {
			t.Fatalf("%x is no message", message)
		}
		all = append(all, record{number, hex.EncodeToString(message[:n])})
		message = message[n:]
	}
	slices.SortStableFunc(all, func(a, b record) int { return int(a.number - b.number) })
	out := make([]string, len(all))
	for i, r := range all {
		out[i] = r.hex
	}
	return out
}

// TestControlRecording: answers of a real engine, recorded as bytes and as JSON.
func TestControlRecording(t *testing.T) {
	var file map[string]struct {
		Response json.RawMessage
		Hex      string
	}
	text, err := os.ReadFile("testdata/control-info.json")
	if err != nil {
		t.Fatal(err)
	}
	if err = json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for name, message := range map[string]proto.Message{
		"GetServerInfo":     &ServerInfo{},
		"GetKvEventSources": &GetKvEventSourcesResponse{},
	} {
		t.Run(name, func(t *testing.T) {
			parse(t, file[name].Response, message)
			checkBytes(t, message, unhex(t, file[name].Hex))
		})
	}
	model := &ModelInfo{}
	parse(t, file["GetModelInfo"].Response, model)
	if model.GetModelId() == "" || !model.GetSupportsTokenIdsInput() {
		t.Errorf("model info %v", model)
	}
}

// parse refuses names that the message does not have.
func parse(t *testing.T, text []byte, message proto.Message) {
	t.Helper()
	if err := protojson.Unmarshal(text, message); err != nil {
		t.Fatalf("%.200s: %v", text, err)
	}
}

// TestStreamRecordings: every recorded request and answer has only fields that our text names, and survives the wire.
func TestStreamRecordings(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.json")
	if err != nil {
		t.Fatal(err)
	}
	exchanges := 0
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		if !strings.HasPrefix(name, "agg-") && !strings.HasPrefix(name, "pd-") {
			continue
		}
		exchanges++
		t.Run(name, func(t *testing.T) {
			text, failed := os.ReadFile(path)
			if failed != nil {
				t.Fatal(failed)
			}
			var file struct {
				Request   json.RawMessage
				Responses []json.RawMessage
			}
			if failed = json.Unmarshal(text, &file); failed != nil {
				t.Fatal(failed)
			}
			roundTrip(t, file.Request, &GenerateRequest{})
			for _, raw := range file.Responses {
				roundTrip(t, raw, &GenerateResponse{})
			}
			if len(file.Responses) == 0 {
				t.Error("no answers")
			}
		})
	}
	if exchanges < 15 {
		t.Errorf("only %d recordings found", exchanges)
	}
}

func roundTrip(t *testing.T, text []byte, message proto.Message) {
	t.Helper()
	parse(t, text, message)
	b, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	read := message.ProtoReflect().New().Interface()
	if err = proto.Unmarshal(b, read); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(message, read) {
		t.Errorf("%v came back as %v", message, read)
	}
}
