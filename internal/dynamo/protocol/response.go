package protocol

// Item is one element of a response stream: data or an error, never both. On the wire it is an Annotated inside the
// {"data":...,"complete_final":false} wrapper.
type Item struct {
	Data  *EngineOutput
	Error *Error // sets event "error"
}

// FinishReason is why a choice ended; empty while it goes on.
type FinishReason string

// The finish reasons of the wire. An OpenAI client sees eos, stop and cancelled as "stop".
const (
	FinishNone          FinishReason = ""
	FinishEOS           FinishReason = "eos"
	FinishLength        FinishReason = "length"
	FinishStop          FinishReason = "stop"
	FinishCancelled     FinishReason = "cancelled" // reader's alias "abort"
	FinishContentFilter FinishReason = "content_filter"
	FinishError         FinishReason = "error" // only read: {"error":text}, "error: text" and "error"
)

// EngineOutput is LLMEngineOutput: the delta since the previous item. Written with the same keys as the Rust sidecar:
// token_ids, tokens, text, output_type, cum_log_probs, log_probs, top_logprobs, finish_reason and index always (null where
// unset), the others only when set.
type EngineOutput struct {
	TokenIDs            []uint32
	Text                *string   // nil: the frontend detokenizes and checks stop strings itself
	LogProbs            []float64 // one a token; nil: null, empty: []
	TopLogprobs         [][]TopLogprob
	FinishReason        FinishReason
	FinishMessage       string // with FinishError
	StopReason          Value  // string, integer or list of integers
	Index               *uint32
	DisaggregatedParams Value
	EncoderResult       Value
	WorkerTraceLink     *TraceLink
	Usage               *Usage
	EngineData          Value
}

// TopLogprob is one candidate of a position.
type TopLogprob struct {
	Rank    uint32
	TokenID uint32
	Logprob float64
}

// Usage counts tokens; it rides on the last item.
type Usage struct {
	PromptTokens     uint32
	CompletionTokens uint32
	TotalTokens      uint32
	CachedTokens     *uint32 // prompt_tokens_details.cached_tokens
}
