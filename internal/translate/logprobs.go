package translate

import (
	"math"
	"strconv"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

// floorLogprob stands for everything lower and for what is no number: JSON has no infinity.
const floorLogprob = -9999.0

func logprob(f float32) float64 {
	v := float64(f)
	if math.IsNaN(v) || math.IsInf(v, 0) || v < floorLogprob {
		return floorLogprob
	}
	return v
}

// fillLogprobs sets the log-probabilities of a delta whose lists have been checked to be as long as its tokens.
func (r *Response) fillLogprobs(out *pb.SequenceOutput) {
	if r.values == nil {
		r.values = make([]float64, 0, 1) // a token-less message has an empty list, not none
	}
	r.values = r.values[:0]
	for _, f := range out.GetLogprobs() {
		r.values = append(r.values, logprob(f))
	}
	r.out.LogProbs = r.values
	if r.candidates {
		r.fillTop(out)
	}
}

// fillTop lists the selected token of each position and then the candidates. The engine repeats the selected token where it
// is among the candidates; clients count entries, so it is taken once.
func (r *Response) fillTop(out *pb.SequenceOutput) {
	if r.top == nil {
		r.top = make([][]protocol.TopLogprob, 0, 1)
	}
	r.top, r.flat = r.top[:0], r.flat[:0]
	room := 0
	for _, position := range out.GetCandidateTokens() {
		room += 1 + len(position.GetTokens())
	}
	if cap(r.flat) < room { // once full size, so that the slices below stay valid while it fills
		r.flat = make([]protocol.TopLogprob, 0, room)
	}
	for i, selected := range out.GetTokenIds() {
		start := len(r.flat)
		r.flat = append(r.flat, protocol.TopLogprob{
			Rank: out.GetRanks()[i], TokenID: selected, Logprob: logprob(out.GetLogprobs()[i]),
		})
		for _, candidate := range out.GetCandidateTokens()[i].GetTokens() {
			if candidate.GetId() == selected {
				continue
			}
			r.flat = append(r.flat, protocol.TopLogprob{
				Rank: candidate.GetRank(), TokenID: candidate.GetId(), Logprob: logprob(candidate.GetLogprob()),
			})
		}
		r.top = append(r.top, r.flat[start:len(r.flat):len(r.flat)])
	}
	r.out.TopLogprobs = r.top
}

// promptInfo checks what the engine says about the prompt. It may come with any message, or more than once: the last counts.
func (r *Response) promptInfo(info *pb.PromptInfo) error {
	if !r.expands && info.GetNumPromptTokens() != r.promptTokens {
		return invalidResponse("num_prompt_tokens is %d, but the prompt has %d", info.GetNumPromptTokens(), r.promptTokens)
	}
	r.promptTokens = info.GetNumPromptTokens()
	if r.expands && r.role == protocol.Prefill {
		if len(info.GetTokenIds()) != int(r.promptTokens) {
			return invalidResponse("%d prompt tokens, but %d ids", r.promptTokens, len(info.GetTokenIds()))
		}
		r.expanded = append([]uint32{}, info.GetTokenIds()...) // the message is not ours to keep
	}
	if !r.promptLogprobs {
		return nil
	}
	n := int(info.GetNumPromptTokens())
	if len(info.GetTokenIds()) != n || len(info.GetLogprobs()) != n || len(info.GetRanks()) != n || len(info.GetCandidateTokens()) != n {
		return invalidResponse("%d prompt tokens, but %d ids, %d logprobs, %d ranks and %d candidate lists", n,
			len(info.GetTokenIds()), len(info.GetLogprobs()), len(info.GetRanks()), len(info.GetCandidateTokens()))
	}
	// Rendered at once: the message is not ours to keep until the finish.
	positions := make([]protocol.Value, n)
	for i := 1; i < n; i++ { // nothing precedes position 0, so it has no probability
		positions[i] = promptPosition(info, i)
	}
	r.promptData = protocol.Map(protocol.Member{Key: "prompt_logprobs", Value: protocol.List(positions...)})
	return nil
}

// promptPosition maps token ids to their probability and rank: the prompt's token and its rivals, each id once.
func promptPosition(info *pb.PromptInfo, i int) protocol.Value {
	candidates := info.GetCandidateTokens()[i].GetTokens()
	members := make([]protocol.Member, 0, 1+len(candidates))
	members = append(members, promptEntry(info.GetTokenIds()[i], info.GetLogprobs()[i], info.GetRanks()[i]))
	for _, candidate := range candidates {
		entry := promptEntry(candidate.GetId(), candidate.GetLogprob(), candidate.GetRank())
		if candidate.GetId() == info.GetTokenIds()[i] {
			members[0] = entry
			continue
		}
		members = append(members, entry)
	}
	return protocol.Map(members...)
}

func promptEntry(id uint32, lp float32, rank uint32) protocol.Member {
	return protocol.Member{Key: strconv.FormatUint(uint64(id), 10), Value: protocol.Map(
		protocol.Member{Key: "logprob", Value: protocol.Float(logprob(lp))},
		protocol.Member{Key: "rank", Value: protocol.Int(int64(rank))},
	)}
}
