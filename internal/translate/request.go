package translate

import (
	"math"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

// cacheSaltPrefix keeps Dynamo's salts apart from those of other clients of the engine. Dynamo's routers hash with the same
// prefix; another one would make their prefix index miss.
const cacheSaltPrefix = "dynamo-cache-salt:"

// allLogprobs is the count that stands for -1, the whole vocabulary.
const allLogprobs = math.MaxUint32

// converter is one conversion under way. req is a shallow copy: hydrate sets fields of it, never what they point to.
type converter struct {
	engine *Engine
	req    protocol.PreprocessedRequest
	form   mediaForm // set once
	legacy legacyExtras
	items  []*pb.MediaItem // set by media
	stamp  Stamp           // of the hand-off; zero without one that can be read
}

func newConverter(e *Engine, r *protocol.PreprocessedRequest) converter {
	return converter{engine: e, req: *r, form: formOf(r)}
}

func (c *converter) convert(id string) (*pb.GenerateRequest, *Refusal) {
	r := &c.req
	if refusal := c.unsupported(); refusal != nil {
		return nil, refusal
	}
	if refusal := c.media(); refusal != nil {
		return nil, refusal
	}
	sampling, refusal := c.sampling()
	if refusal != nil {
		return nil, refusal
	}
	decoding, refusal := c.decoding()
	if refusal != nil {
		return nil, refusal
	}
	response, refusal := c.response()
	if refusal != nil {
		return nil, refusal
	}
	kv, refusal := c.kv()
	if refusal == nil {
		refusal = c.adapter()
	}
	if refusal != nil {
		return nil, refusal
	}
	temperature := float32(1) // what OpenAI clients mean by leaving it out; absent would be greedy to the engine
	if r.SamplingOptions.Temperature != nil {
		temperature = *r.SamplingOptions.Temperature
	}
	return &pb.GenerateRequest{
		RequestId:   id,
		Model:       c.engine.ServedName,
		Prompt:      &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: r.TokenIDs}},
		Temperature: &temperature,
		Sampling:    sampling,
		Decoding:    decoding,
		Stopping:    c.stopping(),
		Response:    response,
		Kv:          kv,
		Priority:    enginePriority(r.Routing.Priority),
		Media:       c.items,
	}, nil
}

// unsupported holds what the engine's protocol has no place for, whatever the role.
func (c *converter) unsupported() *Refusal {
	r := &c.req
	s := &r.SamplingOptions
	switch {
	case len(r.TokenIDs) == 0:
		return refuse("token_ids is empty")
	case r.PromptEmbeds != nil:
		return refuse("prompt_embeds is not supported")
	case !r.MMProcessorKwargs.IsNull():
		return refuse("mm_processor_kwargs is not supported")
	case !r.BootstrapInfo.IsNull():
		return refuse("bootstrap_info is not supported")
	case len(r.StopConditions.StopTokenIDsVisible) > 0:
		return refuse("stop_token_ids_visible is not supported")
	case r.StopConditions.MaxThinkingTokens != nil:
		return refuse("max_thinking_tokens is not supported")
	case s.N != nil && *s.N != 1:
		return refuse("n must be 1, got %d", *s.N)
	case s.BestOf != nil && *s.BestOf != 1:
		return refuse("best_of must be 1, got %d", *s.BestOf)
	case s.UseBeamSearch != nil && *s.UseBeamSearch:
		return refuse("beam search is not supported")
	case s.LengthPenalty != nil && !isOne(*s.LengthPenalty):
		return refuse("length_penalty must be 1, got %v", *s.LengthPenalty)
	default:
		return nil
	}
}

// isOne allows what rounding does to 1.0; NaN is not one.
func isOne(f float32) bool {
	const epsilon = 1.0 / (1 << 23)
	return math.Abs(float64(f)-1) <= epsilon
}

func (c *converter) sampling() (*pb.RandomSampling, *Refusal) {
	s := &c.req.SamplingOptions
	out := &pb.RandomSampling{
		NumSequences: 1,
		TopP:         orZero(s.TopP),
		MinP:         orZero(s.MinP),
		Seed:         s.Seed,
	}
	// The engine reads zero as "the model's default", so an explicit "off" would quietly turn into something else. A one-token
	// request samples nothing that anybody sees.
	if s.TopK != nil {
		switch {
		case *s.TopK < -1:
			return nil, refuse("top_k must be positive, got %d", *s.TopK)
		case *s.TopK <= 0 && !c.engine.oneToken():
			return nil, refuse("top_k %d cannot be passed to the engine, which takes it for the model's default; leave it out", *s.TopK)
		case *s.TopK > 0:
			out.TopK = uint32(*s.TopK)
		}
	}
	if s.MinP != nil && *s.MinP == 0 && !c.engine.oneToken() {
		return nil, refuse("min_p 0 cannot be passed to the engine, which takes it for the model's default; leave it out")
	}
	return out, nil
}

func (c *converter) decoding() (*pb.DecodingParameters, *Refusal) {
	s := &c.req.SamplingOptions
	out := &pb.DecodingParameters{
		PresencePenalty:   orZero(s.PresencePenalty),
		FrequencyPenalty:  orZero(s.FrequencyPenalty),
		RepetitionPenalty: orZero(s.RepetitionPenalty),
	}
	if s.GuidedDecoding != nil {
		if refusal := guide(out, s.GuidedDecoding); refusal != nil {
			return nil, refusal
		}
	}
	return out, nil
}

func (c *converter) stopping() *pb.StoppingCriteria {
	s := &c.req.StopConditions
	out := &pb.StoppingCriteria{
		MaxNewTokens:       orZero(s.MaxTokens),
		MinNewTokens:       orZero(s.MinTokens),
		StopTokenIds:       union(s.StopTokenIDs, s.StopTokenIDsHidden),
		StopStrings:        s.Stop,
		IncludeStopStrings: orZero(c.req.SamplingOptions.IncludeStopStrOutput),
		IgnoreEos:          orZero(s.IgnoreEOS),
	}
	if c.engine.oneToken() {
		// The minimum keeps a stop token from being sampled: a prefill that ended with "stop" would be the client's whole
		// answer, and its blocks would wait for a decode that never comes.
		out.MaxNewTokens, out.MinNewTokens = 1, 1
	}
	return out
}

func (c *converter) response() (*pb.ResponseOptions, *Refusal) {
	o := &c.req.OutputOptions
	candidates, refusal := selector("logprobs", o.Logprobs)
	if refusal != nil {
		return nil, refusal
	}
	promptCandidates, refusal := selector("prompt_logprobs", o.PromptLogprobs)
	if refusal != nil {
		return nil, refusal
	}
	return &pb.ResponseOptions{
		// A prefill tells the decode worker what the prompt has become with its media.
		PromptTokenIds:    o.PromptLogprobs != nil || (c.form != mediaNone && c.engine.oneToken()),
		PromptLogprobs:    o.PromptLogprobs != nil,
		PromptCandidates:  promptCandidates,
		OutputText:        new(bool), // false: the frontend detokenizes
		OutputTokenIds:    true,
		OutputLogprobs:    o.Logprobs != nil,
		OutputCandidates:  candidates,
		SkipSpecialTokens: o.SkipSpecialTokens,
	}, nil
}

func selector(field string, count *uint32) (*pb.CandidateTokens, *Refusal) {
	switch {
	case count == nil:
		return nil, nil
	case *count == allLogprobs:
		return &pb.CandidateTokens{Select: &pb.CandidateTokens_All{All: true}}, nil
	case *count > math.MaxInt32:
		return nil, refuse("%s is out of range: %d", field, *count)
	default:
		return &pb.CandidateTokens{Select: &pb.CandidateTokens_TopN{TopN: *count}}, nil
	}
}

func (c *converter) kv() (*pb.KVCacheParameters, *Refusal) {
	r := &c.req
	extras, refusal := c.extras()
	if refusal != nil {
		return nil, refusal
	}
	out := &pb.KVCacheParameters{BypassPrefixCache: extras.bypass}
	if salt := r.Routing.CacheSalt; salt != nil {
		out.CacheSalt = cacheSaltPrefix + *salt
	}
	out.KvTransferParams, refusal = c.transfer(extras)
	if refusal != nil {
		return nil, refusal
	}
	if !r.EncoderResult.IsNull() {
		ec, fault := toStruct(r.EncoderResult)
		if fault != nil {
			return nil, refuse("encoder_result%s", fault.text())
		}
		out.EcTransferParams = ec
	}
	return out, nil
}

// transfer makes the KV transfer parameters of the role.
func (c *converter) transfer(extras extraArgs) (*structpb.Struct, *Refusal) {
	switch c.engine.Role {
	case protocol.Decode:
		return c.handoff()
	case protocol.Prefill:
		params := &structpb.Struct{Fields: make(map[string]*structpb.Value, 1)}
		if extras.hasTransfer {
			converted, fault := toStruct(extras.transfer)
			if fault != nil {
				return nil, refuse("extra_args.kv_transfer_params%s", fault.text())
			}
			params = converted
		}
		params.Fields["do_remote_decode"] = structpb.NewBoolValue(true)
		return params, nil
	case protocol.Aggregated, protocol.Encode:
	}
	if !extras.hasTransfer {
		return nil, nil
	}
	params, fault := toStruct(extras.transfer)
	if fault != nil {
		return nil, refuse("extra_args.kv_transfer_params%s", fault.text())
	}
	return params, nil
}

func (c *converter) adapter() *Refusal {
	name := orZero(c.req.Routing.LoraName)
	switch {
	case c.engine.isBase(name):
		return nil
	case !c.engine.LoRA:
		return refuse("adapter %q is asked for, but the engine does not serve LoRA adapters", name)
	default:
		return refuse("adapter %q is asked for, but this version does not support LoRA adapters", name)
	}
}

// enginePriority: high is important to Dynamo, low runs first in vLLM.
func enginePriority(p *int32) int32 {
	switch {
	case p == nil:
		return 0
	case *p == math.MinInt32:
		return math.MaxInt32
	default:
		return -*p
	}
}

// union returns the ids of both lists in ascending order, each once.
func union(a, b []uint32) []uint32 {
	if len(a)+len(b) == 0 {
		return nil
	}
	out := make([]uint32, 0, len(a)+len(b))
	out = append(append(out, a...), b...)
	slices.Sort(out)
	return slices.Compact(out)
}

func orZero[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
