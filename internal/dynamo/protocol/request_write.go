package protocol

// AppendRequest appends req as a frontend writes it: the fields of a plain chat request always, null where unset, in the
// frontend's order; the others only when they say something. router_config_override, which is for routers, is always null.
func AppendRequest(dst []byte, codec Codec, req *PreprocessedRequest) []byte {
	e := encoder{dst: dst, codec: codec}
	const always = 10
	e.openMap(always + countTrue(
		req.PromptEmbeds != nil, !req.MultiModalData.IsNull(), !req.MultiModalUUIDs.IsNull(), req.PrefillResult != nil,
		!req.EncoderResult.IsNull(), req.MigrationLink != nil, !req.BootstrapInfo.IsNull(), !req.ExtraArgs.IsNull(),
		!req.MMProcessorKwargs.IsNull(), req.HealthCheck))
	e.key("model")
	e.text(req.Model)
	e.key("token_ids")
	e.u32s(req.TokenIDs)
	if req.PromptEmbeds != nil {
		e.key("prompt_embeds")
		e.text(*req.PromptEmbeds)
	}
	e.given("multi_modal_data", &req.MultiModalData)
	e.given("multi_modal_uuids", &req.MultiModalUUIDs)
	e.key("stop_conditions")
	e.stopConditions(&req.StopConditions)
	e.key("sampling_options")
	e.samplingOptions(&req.SamplingOptions)
	e.key("output_options")
	e.outputOptions(&req.OutputOptions)
	e.key("eos_token_ids")
	e.u32s(req.EOSTokenIDs)
	e.key("mdc_sum")
	if req.MDCSum == "" {
		e.null()
	} else {
		e.text(req.MDCSum)
	}
	e.key("annotations")
	e.texts(req.Annotations)
	e.key("routing")
	e.routing(&req.Routing)
	e.key("router_config_override")
	e.null()
	if p := req.PrefillResult; p != nil {
		e.key("prefill_result")
		e.openMap(1 + countTrue(!p.PromptTokensDetails.IsNull()))
		e.key("disaggregated_params")
		e.value(&p.DisaggregatedParams)
		e.given("prompt_tokens_details", &p.PromptTokensDetails)
		e.closeMap()
	}
	e.given("encoder_result", &req.EncoderResult)
	if req.MigrationLink != nil {
		e.key("migration_link")
		e.traceLink(req.MigrationLink)
	}
	e.given("bootstrap_info", &req.BootstrapInfo)
	e.given("extra_args", &req.ExtraArgs)
	e.given("mm_processor_kwargs", &req.MMProcessorKwargs)
	if req.HealthCheck {
		e.key("_HEALTH_CHECK")
		e.boolean(true)
	}
	e.closeMap()
	return e.dst
}

func (e *encoder) stopConditions(s *StopConditions) {
	e.openMap(8)
	e.optU32("max_tokens", s.MaxTokens)
	e.key("stop")
	if s.Stop == nil {
		e.null()
	} else {
		e.texts(s.Stop)
	}
	e.optU32s("stop_token_ids", s.StopTokenIDs)
	e.optU32s("stop_token_ids_visible", s.StopTokenIDsVisible)
	e.optU32s("stop_token_ids_hidden", s.StopTokenIDsHidden)
	e.optU32("min_tokens", s.MinTokens)
	e.optBool("ignore_eos", s.IgnoreEOS)
	e.optU32("max_thinking_tokens", s.MaxThinkingTokens)
	e.closeMap()
}

func (e *encoder) samplingOptions(s *SamplingOptions) {
	e.openMap(14)
	e.optU8("n", s.N)
	e.optU8("best_of", s.BestOf)
	e.optF32("presence_penalty", s.PresencePenalty)
	e.optF32("frequency_penalty", s.FrequencyPenalty)
	e.optF32("repetition_penalty", s.RepetitionPenalty)
	e.optF32("temperature", s.Temperature)
	e.optF32("top_p", s.TopP)
	e.key("top_k")
	if s.TopK == nil {
		e.null()
	} else {
		e.int(int64(*s.TopK))
	}
	e.optF32("min_p", s.MinP)
	e.optBool("use_beam_search", s.UseBeamSearch)
	e.optF32("length_penalty", s.LengthPenalty)
	e.key("seed")
	if s.Seed == nil {
		e.null()
	} else {
		e.int(*s.Seed)
	}
	e.optBool("include_stop_str_in_output", s.IncludeStopStrOutput)
	e.key("guided_decoding")
	if s.GuidedDecoding == nil {
		e.null()
	} else {
		e.guidedDecoding(s.GuidedDecoding)
	}
	e.closeMap()
}

func (e *encoder) guidedDecoding(g *GuidedDecoding) {
	e.openMap(countTrue(!g.JSON.IsNull(), g.Regex != nil, g.Choice != nil, g.Grammar != nil, g.Backend != nil,
		g.WhitespacePattern != nil, !g.StructuralTag.IsNull()))
	e.given("json", &g.JSON)
	e.givenText("regex", g.Regex)
	if g.Choice != nil {
		e.key("choice")
		e.texts(g.Choice)
	}
	e.givenText("grammar", g.Grammar)
	e.givenText("backend", g.Backend)
	e.givenText("whitespace_pattern", g.WhitespacePattern)
	e.given("structural_tag", &g.StructuralTag)
	e.closeMap()
}

func (e *encoder) outputOptions(o *OutputOptions) {
	e.openMap(5)
	e.optU32("logprobs", o.Logprobs)
	e.optU32("prompt_logprobs", o.PromptLogprobs)
	e.optBool("skip_special_tokens", o.SkipSpecialTokens)
	e.optBool("formatted_prompt", o.FormattedPrompt)
	e.optBool("return_tokens_as_token_ids", o.ReturnTokensAsTokenIDs)
	e.closeMap()
}

func (e *encoder) routing(g *Routing) {
	e.openMap(countTrue(g.BackendInstanceID != nil, g.PrefillWorkerID != nil, g.DecodeWorkerID != nil, g.DPRank != nil,
		g.PrefillDPRank != nil, g.LoraName != nil, g.CacheSalt != nil, g.Priority != nil))
	for _, id := range [...]struct {
		key string
		id  *uint64
	}{
		{"backend_instance_id", g.BackendInstanceID},
		{"prefill_worker_id", g.PrefillWorkerID},
		{"decode_worker_id", g.DecodeWorkerID},
	} {
		if id.id != nil {
			e.key(id.key)
			e.uint(*id.id)
		}
	}
	if g.DPRank != nil {
		e.optU32("dp_rank", g.DPRank)
	}
	if g.PrefillDPRank != nil {
		e.optU32("prefill_dp_rank", g.PrefillDPRank)
	}
	e.givenText("lora_name", g.LoraName)
	e.givenText("cache_salt", g.CacheSalt)
	if g.Priority != nil {
		e.key("priority")
		e.int(int64(*g.Priority))
	}
	e.closeMap()
}

func (e *encoder) traceLink(l *TraceLink) {
	e.openMap(2)
	e.key("trace_id")
	e.text(l.TraceID)
	e.key("span_id")
	e.text(l.SpanID)
	e.closeMap()
}

// given and givenText leave the key out where there is no value; the opt methods write null.
func (e *encoder) given(key string, v *Value) {
	if !v.IsNull() {
		e.key(key)
		e.value(v)
	}
}

func (e *encoder) givenText(key string, v *string) {
	if v != nil {
		e.key(key)
		e.text(*v)
	}
}

func (e *encoder) optU8(key string, v *uint8) {
	e.key(key)
	if v == nil {
		e.null()
		return
	}
	e.uint(uint64(*v))
}

func (e *encoder) optU32(key string, v *uint32) {
	e.key(key)
	if v == nil {
		e.null()
		return
	}
	e.uint(uint64(*v))
}

func (e *encoder) optU32s(key string, v []uint32) {
	e.key(key)
	if v == nil {
		e.null()
		return
	}
	e.u32s(v)
}

func (e *encoder) optF32(key string, v *float32) {
	e.key(key)
	if v == nil {
		e.null()
		return
	}
	e.float32(*v)
}

func (e *encoder) optBool(key string, v *bool) {
	e.key(key)
	if v == nil {
		e.null()
		return
	}
	e.boolean(*v)
}

func countTrue(flags ...bool) (n int) {
	for _, f := range flags {
		if f {
			n++
		}
	}
	return n
}
