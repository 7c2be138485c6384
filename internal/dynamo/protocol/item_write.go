package protocol

// AppendItem appends the body of one data frame: {"data":<item>,"complete_final":false}. The keys come in the order of the
// Rust sidecar. It allocates nothing but room in dst. An item with neither data nor error is written as an empty one, which
// frontends pass over.
func AppendItem(dst []byte, codec Codec, item *Item) []byte {
	e := encoder{dst: dst, codec: codec}
	e.openMap(2)
	e.key("data")
	switch {
	case item.Error != nil:
		e.openMap(2)
		e.key("event") // without it a frontend swallows the error
		e.text("error")
		e.key("error")
		e.error(item.Error)
		e.closeMap()
	case item.Data != nil:
		e.openMap(1)
		e.key("data")
		e.output(item.Data)
		e.closeMap()
	default:
		e.openMap(0)
		e.closeMap()
	}
	e.key("complete_final")
	e.boolean(false)
	e.closeMap()
	return e.dst
}

// AppendPlainItem is AppendItem for endpoints whose items are no Item: data is one document in the codec, and stands in the place
// of the item as it is.
func AppendPlainItem(dst []byte, codec Codec, data []byte) []byte {
	e := encoder{dst: dst, codec: codec}
	e.openMap(2)
	e.key("data")
	e.dst = append(e.dst, data...)
	e.key("complete_final")
	e.boolean(false)
	e.closeMap()
	return e.dst
}

// AppendFinal appends the body of the last data frame: {"complete_final":true}. Without it a frontend takes the worker for
// lost.
func AppendFinal(dst []byte, codec Codec) []byte {
	e := encoder{dst: dst, codec: codec}
	e.openMap(1)
	e.key("complete_final")
	e.boolean(true)
	e.closeMap()
	return e.dst
}

func (e *encoder) output(o *EngineOutput) {
	const always = 9
	e.openMap(always + countTrue(!o.StopReason.IsNull(), !o.DisaggregatedParams.IsNull(), !o.EncoderResult.IsNull(),
		o.WorkerTraceLink != nil, o.Usage != nil, !o.EngineData.IsNull()))
	e.key("token_ids")
	e.u32s(o.TokenIDs)
	e.key("tokens")
	e.null()
	e.key("text")
	if o.Text == nil {
		e.null()
	} else {
		e.text(*o.Text)
	}
	e.key("output_type")
	e.text("text")
	e.key("cum_log_probs")
	e.null()
	e.key("log_probs")
	e.logProbs(o.LogProbs)
	e.key("top_logprobs")
	e.topLogprobs(o.TopLogprobs)
	e.key("finish_reason")
	e.finishReason(o)
	e.given("stop_reason", &o.StopReason)
	e.optU32("index", o.Index)
	e.given("disaggregated_params", &o.DisaggregatedParams)
	e.given("encoder_result", &o.EncoderResult)
	if o.WorkerTraceLink != nil {
		e.key("worker_trace_link")
		e.traceLink(o.WorkerTraceLink)
	}
	if o.Usage != nil {
		e.key("completion_usage")
		e.usage(o.Usage)
	}
	e.given("engine_data", &o.EngineData)
	e.closeMap()
}

func (e *encoder) logProbs(v []float64) {
	if v == nil {
		e.null()
		return
	}
	e.openList(len(v))
	for _, p := range v {
		e.element()
		e.float64(p)
	}
	e.closeList()
}

func (e *encoder) topLogprobs(v [][]TopLogprob) {
	if v == nil {
		e.null()
		return
	}
	e.openList(len(v))
	for _, position := range v {
		e.element()
		e.openList(len(position))
		for i := range position {
			e.element()
			e.openMap(4)
			e.key("rank")
			e.uint(uint64(position[i].Rank))
			e.key("token_id")
			e.uint(uint64(position[i].TokenID))
			e.key("token")
			e.null()
			e.key("logprob")
			e.float64(position[i].Logprob)
			e.closeMap()
		}
		e.closeList()
	}
	e.closeList()
}

func (e *encoder) finishReason(o *EngineOutput) {
	switch o.FinishReason {
	case FinishNone:
		e.null()
	case FinishError:
		e.openMap(1)
		e.key("error")
		e.text(o.FinishMessage)
		e.closeMap()
	case FinishEOS, FinishLength, FinishStop, FinishCancelled, FinishContentFilter:
		e.text(string(o.FinishReason))
	default:
		e.text(string(o.FinishReason))
	}
}

func (e *encoder) usage(u *Usage) {
	e.openMap(3 + countTrue(u.CachedTokens != nil))
	e.key("prompt_tokens")
	e.uint(uint64(u.PromptTokens))
	e.key("completion_tokens")
	e.uint(uint64(u.CompletionTokens))
	e.key("total_tokens")
	e.uint(uint64(u.TotalTokens))
	if u.CachedTokens != nil {
		e.key("prompt_tokens_details")
		e.openMap(1)
		e.optU32("cached_tokens", u.CachedTokens)
		e.closeMap()
	}
	e.closeMap()
}
