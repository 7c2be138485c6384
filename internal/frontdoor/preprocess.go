package frontdoor

import "remora/internal/dynamo/protocol"

// preprocess makes the request that workers get, with the same members as the stock frontend's: the ids that end an answer
// are hidden stop ids; with ignore_eos there is neither a stop list nor one of those.
func preprocess(g *generation, eos []uint32) *protocol.PreprocessedRequest {
	r := &protocol.PreprocessedRequest{
		Model:       g.model,
		TokenIDs:    g.prompt,
		EOSTokenIDs: eos,
		StopConditions: protocol.StopConditions{
			MaxTokens: g.maxTokens, MinTokens: g.minTokens,
			Stop: g.stops, StopTokenIDsHidden: eos,
		},
		SamplingOptions: protocol.SamplingOptions{
			Temperature: g.temperature, TopP: g.topP, TopK: g.topK, Seed: g.seed,
			PresencePenalty: g.presence, FrequencyPenalty: g.frequency,
		},
	}
	if g.ignoreEOS {
		yes := true
		r.StopConditions.IgnoreEOS = &yes
		r.StopConditions.Stop, r.StopConditions.StopTokenIDsHidden, r.EOSTokenIDs = nil, nil, nil
	}
	if g.logprobs {
		n := uint32(max(1, g.topLogprobs))
		r.OutputOptions.Logprobs = &n
	}
	return r
}

// prefillOf is the clone that a prefill worker gets: one token, and the worker's own id in the routing. A minimum above that
// one token would be a contradiction, which engines refuse.
func prefillOf(r *protocol.PreprocessedRequest, worker uint64) *protocol.PreprocessedRequest {
	clone := *r
	one := uint32(1)
	clone.StopConditions.MaxTokens, clone.StopConditions.MinTokens = &one, nil
	clone.Routing.PrefillWorkerID = &worker
	return &clone
}

// decodeOf is the request for the decode worker: the client's own, with what the prefill left.
func decodeOf(r *protocol.PreprocessedRequest, worker uint64, first *protocol.EngineOutput) *protocol.PreprocessedRequest {
	clone := *r
	clone.Routing.PrefillWorkerID = &worker
	clone.PrefillResult = &protocol.PrefillResult{DisaggregatedParams: first.DisaggregatedParams}
	clone.MigrationLink = first.WorkerTraceLink
	if first.Usage != nil && first.Usage.CachedTokens != nil {
		clone.PrefillResult.PromptTokensDetails = protocol.Map(protocol.Member{
			Key: "cached_tokens", Value: protocol.Int(int64(*first.Usage.CachedTokens)),
		})
	}
	return &clone
}
