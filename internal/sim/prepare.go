package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"remora/internal/sim/core"
	"remora/internal/tinymodel"
	pb "remora/proto/vllm"
)

// maxLogprobs is the engine's limit for candidates of one position.
const maxLogprobs = 20

// job is a request that the engine has accepted.
type job struct {
	external string
	rank     *uint32 // that shall take it; nil: any
	core     core.Request
	answer   answer
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// prepare checks a request as the engine's front end does, in its order and with its words, and translates it. Every error is
// a status.
func (s *Server) prepare(req *pb.GenerateRequest, ranks []string) (*job, error) {
	rank, err := parseRank(ranks)
	if err != nil {
		return nil, err
	}
	j := &job{external: req.GetRequestId(), rank: rank}
	if j.external == "" {
		j.external = newUUID()
	}
	j.core.ID = internalID(j.external)
	if err := s.checkShape(req); err != nil {
		return nil, err
	}
	if err := s.setPrompt(j, req); err != nil {
		return nil, err
	}
	if err := s.setLimits(j, req); err != nil {
		return nil, err
	}
	if err := setSampling(j, req); err != nil {
		return nil, err
	}
	if err := setChoices(j, req.GetDecoding()); err != nil {
		return nil, err
	}
	if err := setResponse(j, req); err != nil {
		return nil, err
	}
	kv := req.GetKv()
	j.core.BypassCache = kv.GetBypassPrefixCache()
	j.core.CacheSalt = kv.GetCacheSalt()
	if params := kv.GetKvTransferParams(); params != nil && s.connector() {
		j.core.Transfer = core.ParseTransfer(params.AsMap())
	}
	return j, nil
}

// parseRank reads x-data-parallel-rank. Whether there is such a rank shows later, when the request is placed.
func parseRank(values []string) (*uint32, error) {
	if len(values) == 0 {
		return nil, nil //nolint:nilnil // no rank is asked for
	}
	rank, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(values[0]), "+"), 10, 32)
	if err != nil {
		return nil, invalid("x-data-parallel-rank metadata must be an unsigned 32-bit integer")
	}
	number := uint32(rank)
	return &number, nil
}

// checkShape refuses what cannot be translated at all.
func (s *Server) checkShape(req *pb.GenerateRequest) error {
	if name := req.GetModel(); name != "" && name != s.cfg.ServedName && !slices.Contains(s.cfg.Aliases, name) {
		return status.Errorf(codes.NotFound, "model `%s` not found", name)
	}
	if req.GetPrompt() == nil {
		return invalid("prompt is required")
	}
	if req.GetSampling().GetNumSequences() > 1 {
		return invalid("num_sequences > 1 is not supported")
	}
	if req.GetResponse().GetPromptCandidates().GetTokenIds() != nil {
		return invalid("prompt_candidates token_ids selector is not supported")
	}
	if req.GetLoraName() != "" {
		return status.Error(codes.FailedPrecondition, "engine was not started with LoRA enabled")
	}
	return s.checkMedia(req)
}

// setPrompt tokenizes if need be, puts media into their places, and checks the prompt's ids and length.
func (s *Server) setPrompt(j *job, req *pb.GenerateRequest) error {
	ids := req.GetTokenIds().GetIds()
	if _, isText := req.GetPrompt().(*pb.GenerateRequest_Text); isText {
		ids = append([]uint32{tinymodel.BOS}, tinymodel.Encode(req.GetText())...)
	}
	if len(ids) == 0 {
		return invalid("text request `%s` must contain at least one prompt token ID", j.external)
	}
	if err := checkIDs(ids, "prompt"); err != nil {
		return err
	}
	if n := int(req.GetTruncatePromptTokens()); n > 0 {
		room := s.cfg.MaxModelLen - int(min(req.GetStopping().GetMaxNewTokens(), uint32(s.cfg.MaxModelLen)))
		if n > room {
			return invalid("truncate_prompt_tokens=%d cannot be greater than max_model_len - max_tokens = %d. Please request a smaller truncation size.", n, room)
		}
		ids = ids[max(0, len(ids)-n):]
	}
	if err := s.checkLength(len(ids)); err != nil { // before media are looked for in it
		return err
	}
	j.core.Prompt = ids
	if err := placeMedia(&j.core, req.GetMedia()); err != nil {
		return err
	}
	return s.checkLength(len(j.core.Prompt))
}

func (s *Server) checkLength(n int) error {
	if n >= s.cfg.MaxModelLen {
		return invalid("this model's maximum context length is %d tokens, but the prompt contains %d input tokens", s.cfg.MaxModelLen, n)
	}
	return nil
}

// checkIDs refuses ids outside the vocabulary. The text names the first few.
func checkIDs(ids []uint32, where string) error {
	var bad []string
	for _, id := range ids {
		if id >= tinymodel.VocabSize && len(bad) < 16 {
			bad = append(bad, strconv.FormatUint(uint64(id), 10))
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return invalid("token_id(s) [%s] in %s are out of vocabulary. Vocabulary size: %d", strings.Join(bad, ", "), where, tinymodel.VocabSize)
}

func (s *Server) setLimits(j *job, req *pb.GenerateRequest) error {
	stopping := req.GetStopping()
	room := s.cfg.MaxModelLen - len(j.core.Prompt)
	j.core.MaxTokens = room
	if n := stopping.GetMaxNewTokens(); n > 0 && uint64(n) < uint64(room) {
		j.core.MaxTokens = int(n)
	}
	asked := uint64(stopping.GetMaxNewTokens())
	if asked == 0 {
		asked = uint64(room)
	}
	if least := uint64(stopping.GetMinNewTokens()); least > asked {
		return invalid("`min_tokens` must be less than or equal to `max_tokens`, got min_tokens=%d, max_tokens=%d", least, asked)
	}
	j.core.MinTokens = int(min(stopping.GetMinNewTokens(), uint32(room)))
	j.core.StopTokens = stopping.GetStopTokenIds()
	j.core.IgnoreEOS = stopping.GetIgnoreEos()
	if slices.Contains(stopping.GetStopStrings(), "") {
		return invalid("text request `%s` stop strings cannot be empty", j.external)
	}
	return checkIDs(j.core.StopTokens, "stop_token_ids")
}

func setSampling(j *job, req *pb.GenerateRequest) error {
	random, decoding := req.GetSampling(), req.GetDecoding()
	temperature := req.GetTemperature()
	// Written so that NaN is refused.
	switch topP, minP := random.GetTopP(), random.GetMinP(); {
	case !(temperature >= 0 && temperature <= 2):
		return invalid("temperature must be in [0, 2], got %v", temperature)
	case !(topP >= 0 && topP <= 1):
		return invalid("top_p must be in (0, 1], got %v", topP)
	case !(minP >= 0 && minP <= 1):
		return invalid("min_p must be in [0, 1], got %v", minP)
	}
	switch presence, frequency, repetition := decoding.GetPresencePenalty(), decoding.GetFrequencyPenalty(), decoding.GetRepetitionPenalty(); {
	case !(presence >= -2 && presence <= 2):
		return invalid("presence_penalty must be in [-2, 2], got %v", presence)
	case !(frequency >= -2 && frequency <= 2):
		return invalid("frequency_penalty must be in [-2, 2], got %v", frequency)
	case !(repetition >= 0 && repetition <= maxFloat32):
		return invalid("repetition_penalty must be in (0, inf), got %v", repetition)
	}
	p := core.Sampling{
		Temperature:       float64(temperature),
		TopK:              int(min(random.GetTopK(), tinymodel.VocabSize)),
		TopP:              float64(random.GetTopP()),
		MinP:              float64(random.GetMinP()),
		PresencePenalty:   float64(decoding.GetPresencePenalty()),
		FrequencyPenalty:  float64(decoding.GetFrequencyPenalty()),
		RepetitionPenalty: float64(decoding.GetRepetitionPenalty()),
		Allowed:           decoding.GetAllowedTokenIds(),
	}
	if random != nil && random.Seed != nil {
		p.Seed = uint64(random.GetSeed())
	} else {
		p.Seed = randomUint64()
	}
	if err := setBias(&p, decoding); err != nil {
		return err
	}
	if err := checkIDs(p.Allowed, "allowed_token_ids"); err != nil {
		return err
	}
	for _, bad := range decoding.GetBadWordsTokenIds() {
		if len(bad.GetIds()) == 0 {
			return invalid("bad_words_token_ids must not contain empty sequences")
		}
		if err := checkIDs(bad.GetIds(), "bad_words_token_ids"); err != nil {
			return err
		}
		p.BadWords = append(p.BadWords, bad.GetIds())
	}
	j.core.Sampling = p
	return nil
}

func setBias(p *core.Sampling, decoding *pb.DecodingParameters) error {
	bias := decoding.GetLogitBias()
	if len(bias) == 0 {
		return nil
	}
	p.Bias = make(map[uint32]float64, len(bias))
	ids := make([]uint32, 0, len(bias))
	for id, value := range bias {
		ids = append(ids, id)
		if value == value { // NaN would make every comparison false
			p.Bias[id] = float64(value)
		}
	}
	slices.Sort(ids)
	return checkIDs(ids, "logit_bias")
}

// setChoices takes structured output as far as the toy model has it: a choice of strings; any JSON object, for which it has a
// few ready; and a JSON schema, for which it has one answer. The rest is refused rather than ignored.
func setChoices(j *job, decoding *pb.DecodingParameters) error {
	var texts []string
	switch out := decoding.GetStructuredOutput().(type) {
	case nil:
		return nil
	case *pb.DecodingParameters_Choice:
		if texts = out.Choice.GetChoices(); len(texts) == 0 {
			return invalid("invalid structured outputs params: structured_outputs.choice cannot be empty")
		}
	case *pb.DecodingParameters_JsonObject:
		if !out.JsonObject {
			return nil
		}
		texts = []string{`{}`, `{"word": "like"}`, `{"number": 7}`, `{"list": [1, 2, 3]}`}
	case *pb.DecodingParameters_Json:
		var schema any
		if err := json.Unmarshal([]byte(out.Json), &schema); err != nil {
			if out.Json == "{" {
				return invalid("invalid json schema: EOF while parsing an object at line 1 column 1")
			}
			return invalid("invalid json schema: %v", err)
		}
		text, err := instance(schema)
		if err != nil {
			return unsupported("this JSON schema: " + err.Error())
		}
		texts = []string{text}
	case *pb.DecodingParameters_Grammar:
		if out.Grammar == "" {
			return invalid("invalid structured outputs params: structured_outputs.grammar cannot be an empty string")
		}
		return unsupported("a grammar")
	case *pb.DecodingParameters_Regex:
		return unsupported("a regular expression")
	case *pb.DecodingParameters_StructuralTag:
		return unsupported("a structural tag")
	default:
		return unsupported(fmt.Sprintf("%T", out))
	}
	for _, text := range texts {
		j.core.Sampling.Choices = append(j.core.Sampling.Choices, tinymodel.Encode(text))
	}
	return nil
}

func unsupported(what string) error {
	return status.Errorf(codes.Unimplemented, "this simulated engine cannot constrain its output by %s", what)
}

func setResponse(j *job, req *pb.GenerateRequest) error {
	want := req.GetResponse()
	if want.GetOutputLogprobs() {
		top, err := candidates(want.GetOutputCandidates(), "logprobs")
		if err != nil {
			return err
		}
		j.core.Sampling.Logprobs = &top
		if sel := want.GetOutputCandidates().GetTokenIds(); sel != nil {
			if err := checkIDs(sel.GetIds(), "logprob_token_ids"); err != nil {
				return err
			}
			j.core.Sampling.LogprobIDs = append([]uint32{}, sel.GetIds()...)
		}
	}
	if want.GetPromptLogprobs() {
		top, err := candidates(want.GetPromptCandidates(), "prompt logprobs")
		if err != nil {
			return err
		}
		j.core.PromptLogprobs = &top
	}
	j.answer = newAnswer(req, j.core.Prompt)
	return nil
}

// candidates reads how many candidates a position shall have.
func candidates(sel *pb.CandidateTokens, what string) (int, error) {
	n := uint64(sel.GetTopN())
	switch {
	case sel.GetAll():
		n = tinymodel.VocabSize
	case sel.GetTokenIds() != nil:
		n = uint64(len(sel.GetTokenIds().GetIds()))
	}
	if n > maxLogprobs {
		return 0, invalid("requested %s of %d, which is greater than max allowed: %d", what, n, maxLogprobs)
	}
	return int(n), nil
}
