package translate

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

type numberValue = structpb.Value_NumberValue

// sorted puts the keys of a document into order.
func sorted(v protocol.Value) protocol.Value {
	out := v
	out.List, out.Map = slices.Clone(v.List), slices.Clone(v.Map)
	for i := range out.List {
		out.List[i] = sorted(out.List[i])
	}
	for i := range out.Map {
		out.Map[i].Value = sorted(out.Map[i].Value)
	}
	slices.SortFunc(out.Map, func(a, b protocol.Member) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// stream packs messages as length-delimited records.
func stream(tb testing.TB, messages []*pb.GenerateResponse) []byte {
	tb.Helper()
	var out []byte
	for _, m := range messages {
		b, err := proto.Marshal(m)
		if err != nil {
			tb.Fatal(err)
		}
		out = protowire.AppendBytes(out, b)
	}
	return out
}

// FuzzResponse feeds arbitrary messages to every role with everything asked for: no panic, and what comes out can be written.
func FuzzResponse(f *testing.F) {
	for _, r := range recordings(f) {
		f.Add(stream(f, r.responses), uint8(len(r.request.GetTokenIds().GetIds())))
	}
	f.Fuzz(func(t *testing.T, data []byte, promptTokens uint8) {
		var messages []*pb.GenerateResponse
		for len(data) > 0 && len(messages) < 32 {
			record, n := protowire.ConsumeBytes(data)
			if n < 0 {
				break
			}
			data = data[n:]
			m := &pb.GenerateResponse{}
			if proto.Unmarshal(record, m) == nil {
				messages = append(messages, m)
			}
		}
		for _, role := range []protocol.Role{protocol.Aggregated, protocol.Prefill, protocol.Decode} {
			for _, logprobs := range []*uint32{nil, new(uint32(0)), new(uint32(2))} {
				for _, expands := range []bool{false, true} {
					replay(t, newResponse(role, &protocol.PreprocessedRequest{
						TokenIDs:      make([]uint32, promptTokens),
						OutputOptions: protocol.OutputOptions{Logprobs: logprobs, PromptLogprobs: logprobs},
					}, expands), messages)
				}
			}
		}
	})
}

func replay(t *testing.T, r *Response, messages []*pb.GenerateResponse) {
	t.Helper()
	for _, m := range messages {
		result, err := r.Convert(m)
		switch {
		case err != nil && !errors.Is(err, ErrInvalidResponse):
			t.Fatalf("unmarked error %v", err)
		case err != nil && result.Output != nil:
			t.Fatal("an output beside an error")
		}
		if result.Output != nil {
			for _, codec := range []protocol.Codec{protocol.JSON, protocol.MsgPack} {
				written := protocol.AppendItem(nil, codec, &protocol.Item{Data: result.Output})
				if _, _, err = protocol.ParseItem(codec, written); err != nil {
					t.Fatalf("%x cannot be read back: %v", written, err)
				}
			}
		}
		if err != nil || m.GetOutputs().GetFinishInfo() != nil {
			break
		}
	}
	if r.Cancelled().Usage == nil {
		t.Fatal("no usage")
	}
}

func anyRequest(t *rapid.T) *protocol.PreprocessedRequest {
	optionalFloat := rapid.Ptr(rapid.Float32(), true)
	optionalCount := rapid.Ptr(rapid.OneOf(rapid.Uint32Range(0, 3), rapid.Uint32()), true)
	text := rapid.Ptr(rapid.String(), true)
	boolean := rapid.Ptr(rapid.Bool(), true)
	one := rapid.Ptr(rapid.SampledFrom([]uint8{1, 1, 1, 1, 2}), true)
	documents := rapid.OneOf(rapid.Just(protocol.Null()), rapid.Just(protocol.Null()), anyValue(3))
	r := &protocol.PreprocessedRequest{
		TokenIDs:       rapid.SliceOfN(rapid.Uint32(), 0, 70).Draw(t, "tokens"),
		EncoderResult:  documents.Draw(t, "encoder"),
		ExtraArgs:      documents.Draw(t, "extra"),
		MultiModalData: rapid.OneOf(rapid.Just(protocol.Null()), anyValue(1)).Draw(t, "media"),
	}
	r.StopConditions = protocol.StopConditions{
		MaxTokens: optionalCount.Draw(t, "max"), MinTokens: optionalCount.Draw(t, "min"),
		Stop:               rapid.SliceOfN(rapid.String(), 0, 3).Draw(t, "stop"),
		StopTokenIDs:       rapid.SliceOfN(rapid.Uint32(), 0, 3).Draw(t, "ids"),
		StopTokenIDsHidden: rapid.SliceOfN(rapid.Uint32(), 0, 3).Draw(t, "hidden"),
		IgnoreEOS:          boolean.Draw(t, "eos"),
	}
	r.SamplingOptions = protocol.SamplingOptions{
		N: one.Draw(t, "n"), BestOf: one.Draw(t, "best"), Temperature: optionalFloat.Draw(t, "temperature"),
		TopP: optionalFloat.Draw(t, "top_p"), MinP: optionalFloat.Draw(t, "min_p"),
		TopK:          rapid.Ptr(rapid.OneOf(rapid.Int32Range(-3, 9), rapid.Int32()), true).Draw(t, "top_k"),
		LengthPenalty: optionalFloat.Draw(t, "length"), Seed: rapid.Ptr(rapid.Int64(), true).Draw(t, "seed"),
	}
	if rapid.Bool().Draw(t, "guided") {
		r.SamplingOptions.GuidedDecoding = &protocol.GuidedDecoding{
			JSON: documents.Draw(t, "json"), Regex: text.Draw(t, "regex"), StructuralTag: documents.Draw(t, "tag"),
		}
	}
	r.OutputOptions = protocol.OutputOptions{Logprobs: optionalCount.Draw(t, "logprobs"), PromptLogprobs: optionalCount.Draw(t, "prompt")}
	r.Routing = protocol.Routing{
		DPRank: optionalCount.Draw(t, "rank"), CacheSalt: text.Draw(t, "salt"),
		Priority: rapid.Ptr(rapid.Int32(), true).Draw(t, "priority"),
	}
	if rapid.Bool().Draw(t, "handed off") {
		r.PrefillResult = &protocol.PrefillResult{
			DisaggregatedParams: rapid.OneOf(anyValue(3), rapid.Map(anyMembers(3), func(m []protocol.Member) protocol.Value {
				return protocol.Map(m...)
			})).Draw(t, "params"),
			PromptTokensDetails: documents.Draw(t, "details"),
		}
	}
	return r
}

// convertAny: whatever the request, it is refused in words or becomes a message that protobuf can write.
func convertAny(t *rapid.T) {
	r := anyRequest(t)
	e := engine(rapid.SampledFrom([]protocol.Role{protocol.Aggregated, protocol.Prefill, protocol.Decode, protocol.Encode}).Draw(t, "role"))
	e.HandoffCheck = rapid.SampledFrom([]HandoffCheck{HandoffStrict, HandoffShape, HandoffOff}).Draw(t, "check")
	e.Multimodal = rapid.Bool().Draw(t, "multimodal")
	call, refusal := e.Convert("id", r)
	if refusal != nil {
		if call != nil || refusal.Err.Message == "" || refusal.Err.Public == "" {
			t.Fatalf("call %v beside refusal %+v", call, refusal.Err)
		}
		return
	}
	if _, err := proto.Marshal(call.Request); err != nil {
		t.Fatal(err)
	}
	if _, leaked := call.Request.GetKv().GetKvTransferParams().GetFields()[stampKey]; leaked && e.Role == protocol.Decode {
		t.Fatal("the stamp reached the engine")
	}
}

func TestConvertAny(t *testing.T) { rapid.Check(t, convertAny) }

func FuzzConvert(f *testing.F) { f.Fuzz(rapid.MakeFuzz(convertAny)) }
