package protocol

// Codec is the encoding of request bodies and data frames. Control headers, handshakes and prologues are always JSON.
type Codec uint8

// The two encodings of the request plane; the words on the wire are "json" and "msgpack".
const (
	JSON Codec = iota
	MsgPack
)

// PreprocessedRequest is a tokenized request as the frontend sends it to a worker. Pointers and null Values mean "not given".
// Fields that no worker of ours reads (mdc_sum excepted) are skipped while decoding.
type PreprocessedRequest struct {
	Model             string
	TokenIDs          []uint32
	PromptEmbeds      *string
	MultiModalData    Value // map kind -> list of {"Url"|"RawUrl"|"Decoded"|"UuidOnly": ...}; kinds are audio_url, image_url, video_url
	MultiModalUUIDs   Value // map kind -> list of strings and nulls
	StopConditions    StopConditions
	SamplingOptions   SamplingOptions
	OutputOptions     OutputOptions
	EOSTokenIDs       []uint32
	MDCSum            string
	Annotations       []string
	Routing           Routing
	PrefillResult     *PrefillResult // nil outside the decode phase
	EncoderResult     Value
	BootstrapInfo     Value
	ExtraArgs         Value
	MMProcessorKwargs Value
	MigrationLink     *TraceLink
	HealthCheck       bool // JSON name _HEALTH_CHECK
}

// StopConditions say when a generation ends. The frontend puts the model's eos ids into StopTokenIDsHidden.
type StopConditions struct {
	MaxTokens           *uint32
	Stop                []string
	StopTokenIDs        []uint32
	StopTokenIDsVisible []uint32
	StopTokenIDsHidden  []uint32
	MinTokens           *uint32
	IgnoreEOS           *bool
	MaxThinkingTokens   *uint32
}

// SamplingOptions steer sampling; see GuidedDecoding for constrained output.
type SamplingOptions struct {
	N                    *uint8
	BestOf               *uint8
	PresencePenalty      *float32
	FrequencyPenalty     *float32
	RepetitionPenalty    *float32
	Temperature          *float32
	TopP                 *float32
	TopK                 *int32 // -1 is off
	MinP                 *float32
	UseBeamSearch        *bool
	LengthPenalty        *float32
	Seed                 *int64
	IncludeStopStrOutput *bool // JSON name include_stop_str_in_output
	GuidedDecoding       *GuidedDecoding
}

// GuidedDecoding constrains the output; at most one of JSON, Regex, Choice, Grammar and StructuralTag may be given.
type GuidedDecoding struct {
	JSON              Value // any JSON value, usually a schema
	Regex             *string
	Choice            []string
	Grammar           *string
	Backend           *string
	WhitespacePattern *string
	StructuralTag     Value
}

// OutputOptions say what besides tokens the client wants back.
type OutputOptions struct {
	Logprobs               *uint32
	PromptLogprobs         *uint32
	SkipSpecialTokens      *bool
	FormattedPrompt        *bool
	ReturnTokensAsTokenIDs *bool
}

// Routing carries what the router decided or was told. DPRank and PrefillDPRank are absolute data-parallel ranks.
type Routing struct {
	BackendInstanceID *uint64
	PrefillWorkerID   *uint64
	DecodeWorkerID    *uint64
	DPRank            *uint32
	PrefillDPRank     *uint32
	LoraName          *string
	CacheSalt         *string
	Priority          *int32
}

// PrefillResult is the hand-off of a finished prefill: opaque to Dynamo, made and read by the engines.
type PrefillResult struct {
	DisaggregatedParams Value // required, any kind
	PromptTokensDetails Value
}

// TraceLink names a span of the previous attempt or phase.
type TraceLink struct {
	TraceID string
	SpanID  string
}
