package translate

import (
	"math"

	"remora/internal/dynamo/protocol"
)

// legacyKey names the envelope in which older frontends carry vLLM's own request. It is read so that a deployment can upgrade
// its workers before its frontends.
const legacyKey = "vllm_tito"

// legacyExtras is what the envelope says about things that have no field in the request.
type legacyExtras struct {
	transfer    protocol.Value
	hasTransfer bool
	bypass      bool
}

// hydrate fills fields that the request leaves out from the legacy envelope. A field that the request has wins.
func (c *converter) hydrate() *Refusal {
	envelope, ok := c.req.ExtraArgs.Get(legacyKey)
	if !ok {
		return nil
	}
	if envelope.Kind != protocol.KindMap {
		return refuse("extra_args.vllm_tito must be an object")
	}
	for i := range envelope.Map {
		if refusal := checkEnvelopeKey(&envelope.Map[i]); refusal != nil {
			return refusal
		}
	}
	params, _ := envelope.Get("sampling_params")
	if params.Kind != protocol.KindMap {
		return refuse("extra_args.vllm_tito.sampling_params must be an object")
	}
	if !c.engine.oneToken() { // a one-token request is the same whatever they say
		for i := range params.Map {
			if refusal := checkParamKey(&params.Map[i]); refusal != nil {
				return refusal
			}
		}
	}
	if transfer, _ := envelope.Get("kv_transfer_params"); !transfer.IsNull() {
		c.legacy.transfer, c.legacy.hasTransfer = transfer, true
	}
	return c.hydrateParams(params)
}

func checkEnvelopeKey(m *protocol.Member) *Refusal {
	switch m.Key {
	case "request_id", "sampling_params", "model", "stream", "stream_options", "cache_salt", "priority",
		"kv_transfer_params", featuresKey:
		return nil
	case "assistant_tokens_mask", "token_offsets", "content_parts", "return_token_ids", "ec_transfer_params":
		if m.Value.IsNull() {
			return nil
		}
	}
	return refuse("extra_args.vllm_tito.%s is not supported", m.Key)
}

func checkParamKey(m *protocol.Member) *Refusal {
	switch m.Key {
	case "max_tokens", "min_tokens", "ignore_eos", "logprobs", "prompt_logprobs", "skip_special_tokens",
		"temperature", "top_p", "top_k", "min_p", "seed",
		"presence_penalty", "frequency_penalty", "repetition_penalty",
		"stop_token_ids", "skip_reading_prefix_cache":
		return nil
	case "return_token_ids":
		if m.Value.IsNull() || (m.Value.Kind == protocol.KindBool && m.Value.Bool) {
			return nil
		}
		return refuse("extra_args.vllm_tito.sampling_params.return_token_ids must be true")
	}
	return refuse("extra_args.vllm_tito.sampling_params.%s is not supported", m.Key)
}

func (c *converter) hydrateParams(params protocol.Value) *Refusal {
	h := hydrator{params: params}
	sampling, stop, output := &c.req.SamplingOptions, &c.req.StopConditions, &c.req.OutputOptions
	fill(&h, "temperature", &sampling.Temperature, asFloat32)
	fill(&h, "top_p", &sampling.TopP, asFloat32)
	fill(&h, "top_k", &sampling.TopK, asInt32)
	fill(&h, "min_p", &sampling.MinP, asFloat32)
	fill(&h, "seed", &sampling.Seed, asInt64)
	fill(&h, "presence_penalty", &sampling.PresencePenalty, asFloat32)
	fill(&h, "frequency_penalty", &sampling.FrequencyPenalty, asFloat32)
	fill(&h, "repetition_penalty", &sampling.RepetitionPenalty, asFloat32)
	fill(&h, "max_tokens", &stop.MaxTokens, asUint32)
	fill(&h, "min_tokens", &stop.MinTokens, asUint32)
	fill(&h, "ignore_eos", &stop.IgnoreEOS, asBool)
	fill(&h, "logprobs", &output.Logprobs, asLogprobs)
	fill(&h, "prompt_logprobs", &output.PromptLogprobs, asLogprobs)
	fill(&h, "skip_special_tokens", &output.SkipSpecialTokens, asBool)
	if stop.StopTokenIDs == nil && stop.StopTokenIDsVisible == nil && stop.StopTokenIDsHidden == nil {
		var ids *[]uint32
		fill(&h, "stop_token_ids", &ids, asUint32List)
		if ids != nil {
			stop.StopTokenIDs = *ids
		}
	}
	var bypass *bool
	fill(&h, "skip_reading_prefix_cache", &bypass, asBool)
	c.legacy.bypass = orZero(bypass)
	return h.refusal
}

// hydrator remembers the first value of the wrong kind, so that the list of fields above reads as a list.
type hydrator struct {
	params  protocol.Value
	refusal *Refusal
}

// fill sets an absent field from the parameter of that name; null is as good as absent.
func fill[T any](h *hydrator, name string, field **T, convert func(protocol.Value) (T, bool)) {
	v, _ := h.params.Get(name)
	if *field != nil || v.IsNull() || h.refusal != nil {
		return
	}
	converted, ok := convert(v)
	if !ok {
		h.refusal = refuse("extra_args.vllm_tito.sampling_params.%s has a value of the wrong kind or range", name)
		return
	}
	*field = &converted
}

func asBool(v protocol.Value) (bool, bool) { return v.Bool, v.Kind == protocol.KindBool }

func asInt64(v protocol.Value) (int64, bool) { return v.Int, v.Kind == protocol.KindInt }

func asInt32(v protocol.Value) (int32, bool) {
	ok := v.Kind == protocol.KindInt && v.Int >= math.MinInt32 && v.Int <= math.MaxInt32
	return int32(v.Int), ok
}

func asUint32(v protocol.Value) (uint32, bool) {
	ok := v.Kind == protocol.KindInt && v.Int >= 0 && v.Int <= math.MaxUint32
	return uint32(v.Int), ok
}

// asLogprobs reads vLLM's count, where -1 is the whole vocabulary.
func asLogprobs(v protocol.Value) (uint32, bool) {
	if v.Kind == protocol.KindInt && v.Int == -1 {
		return allLogprobs, true
	}
	return asUint32(v)
}

func asFloat32(v protocol.Value) (float32, bool) {
	switch v.Kind {
	case protocol.KindInt:
		return float32(v.Int), true
	case protocol.KindUint:
		return float32(v.Uint), true
	case protocol.KindFloat:
		return float32(v.Float), true
	case protocol.KindNull, protocol.KindBool, protocol.KindString, protocol.KindBytes, protocol.KindList, protocol.KindMap:
	}
	return 0, false
}

func asUint32List(v protocol.Value) ([]uint32, bool) {
	if v.Kind != protocol.KindList {
		return nil, false
	}
	out := make([]uint32, len(v.List))
	for i := range v.List {
		id, ok := asUint32(v.List[i])
		if !ok {
			return nil, false
		}
		out[i] = id
	}
	return out, true
}
