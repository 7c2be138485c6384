package differential

import (
	"strings"

	"google.golang.org/grpc/codes"

	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// errorCases are the statuses with which an engine may refuse a request, or break off an answer.
var errorCases = func() (cases []testCase) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		name := strings.ToLower(code.String())
		cases = append(cases,
			testCase{name: name + " before headers", script: steps(vllmtest.Status(code, "the engine's words"))},
			testCase{name: name + " after headers", script: steps(vllmtest.Headers(), vllmtest.Status(code, "the engine's words"))},
			testCase{name: name + " in the answer", script: opened(vllmtest.Tokens(11), vllmtest.Status(code, "the engine's words"))},
		)
	}
	return append(cases,
		testCase{name: "status without words", script: steps(vllmtest.Status(codes.Internal, ""))},
		testCase{name: "status with odd words", script: steps(vllmtest.Status(codes.InvalidArgument, "line\nbreak, ü and \"quotes\""))},
		testCase{name: "code beyond the known", script: steps(vllmtest.Status(77, "odd"))},
		testCase{name: "end before headers", script: steps(vllmtest.EOF())},
		testCase{name: "end after headers", script: steps(vllmtest.Headers(), vllmtest.EOF())},
		testCase{name: "end after the prompt", script: opened(vllmtest.EOF())},
		testCase{name: "end in the answer", script: opened(vllmtest.Tokens(11, 12), vllmtest.EOF())},
	)
}()

func info(i *pb.PromptInfo) vllmtest.Step {
	return vllmtest.Message(&pb.GenerateResponse{PromptInfo: i})
}

// badEngineCases are answers that break the rules of the engine's protocol.
var badEngineCases = []testCase{
	{name: "prompt of another length", script: steps(vllmtest.Headers(), vllmtest.Prompt(5), finish(1))},
	{name: "prompt of no length", script: steps(vllmtest.Headers(), info(&pb.PromptInfo{}), finish(1))},
	{name: "prompt wrong the second time", script: opened(vllmtest.Tokens(11), vllmtest.Prompt(3), finish(2))},
	{name: "another index", script: opened(delta(func(o *pb.SequenceOutput) { o.Index = 1 }, 11), finish(2))},
	{name: "more tokens than counted", script: opened(delta(func(o *pb.SequenceOutput) { o.NumTokens = 1 }, 11, 12), finish(3))},
	{name: "fewer tokens than counted", script: opened(delta(func(o *pb.SequenceOutput) { o.NumTokens = 2 }, 11), finish(2))},
	{name: "tokens without ids", script: opened(delta(func(o *pb.SequenceOutput) { o.NumTokens = 1 }), finish(2))},
	{name: "finish counts too many", script: opened(vllmtest.Tokens(11), finish(3))},
	{name: "finish counts too few", script: opened(vllmtest.Tokens(11), finish(1))},
	{name: "not finished", script: opened(finish(1, reason(pb.FinishInfo_NOT_FINISHED)))},
	{name: "finish reason unknown", script: opened(finish(1, reason(9)))},
	{name: "aborted and miscounted", script: opened(finish(2, reason(pb.FinishInfo_ABORTED)))},
	{name: "good tokens before bad ones", script: opened(vllmtest.Tokens(11, 12), delta(func(o *pb.SequenceOutput) { o.Index = 3 }, 13), finish(4))},
	{name: "hand-off that is not a number", script: opened(finish(1, hands(notANumber())))},
	{name: "bad message and prompt in one", script: steps(vllmtest.Headers(), vllmtest.Message(&pb.GenerateResponse{
		PromptInfo: &pb.PromptInfo{NumPromptTokens: 9}, Outputs: &pb.SequenceOutput{Index: 2},
	}))},
	{name: "prefill without a hand-off", roles: "p", script: opened(finish(1, hands(nil)))},
	{name: "prefill stops without a hand-off", roles: "p", script: opened(finish(1, hands(nil), reason(pb.FinishInfo_STOP)))},
	{name: "prefill aborted without a hand-off", roles: "p", script: opened(finish(1, hands(nil), bare, reason(pb.FinishInfo_ABORTED)))},
	{name: "very long text", script: opened(delta(text(strings.Repeat("x", 1<<20)), 11), finish(2))},
}
