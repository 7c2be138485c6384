package translate

import (
	"math"
	"slices"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

// Result is what one engine message amounts to.
type Result struct {
	// Output is the item to emit, nil for none. It belongs to the Response, shares the message's token ids, and is valid until
	// the next Convert or the end of the sink call, whichever is first.
	Output *protocol.EngineOutput
	// Handoff: a prefill ended with parameters, so its blocks now wait for a decode or the end of their lease. It is read off
	// the raw message and holds even where Convert returns an error.
	Handoff bool
}

// Response is the state of one request between its answers. It belongs to the goroutine that converts.
type Response struct {
	role           protocol.Role
	promptTokens   uint32   // as the engine counts them, once it has said so
	expands        bool     // the engine puts media into the prompt
	expanded       []uint32 // the prompt with them; kept by a prefill, which hands it over
	logprobs       bool
	candidates     bool // more than the selected token was asked for
	promptLogprobs bool
	userStops      []uint32 // ids that the client named
	hiddenStops    []uint32 // ids that the frontend added

	completion uint32
	promptData protocol.Value // prompt log-probabilities, rendered
	// cached is the cached-token count of the usage; pulled prompts count what the prefill engine found in its cache, since
	// the decode engine counts every transferred token as cached.
	cached *uint32
	pulled bool

	// What an output points to, reused from message to message.
	out    protocol.EngineOutput
	usage  protocol.Usage
	index  uint32
	values []float64
	top    [][]protocol.TopLogprob
	flat   []protocol.TopLogprob
}

// Tokens is how many tokens the request has in the engine's cache: those of the prompt and those generated so far.
func (r *Response) Tokens() int { return int(r.promptTokens) + int(r.completion) }

func newResponse(role protocol.Role, r *protocol.PreprocessedRequest, expands bool) *Response {
	out := &Response{
		role:           role,
		expands:        expands,
		promptTokens:   uint32(min(len(r.TokenIDs), math.MaxUint32)),
		logprobs:       r.OutputOptions.Logprobs != nil,
		candidates:     orZero(r.OutputOptions.Logprobs) > 0,
		promptLogprobs: r.OutputOptions.PromptLogprobs != nil,
		userStops:      r.StopConditions.StopTokenIDs,
		hiddenStops:    r.StopConditions.StopTokenIDsHidden,
		pulled:         role == protocol.Decode,
	}
	if out.pulled && r.PrefillResult != nil {
		out.cached = cachedByPrefill(r.PrefillResult)
	}
	return out
}

// cachedByPrefill finds the prefill engine's cache hits: the frontend hands on the prefill's usage details, and newer engines
// say it in the hand-off as well.
func cachedByPrefill(result *protocol.PrefillResult) *uint32 {
	v, ok := result.PromptTokensDetails.Get("cached_tokens")
	if !ok || v.IsNull() {
		v, _ = result.DisaggregatedParams.Get("remote_prefill_cached_tokens")
	}
	if n, isWhole := whole(v); isWhole && n >= 0 && n <= math.MaxUint32 {
		cached := uint32(n)
		return &cached
	}
	return nil
}

// Convert turns one engine message into at most one output. An error wraps ErrInvalidResponse and is final: the stream must
// be dropped, and only Cancelled may be called afterwards. Messages after a finish are the caller's to ignore.
func (r *Response) Convert(m *pb.GenerateResponse) (Result, error) {
	out, finish := m.GetOutputs(), m.GetOutputs().GetFinishInfo()
	result := Result{
		Handoff: r.role == protocol.Prefill && finish.GetKvTransferParams() != nil &&
			finish.GetFinishReason() != pb.FinishInfo_ABORTED,
	}
	if info := m.GetPromptInfo(); info != nil {
		if err := r.promptInfo(info); err != nil {
			return result, err
		}
	}
	if out == nil {
		return result, nil
	}
	if err := r.check(out); err != nil {
		return result, err
	}
	if r.completion > math.MaxUint32-out.GetNumTokens() {
		r.completion = math.MaxUint32
	} else {
		r.completion += out.GetNumTokens()
	}
	if finish == nil {
		if r.role == protocol.Prefill || out.GetNumTokens() == 0 {
			return result, nil
		}
		r.fill(out)
		result.Output = &r.out
		return result, nil
	}
	r.fill(out)
	if err := r.finish(finish); err != nil {
		return result, err
	}
	result.Output = &r.out
	return result, nil
}

// check holds the rules that every message with outputs must keep.
func (r *Response) check(out *pb.SequenceOutput) error {
	if out.GetIndex() != 0 {
		return invalidResponse("output index %d, want 0", out.GetIndex())
	}
	n := int(out.GetNumTokens())
	if len(out.GetTokenIds()) != n {
		return invalidResponse("num_tokens is %d, but there are %d token ids", n, len(out.GetTokenIds()))
	}
	if !r.logprobs || r.role == protocol.Prefill {
		return nil
	}
	if len(out.GetLogprobs()) != n || len(out.GetRanks()) != n || len(out.GetCandidateTokens()) != n {
		return invalidResponse("%d tokens, but %d logprobs, %d ranks and %d candidate lists",
			n, len(out.GetLogprobs()), len(out.GetRanks()), len(out.GetCandidateTokens()))
	}
	return nil
}

// fill starts the output over with the delta of this message.
func (r *Response) fill(out *pb.SequenceOutput) {
	r.out = protocol.EngineOutput{Index: &r.index}
	if r.role == protocol.Prefill {
		return // the token of a prefill is thrown away: decode samples it again
	}
	r.out.TokenIDs = out.GetTokenIds()
	if r.logprobs {
		r.fillLogprobs(out)
	}
}

// finish completes the output of a last message.
func (r *Response) finish(f *pb.FinishInfo) error {
	if f.GetNumOutputTokens() != r.completion {
		return invalidResponse("num_output_tokens is %d, but %d tokens came", f.GetNumOutputTokens(), r.completion)
	}
	switch f.GetFinishReason() {
	case pb.FinishInfo_LENGTH:
		r.out.FinishReason = protocol.FinishLength
	case pb.FinishInfo_STOP:
		r.out.FinishReason = protocol.FinishStop
	case pb.FinishInfo_ABORTED:
		r.out.FinishReason = protocol.FinishCancelled
	case pb.FinishInfo_NOT_FINISHED:
		return invalidResponse("finish_info with reason NOT_FINISHED")
	default:
		return invalidResponse("unknown finish reason %d", f.GetFinishReason())
	}
	if err := r.transfer(f); err != nil {
		return err
	}
	if f.NumCachedTokens != nil && !r.pulled {
		cached := f.GetNumCachedTokens()
		r.cached = &cached
	}
	r.out.StopReason = r.stopReason(f)
	r.out.EngineData = r.promptData
	r.out.Usage = r.usageSoFar()
	return nil
}

// transfer carries the hand-off of a finish.
func (r *Response) transfer(f *pb.FinishInfo) error {
	prefill := r.role == protocol.Prefill
	if prefill && f.GetFinishReason() == pb.FinishInfo_ABORTED {
		return nil // an aborted prefill has already freed its blocks: what it sent would be a trap
	}
	if f.GetKvTransferParams() == nil {
		if prefill {
			return invalidResponse("a finished prefill without kv_transfer_params")
		}
		return nil
	}
	params, fault := fromStruct(f.GetKvTransferParams())
	if fault != nil {
		return invalidResponse("kv_transfer_params%s", fault.text())
	}
	if prefill && r.expands {
		if r.expanded == nil {
			return invalidResponse("a finished prefill with media without the ids of its prompt")
		}
		params = r.addExpanded(params)
	}
	r.out.DisaggregatedParams = params
	return nil
}

// addExpanded adds the prompt's ids to a hand-off, which is a new object.
func (r *Response) addExpanded(params protocol.Value) protocol.Value {
	ids := make([]protocol.Value, len(r.expanded))
	for i, id := range r.expanded {
		ids[i] = protocol.Int(int64(id))
	}
	return protocol.Map(append(params.Map, protocol.Member{Key: expandedKey, Value: protocol.List(ids...)})...)
}

// stopReason tells what the client asked to stop at. Ids that only the frontend listed, the end-of-sequence tokens, are its
// own affair.
func (r *Response) stopReason(f *pb.FinishInfo) protocol.Value {
	switch reason := f.GetStopReason().(type) {
	case *pb.FinishInfo_StopString:
		return protocol.String(reason.StopString)
	case *pb.FinishInfo_StopTokenId:
		if slices.Contains(r.userStops, reason.StopTokenId) || !slices.Contains(r.hiddenStops, reason.StopTokenId) {
			return protocol.Int(int64(reason.StopTokenId))
		}
	case *pb.FinishInfo_EosTokenId:
		if slices.Contains(r.userStops, reason.EosTokenId) {
			return protocol.Int(int64(reason.EosTokenId))
		}
	}
	return protocol.Null()
}

// Cancelled is the terminal of a request that its client gave up: no tokens, the usage so far. Tokens of messages that were
// converted but not emitted count.
func (r *Response) Cancelled() *protocol.EngineOutput {
	return &protocol.EngineOutput{FinishReason: protocol.FinishCancelled, Usage: r.usageSoFar()}
}

// usageSoFar: a one-token role reports no completion, its token never reaches anybody.
func (r *Response) usageSoFar() *protocol.Usage {
	completion := r.completion
	if r.role == protocol.Prefill {
		completion = 0
	}
	total := uint64(r.promptTokens) + uint64(completion)
	r.usage = protocol.Usage{
		PromptTokens:     r.promptTokens,
		CompletionTokens: completion,
		TotalTokens:      uint32(min(total, math.MaxUint32)),
		CachedTokens:     r.cached,
	}
	return &r.usage
}
