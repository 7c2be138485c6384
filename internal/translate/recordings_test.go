package translate

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

// requestOf writes the Dynamo request that leads to a recorded engine request.
func requestOf(r *pb.GenerateRequest) *protocol.PreprocessedRequest {
	out := &protocol.PreprocessedRequest{TokenIDs: r.GetTokenIds().GetIds()}
	if r.GetResponse().GetOutputLogprobs() {
		out.OutputOptions.Logprobs = new(r.GetResponse().GetOutputCandidates().GetTopN())
	}
	if r.GetResponse().GetPromptLogprobs() {
		out.OutputOptions.PromptLogprobs = new(r.GetResponse().GetPromptCandidates().GetTopN())
	}
	out.StopConditions.StopTokenIDs = r.GetStopping().GetStopTokenIds()
	out.StopConditions.Stop = r.GetStopping().GetStopStrings()
	return out
}

// TestRecordings replays a real engine's answers: they must convert without a complaint, keep every token, and end once.
func TestRecordings(t *testing.T) {
	for _, recording := range recordings(t) {
		if recording.name == "agg-text-defaults" {
			continue // a text prompt without token ids in the answer: Remora never asks that way
		}
		t.Run(recording.name, func(t *testing.T) {
			e := engine(protocol.Aggregated)
			request := requestOf(recording.request)
			switch {
			case strings.HasPrefix(recording.name, "pd-prefill"):
				e.Role = protocol.Prefill
			case strings.HasPrefix(recording.name, "pd-decode"):
				e.Role = protocol.Decode
				params, fault := fromStruct(recording.request.GetKv().GetKvTransferParams())
				if fault != nil {
					t.Fatal(fault.text())
				}
				request.PrefillResult = &protocol.PrefillResult{DisaggregatedParams: params}
			}
			call, refusal := e.Convert("id", request)
			if refusal != nil {
				t.Fatal(refusal)
			}
			var want, got []uint32
			var last Result
			for i, m := range recording.responses {
				want = append(want, m.GetOutputs().GetTokenIds()...)
				result, err := call.Response.Convert(m)
				if err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
				if result.Output != nil {
					got = append(got, result.Output.TokenIDs...)
				}
				finished := result.Output != nil && result.Output.FinishReason != protocol.FinishNone
				if finished != (i == len(recording.responses)-1) {
					t.Errorf("message %d: finished %v", i, finished)
				}
				last = result
			}
			if e.Role == protocol.Prefill {
				want = nil
			}
			if !slices.Equal(got, want) {
				t.Errorf("tokens %v, want %v", got, want)
			}
			checkLast(t, e, &last, recording.responses[len(recording.responses)-1].GetOutputs().GetFinishInfo())
			if e.Role == protocol.Prefill {
				checkPassedOn(t, last.Output.DisaggregatedParams, recording.request.GetTokenIds().GetIds())
			}
		})
	}
}

func checkLast(t *testing.T, e *Engine, last *Result, finish *pb.FinishInfo) {
	t.Helper()
	usage := last.Output.Usage
	wantFinish := map[pb.FinishInfo_FinishReason]protocol.FinishReason{
		pb.FinishInfo_LENGTH: protocol.FinishLength, pb.FinishInfo_STOP: protocol.FinishStop,
	}[finish.GetFinishReason()]
	if last.Output.FinishReason != wantFinish {
		t.Errorf("finish %q, want %q", last.Output.FinishReason, wantFinish)
	}
	if e.Role != protocol.Prefill && usage.CompletionTokens != finish.GetNumOutputTokens() {
		t.Errorf("usage %+v, want %d tokens", usage, finish.GetNumOutputTokens())
	}
	wantCached := finish.GetNumCachedTokens()
	if e.Role == protocol.Decode {
		wantCached = 0 // the recorded prefills found nothing in their cache
	}
	if usage.CachedTokens == nil || *usage.CachedTokens != wantCached {
		t.Errorf("cached tokens %v, want %d", usage.CachedTokens, wantCached)
	}
	if last.Handoff != (e.Role == protocol.Prefill) {
		t.Errorf("hand-off %v", last.Handoff)
	}
}

// checkPassedOn carries a recorded hand-off to a strict decode worker, once over each codec.
func checkPassedOn(t *testing.T, params protocol.Value, prompt []uint32) {
	t.Helper()
	for _, codec := range []protocol.Codec{protocol.JSON, protocol.MsgPack} {
		carried, err := protocol.ParseValue(codec, protocol.AppendValue(nil, codec, params))
		if err != nil {
			t.Fatal(err)
		}
		call, refusal := engine(protocol.Decode).Convert("id", &protocol.PreprocessedRequest{
			TokenIDs: prompt, PrefillResult: &protocol.PrefillResult{DisaggregatedParams: carried},
		})
		if refusal != nil {
			t.Fatal(refusal)
		}
		want, fault := toStruct(params)
		if fault != nil {
			t.Fatal(fault.text())
		}
		portAsText(want)
		if got := call.Request.GetKv().GetKvTransferParams(); !proto.Equal(got, want) || got.GetFields()["remote_port"].GetStringValue() != "5700" {
			t.Errorf("the engine gets %v", got)
		}
	}
}
