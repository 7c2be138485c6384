package differential

import (
	"math"

	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// steps is a script of its own for every role alike.
func steps(s ...vllmtest.Step) func(*play) []vllmtest.Step {
	return func(*play) []vllmtest.Step { return s }
}

// opened begins with headers and the prompt.
func opened(s ...vllmtest.Step) func(*play) []vllmtest.Step {
	return steps(append([]vllmtest.Step{vllmtest.Headers(), vllmtest.Prompt(4)}, s...)...)
}

func out(o *pb.SequenceOutput) vllmtest.Step {
	return vllmtest.Message(&pb.GenerateResponse{Outputs: o})
}

// finish is a terminal with a token that counts n in all, changed by each change.
func finish(n uint32, changes ...func(o *pb.SequenceOutput)) vllmtest.Step {
	o := &pb.SequenceOutput{NumTokens: 1, TokenIds: []uint32{13}, FinishInfo: &pb.FinishInfo{
		NumOutputTokens: n, FinishReason: pb.FinishInfo_STOP, KvTransferParams: handedOver(),
	}}
	for _, change := range changes {
		change(o)
	}
	return out(o)
}

func stopToken(id uint32) func(o *pb.SequenceOutput) {
	return func(o *pb.SequenceOutput) { o.FinishInfo.StopReason = &pb.FinishInfo_StopTokenId{StopTokenId: id} }
}

func eosToken(id uint32) func(o *pb.SequenceOutput) {
	return func(o *pb.SequenceOutput) { o.FinishInfo.StopReason = &pb.FinishInfo_EosTokenId{EosTokenId: id} }
}

func stopString(s string) func(o *pb.SequenceOutput) {
	return func(o *pb.SequenceOutput) { o.FinishInfo.StopReason = &pb.FinishInfo_StopString{StopString: s} }
}

func reason(r pb.FinishInfo_FinishReason) func(o *pb.SequenceOutput) {
	return func(o *pb.SequenceOutput) { o.FinishInfo.FinishReason = r }
}

func text(s string) func(o *pb.SequenceOutput) { return func(o *pb.SequenceOutput) { o.Text = s } }

func bare(o *pb.SequenceOutput) {
	o.NumTokens, o.TokenIds = 0, nil
	o.FinishInfo.NumOutputTokens--
}

func hands(s *structpb.Struct) func(o *pb.SequenceOutput) {
	return func(o *pb.SequenceOutput) { o.FinishInfo.KvTransferParams = s }
}

func odd() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"whole": structpb.NewNumberValue(5600), "part": structpb.NewNumberValue(0.5), "minus zero": structpb.NewNumberValue(math.Copysign(0, -1)),
		"big": structpb.NewNumberValue(1 << 53), "bigger": structpb.NewNumberValue(1 << 60), "null": structpb.NewNullValue(), "no kind": {},
		"list": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewBoolValue(true), structpb.NewStringValue("ü")}}),
	}}
}

// responseCases are the rows of the response: what of the engine's messages reaches the frontend, and as what.
var responseCases = []testCase{
	{name: "length", script: good},
	{name: "no prompt info", script: steps(vllmtest.Headers(), vllmtest.Tokens(11), finish(2))},
	{name: "prompt info late", script: steps(vllmtest.Headers(), vllmtest.Tokens(11), vllmtest.Prompt(4), finish(2))},
	{name: "prompt info twice", script: opened(vllmtest.Prompt(4), finish(1))},
	{name: "no headers of their own", script: steps(vllmtest.Prompt(4), finish(1))},
	{name: "message of nothing", script: opened(vllmtest.Message(&pb.GenerateResponse{}), finish(1))},
	{name: "output without tokens", script: opened(vllmtest.Batch(), vllmtest.Tokens(11), finish(2))},
	{name: "output without tokens after one", script: opened(vllmtest.Tokens(11), vllmtest.Batch(), finish(2))},
	{name: "several tokens in one", script: opened(vllmtest.Batch(11, 12, 13), finish(4))},
	{name: "text of the engine", script: opened(out(&pb.SequenceOutput{Text: "hello", NumTokens: 1, TokenIds: []uint32{11}}), finish(2, text("!")))},
	{name: "stop by a token of the user", body: `{"stop_conditions":{"stop_token_ids":[13]}}`, script: opened(finish(1, stopToken(13)))},
	{name: "stop by a hidden token", body: `{"stop_conditions":{"stop_token_ids_hidden":[13]}}`, script: opened(finish(1, stopToken(13)))},
	{name: "stop by a token of both lists", body: `{"stop_conditions":{"stop_token_ids":[13],"stop_token_ids_hidden":[13]}}`, script: opened(finish(1, stopToken(13)))},
	{name: "stop by a token nobody named", script: opened(finish(1, stopToken(13)))},
	{name: "stop by eos", script: opened(finish(1, eosToken(257)))},
	{name: "stop by eos that the user named", body: `{"stop_conditions":{"stop_token_ids":[257]}}`, script: opened(finish(1, eosToken(257)))},
	{name: "stop by eos that is hidden", body: `{"stop_conditions":{"stop_token_ids_hidden":[257]}}`, script: opened(finish(1, eosToken(257)))},
	{name: "stop by a string", body: `{"stop_conditions":{"stop":["x"]}}`, script: opened(finish(1, stopString("x")))},
	{name: "stop by an empty string", script: opened(finish(1, stopString("")))},
	{name: "length with a stop reason", script: opened(finish(1, reason(pb.FinishInfo_LENGTH), stopString("x")))},
	{name: "finish without a token", script: opened(vllmtest.Tokens(11), finish(2, bare))},
	{name: "finish at once without a token", script: opened(finish(1, bare))},
	{name: "aborted", script: opened(vllmtest.Tokens(11), finish(2, bare, reason(pb.FinishInfo_ABORTED), hands(nil)))},
	{name: "aborted with a token and a hand-off", script: opened(finish(1, reason(pb.FinishInfo_ABORTED)))},
	{name: "aborted with a stop reason", script: opened(finish(1, reason(pb.FinishInfo_ABORTED), stopString("x")))},
	{name: "tokens after the terminal", script: opened(finish(1), vllmtest.Tokens(14))},
	{name: "a second terminal", script: opened(finish(1), finish(2))},
	{name: "error after the terminal", script: opened(finish(1), vllmtest.Status(13, "late"))},
	{name: "hand-off of odd values", script: opened(finish(1, hands(odd())))},
	{name: "hand-off empty", script: opened(finish(1, hands(&structpb.Struct{})))},
	{name: "no hand-off", script: opened(finish(1, hands(nil)))},
	{name: "encoder parameters", script: opened(finish(1, func(o *pb.SequenceOutput) { o.FinishInfo.EcTransferParams = odd() }))},
	{name: "cached tokens", script: opened(finish(1, cached(3)))},
	{name: "cached tokens 0", script: opened(finish(1, cached(0)))},
	{name: "prefill tokens of several messages", roles: "p", script: opened(vllmtest.Tokens(11), finish(2))},
}

func cached(n uint32) func(o *pb.SequenceOutput) {
	return func(o *pb.SequenceOutput) { o.FinishInfo.NumCachedTokens = new(n) }
}

func notANumber() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"x": structpb.NewNumberValue(math.NaN())}}
}
