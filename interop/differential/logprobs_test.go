package differential

import (
	"math"

	"remora/internal/vllm/vllmtest"
	pb "remora/proto/vllm"
)

// likely is one candidate.
func likely(id, rank uint32, logprob float32) *pb.TokenInfo {
	return &pb.TokenInfo{Id: id, Rank: rank, Logprob: logprob}
}

// told gives an output's tokens log-probabilities, ranks and the candidates.
func told(logprob float32, candidates ...*pb.TokenInfo) func(o *pb.SequenceOutput) {
	return func(o *pb.SequenceOutput) {
		for range o.GetTokenIds() {
			o.Logprobs = append(o.Logprobs, logprob)
			o.Ranks = append(o.Ranks, 2)
			o.CandidateTokens = append(o.CandidateTokens, &pb.CandidateTokenInfo{Tokens: candidates})
		}
	}
}

func delta(change func(o *pb.SequenceOutput), ids ...uint32) vllmtest.Step {
	o := &pb.SequenceOutput{NumTokens: uint32(len(ids)), TokenIds: ids}
	change(o)
	return out(o)
}

// emptyLogprobs is a good answer whose tokens have log-probabilities without candidates.
func emptyLogprobs(*play) []vllmtest.Step {
	return opened(delta(told(-0.5), 11), finish(2, told(-0.25)))(nil)
}

func rivals(*play) []vllmtest.Step {
	top := []*pb.TokenInfo{likely(21, 1, -0.25), likely(22, 3, -2.5)}
	return opened(delta(told(-0.5, top...), 11, 12), finish(3, told(-1.75, top...)))(nil)
}

// prompted is a prompt of four tokens with log-probabilities, changed by change, and a good end.
func prompted(change func(i *pb.PromptInfo)) func(*play) []vllmtest.Step {
	info := &pb.PromptInfo{
		NumPromptTokens: 4, TokenIds: []uint32{1, 2, 3, 4}, Logprobs: []float32{0, -1, -2.5, float32(math.Inf(-1))}, Ranks: []uint32{0, 1, 2, 3},
		CandidateTokens: []*pb.CandidateTokenInfo{{}, {Tokens: []*pb.TokenInfo{likely(2, 1, -1), likely(9, 2, -3)}}, {Tokens: []*pb.TokenInfo{likely(8, 1, -0.125)}}, {}},
	}
	change(info)
	return steps(vllmtest.Headers(), vllmtest.Message(&pb.GenerateResponse{PromptInfo: info}), finish(1))
}

const (
	askTop0   = `{"output_options":{"logprobs":0}}`
	askTop2   = `{"output_options":{"logprobs":2}}`
	askPrompt = `{"output_options":{"prompt_logprobs":1}}`
)

// logprobCases are the selectors of both counts, and what the engine tells for them.
var logprobCases = []testCase{
	{name: "none asked, some told", script: rivals},
	{name: "chosen tokens alone", roles: "adp", body: askTop0, script: emptyLogprobs},
	{name: "chosen tokens alone, rivals told", body: askTop0, script: rivals},
	{name: "with rivals", body: askTop2, script: rivals},
	{name: "with the chosen among its rivals", body: askTop2, script: opened(delta(told(-0.5, likely(21, 1, -0.25), likely(11, 2, -0.5)), 11), finish(2, told(-0.5)))},
	{name: "largest count", body: `{"output_options":{"logprobs":2147483647}}`, script: rivals},
	{name: "whole vocabulary", body: `{"output_options":{"logprobs":4294967295}}`, script: rivals},
	{name: "count out of range", body: `{"output_options":{"logprobs":2147483648}}`},
	{name: "not finite", body: askTop2, script: opened(delta(told(float32(math.Inf(-1)), likely(21, 1, float32(math.NaN()))), 11), finish(2, told(float32(math.Inf(1)))))},
	{name: "below the floor", body: askTop2, script: opened(delta(told(-10000, likely(21, 1, -9999.5)), 11), finish(2, told(-9999)))},
	{name: "not exact in decimal", body: askTop2, script: opened(delta(told(-0.1, likely(21, 1, -1e-7)), 11), finish(2, told(-3.4e-38)))},
	{name: "end without tokens", body: askTop2, script: opened(delta(told(-0.5), 11), finish(2, bare))},
	{name: "too few", body: askTop0, script: opened(vllmtest.Tokens(11), finish(2, told(-1)))},
	{name: "too many", body: askTop0, script: opened(delta(func(o *pb.SequenceOutput) { told(-1)(o); told(-1)(o) }, 11), finish(2, told(-1)))},
	{name: "no ranks", body: askTop0, script: opened(delta(func(o *pb.SequenceOutput) { told(-1)(o); o.Ranks = nil }, 11), finish(2, told(-1)))},
	{name: "no candidate lists", body: askTop0, script: opened(delta(func(o *pb.SequenceOutput) { told(-1)(o); o.CandidateTokens = nil }, 11), finish(2, told(-1)))},
	{name: "of the prompt", body: askPrompt, script: prompted(func(*pb.PromptInfo) {})},
	{name: "of the prompt, none told", body: askPrompt},
	{name: "of the prompt, absent", body: askPrompt, script: steps(vllmtest.Headers(), finish(1))},
	{name: "of the prompt, ids short", body: askPrompt, script: prompted(func(i *pb.PromptInfo) { i.TokenIds = i.GetTokenIds()[:3] })},
	{name: "of the prompt, not asked", script: prompted(func(*pb.PromptInfo) {})},
	{name: "of the prompt, chosen alone", body: `{"output_options":{"prompt_logprobs":0}}`, script: prompted(func(*pb.PromptInfo) {})},
	{name: "of the prompt, whole vocabulary", body: `{"output_options":{"prompt_logprobs":4294967295}}`, script: prompted(func(*pb.PromptInfo) {})},
	{name: "of the prompt, count out of range", body: `{"output_options":{"prompt_logprobs":3000000000}}`},
	{name: "of the prompt, aborted", body: askPrompt, script: func(*play) []vllmtest.Step {
		return append(prompted(func(*pb.PromptInfo) {})(nil)[:2], finish(1, bare, reason(pb.FinishInfo_ABORTED)))
	}},
	{name: "of both", body: `{"output_options":{"prompt_logprobs":1,"logprobs":1}}`, script: func(*play) []vllmtest.Step {
		return append(prompted(func(*pb.PromptInfo) {})(nil)[:2], finish(1, told(-0.5, likely(21, 1, -0.25))))
	}},
}
