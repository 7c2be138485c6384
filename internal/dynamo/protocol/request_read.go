package protocol

import (
	"errors"
	"fmt"
)

var errMissing = errors.New("missing")

// ParseRequest reads a request body. Optional fields may be missing or null, unknown ones are skipped, a wrong type in a known
// field is a *FieldError that names it. Nothing in the result aliases body.
func ParseRequest(codec Codec, body []byte) (*PreprocessedRequest, error) {
	req := &PreprocessedRequest{}
	if err := document(codec, body, req.readField); err != nil {
		return nil, fmt.Errorf("request body: %w", err)
	}
	if req.TokenIDs == nil {
		return nil, fmt.Errorf("request body: %w", &FieldError{Path: "token_ids", Err: errMissing})
	}
	return req, nil
}

func (q *PreprocessedRequest) readField(r *reader, key []byte) (err error) {
	switch string(key) {
	case "model":
		return r.strOrEmpty(&q.Model)
	case "token_ids":
		return r.u32s(&q.TokenIDs)
	case "prompt_embeds":
		return optional(r, &q.PromptEmbeds, (*reader).str)
	case "multi_modal_data":
		q.MultiModalData, err = r.mapValue()
	case "multi_modal_uuids":
		q.MultiModalUUIDs, err = r.mapValue()
	case "stop_conditions":
		q.StopConditions = StopConditions{}
		return r.optionalObject(q.StopConditions.readField)
	case "sampling_options":
		q.SamplingOptions = SamplingOptions{}
		return r.optionalObject(q.SamplingOptions.readField)
	case "output_options":
		q.OutputOptions = OutputOptions{}
		return r.optionalObject(q.OutputOptions.readField)
	case "eos_token_ids":
		return r.u32s(&q.EOSTokenIDs)
	case "mdc_sum":
		return r.strOrEmpty(&q.MDCSum)
	case "annotations":
		return list(r, &q.Annotations, (*reader).str)
	case "routing":
		q.Routing = Routing{}
		return r.optionalObject(q.Routing.readField)
	case "prefill_result":
		return optional(r, &q.PrefillResult, (*reader).prefillResult)
	case "encoder_result":
		q.EncoderResult, err = r.mapValue()
	case "bootstrap_info":
		q.BootstrapInfo, err = r.mapValue()
	case "extra_args":
		q.ExtraArgs, err = r.value()
	case "mm_processor_kwargs":
		q.MMProcessorKwargs, err = r.value()
	case "migration_link":
		return optional(r, &q.MigrationLink, (*reader).traceLink)
	case "_HEALTH_CHECK":
		return r.boolOrFalse(&q.HealthCheck)
	default:
		return r.skip()
	}
	return err
}

func (s *StopConditions) readField(r *reader, key []byte) error {
	switch string(key) {
	case "max_tokens":
		return optional(r, &s.MaxTokens, (*reader).u32)
	case "stop":
		return list(r, &s.Stop, (*reader).str)
	case "stop_token_ids":
		return r.u32s(&s.StopTokenIDs)
	case "stop_token_ids_visible":
		return r.u32s(&s.StopTokenIDsVisible)
	case "stop_token_ids_hidden":
		return r.u32s(&s.StopTokenIDsHidden)
	case "min_tokens":
		return optional(r, &s.MinTokens, (*reader).u32)
	case "ignore_eos":
		return optional(r, &s.IgnoreEOS, (*reader).flag)
	case "max_thinking_tokens":
		return optional(r, &s.MaxThinkingTokens, (*reader).u32)
	default:
		return r.skip()
	}
}

func (s *SamplingOptions) readField(r *reader, key []byte) error {
	switch string(key) {
	case "n":
		return optional(r, &s.N, (*reader).u8)
	case "best_of":
		return optional(r, &s.BestOf, (*reader).u8)
	case "presence_penalty":
		return optional(r, &s.PresencePenalty, (*reader).f32)
	case "frequency_penalty":
		return optional(r, &s.FrequencyPenalty, (*reader).f32)
	case "repetition_penalty":
		return optional(r, &s.RepetitionPenalty, (*reader).f32)
	case "temperature":
		return optional(r, &s.Temperature, (*reader).f32)
	case "top_p":
		return optional(r, &s.TopP, (*reader).f32)
	case "top_k":
		return optional(r, &s.TopK, (*reader).i32)
	case "min_p":
		return optional(r, &s.MinP, (*reader).f32)
	case "use_beam_search":
		return optional(r, &s.UseBeamSearch, (*reader).flag)
	case "length_penalty":
		return optional(r, &s.LengthPenalty, (*reader).f32)
	case "seed":
		return optional(r, &s.Seed, (*reader).i64)
	case "include_stop_str_in_output":
		return optional(r, &s.IncludeStopStrOutput, (*reader).flag)
	case "guided_decoding":
		return optional(r, &s.GuidedDecoding, (*reader).guidedDecoding)
	default:
		return r.skip()
	}
}

func (g *GuidedDecoding) readField(r *reader, key []byte) (err error) {
	switch string(key) {
	case "json":
		g.JSON, err = r.value()
	case "regex":
		return optional(r, &g.Regex, (*reader).str)
	case "choice":
		return list(r, &g.Choice, (*reader).str)
	case "grammar":
		return optional(r, &g.Grammar, (*reader).str)
	case "backend":
		return optional(r, &g.Backend, (*reader).str)
	case "whitespace_pattern":
		return optional(r, &g.WhitespacePattern, (*reader).str)
	case "structural_tag":
		g.StructuralTag, err = r.value()
	default:
		return r.skip()
	}
	return err
}

func (o *OutputOptions) readField(r *reader, key []byte) error {
	switch string(key) {
	case "logprobs":
		return optional(r, &o.Logprobs, (*reader).u32)
	case "prompt_logprobs":
		return optional(r, &o.PromptLogprobs, (*reader).u32)
	case "skip_special_tokens":
		return optional(r, &o.SkipSpecialTokens, (*reader).flag)
	case "formatted_prompt":
		return optional(r, &o.FormattedPrompt, (*reader).flag)
	case "return_tokens_as_token_ids":
		return optional(r, &o.ReturnTokensAsTokenIDs, (*reader).flag)
	default:
		return r.skip()
	}
}

func (g *Routing) readField(r *reader, key []byte) error {
	switch string(key) {
	case "backend_instance_id":
		return optional(r, &g.BackendInstanceID, (*reader).u64)
	case "prefill_worker_id":
		return optional(r, &g.PrefillWorkerID, (*reader).u64)
	case "decode_worker_id":
		return optional(r, &g.DecodeWorkerID, (*reader).u64)
	case "dp_rank":
		return optional(r, &g.DPRank, (*reader).u32)
	case "prefill_dp_rank":
		return optional(r, &g.PrefillDPRank, (*reader).u32)
	case "lora_name":
		return optional(r, &g.LoraName, (*reader).str)
	case "cache_salt":
		return optional(r, &g.CacheSalt, (*reader).str)
	case "priority":
		return optional(r, &g.Priority, (*reader).i32)
	default:
		return r.skip()
	}
}

// optionalObject reads a map with the given field table, or null.
func (r *reader) optionalObject(field func(r *reader, key []byte) error) error {
	return r.orNull(func() error {
		return r.object(func(key []byte) error { return field(r, key) })
	})
}

func (r *reader) guidedDecoding() (g GuidedDecoding, err error) {
	err = r.object(func(key []byte) error { return g.readField(r, key) })
	return g, err
}

// prefillResult demands the key disaggregated_params, whose value may be anything, even null: what it is worth is judged where
// the hand-off is used.
func (r *reader) prefillResult() (p PrefillResult, err error) {
	given := false
	err = r.object(func(key []byte) (err error) {
		switch string(key) {
		case "disaggregated_params":
			given = true
			p.DisaggregatedParams, err = r.value()
		case "prompt_tokens_details":
			p.PromptTokensDetails, err = r.value()
		default:
			return r.skip()
		}
		return err
	})
	if err == nil && !given {
		err = &FieldError{Path: "disaggregated_params", Err: errMissing}
	}
	return p, err
}

func (r *reader) traceLink() (l TraceLink, err error) {
	err = r.object(func(key []byte) error {
		switch string(key) {
		case "trace_id":
			return r.strOrEmpty(&l.TraceID)
		case "span_id":
			return r.strOrEmpty(&l.SpanID)
		default:
			return r.skip()
		}
	})
	return l, err
}
