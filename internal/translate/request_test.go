package translate

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

// plain is what a request with nothing but the prompt 1, 2, 3 becomes.
func plain() *pb.GenerateRequest {
	return &pb.GenerateRequest{
		RequestId:   "id",
		Model:       "served",
		Prompt:      &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: []uint32{1, 2, 3}}},
		Temperature: new(float32(1)),
		Sampling:    &pb.RandomSampling{NumSequences: 1},
		Decoding:    &pb.DecodingParameters{},
		Stopping:    &pb.StoppingCriteria{},
		Response:    &pb.ResponseOptions{OutputText: new(false), OutputTokenIds: true},
		Kv:          &pb.KVCacheParameters{},
	}
}

func object(tb testing.TB, text string) *structpb.Struct {
	tb.Helper()
	s := &structpb.Struct{}
	if err := s.UnmarshalJSON([]byte(text)); err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	return s
}

func topN(n uint32) *pb.CandidateTokens {
	return &pb.CandidateTokens{Select: &pb.CandidateTokens_TopN{TopN: n}}
}

func sampling(s string) string { return `"sampling_options":{` + s + `}` }
func stop(s string) string     { return `"stop_conditions":{` + s + `}` }
func output(s string) string   { return `"output_options":{` + s + `}` }
func routing(s string) string  { return `"routing":{` + s + `}` }
func extra(s string) string    { return `"extra_args":{` + s + `}` }
func guided(s string) string   { return sampling(`"guided_decoding":{` + s + `}`) }
func legacy(s string) string   { return extra(`"vllm_tito":{"sampling_params":{` + s + `}}`) }

// TestRequestFields goes through the field table: each row changes plain in one way.
func TestRequestFields(t *testing.T) {
	for _, row := range []struct {
		name    string
		members string
		want    func(*pb.GenerateRequest)
	}{
		{"nothing given", ``, func(*pb.GenerateRequest) {}},
		{"model is ignored", `"model":"other"`, func(*pb.GenerateRequest) {}},
		{"token_ids", `"token_ids":[9,8]`, func(r *pb.GenerateRequest) {
			r.Prompt = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: []uint32{9, 8}}}
		}},
		{"temperature", sampling(`"temperature":0.5`), func(r *pb.GenerateRequest) { r.Temperature = new(float32(0.5)) }},
		{"temperature 0 stays greedy", sampling(`"temperature":0`), func(r *pb.GenerateRequest) { r.Temperature = new(float32(0)) }},
		{"top_k", sampling(`"top_k":7`), func(r *pb.GenerateRequest) { r.Sampling.TopK = 7 }},
		{"top_p", sampling(`"top_p":0.25`), func(r *pb.GenerateRequest) { r.Sampling.TopP = 0.25 }},
		{"min_p", sampling(`"min_p":0.125`), func(r *pb.GenerateRequest) { r.Sampling.MinP = 0.125 }},
		{"seed", sampling(`"seed":-5`), func(r *pb.GenerateRequest) { r.Sampling.Seed = new(int64(-5)) }},
		{"seed 0 is a seed", sampling(`"seed":0`), func(r *pb.GenerateRequest) { r.Sampling.Seed = new(int64(0)) }},
		{"penalties", sampling(`"presence_penalty":1,"frequency_penalty":0.5,"repetition_penalty":1.5`), func(r *pb.GenerateRequest) {
			r.Decoding.PresencePenalty, r.Decoding.FrequencyPenalty, r.Decoding.RepetitionPenalty = 1, 0.5, 1.5
		}},
		{"neutral n, best_of, beam search, length_penalty", sampling(`"n":1,"best_of":1,"use_beam_search":false,"length_penalty":1.0000001`),
			func(*pb.GenerateRequest) {}},
		{"max_tokens", stop(`"max_tokens":12`), func(r *pb.GenerateRequest) { r.Stopping.MaxNewTokens = 12 }},
		{"min_tokens", stop(`"min_tokens":3`), func(r *pb.GenerateRequest) { r.Stopping.MinNewTokens = 3 }},
		{"stop ids: union, sorted, once", stop(`"stop_token_ids":[9,4],"stop_token_ids_hidden":[4,1],"stop_token_ids_visible":[]`),
			func(r *pb.GenerateRequest) { r.Stopping.StopTokenIds = []uint32{1, 4, 9} }},
		{"stop", stop(`"stop":["a","b"]`), func(r *pb.GenerateRequest) { r.Stopping.StopStrings = []string{"a", "b"} }},
		{"include_stop_str_in_output", sampling(`"include_stop_str_in_output":true`),
			func(r *pb.GenerateRequest) { r.Stopping.IncludeStopStrings = true }},
		{"ignore_eos", stop(`"ignore_eos":true`), func(r *pb.GenerateRequest) { r.Stopping.IgnoreEos = true }},
		{"logprobs", output(`"logprobs":2`), func(r *pb.GenerateRequest) {
			r.Response.OutputLogprobs, r.Response.OutputCandidates = true, topN(2)
		}},
		{"logprobs 0", output(`"logprobs":0`), func(r *pb.GenerateRequest) {
			r.Response.OutputLogprobs, r.Response.OutputCandidates = true, topN(0)
		}},
		{"logprobs, the largest count", output(`"logprobs":2147483647`), func(r *pb.GenerateRequest) {
			r.Response.OutputLogprobs, r.Response.OutputCandidates = true, topN(math.MaxInt32)
		}},
		{"logprobs of everything", output(`"logprobs":4294967295`), func(r *pb.GenerateRequest) {
			r.Response.OutputLogprobs = true
			r.Response.OutputCandidates = &pb.CandidateTokens{Select: &pb.CandidateTokens_All{All: true}}
		}},
		{"prompt_logprobs", output(`"prompt_logprobs":1`), func(r *pb.GenerateRequest) {
			r.Response.PromptTokenIds, r.Response.PromptLogprobs, r.Response.PromptCandidates = true, true, topN(1)
		}},
		{"skip_special_tokens keeps its presence", output(`"skip_special_tokens":false`),
			func(r *pb.GenerateRequest) { r.Response.SkipSpecialTokens = new(false) }},
		{"priority is negated", routing(`"priority":5`), func(r *pb.GenerateRequest) { r.Priority = -5 }},
		{"priority below zero", routing(`"priority":-7`), func(r *pb.GenerateRequest) { r.Priority = 7 }},
		{"priority saturates", routing(`"priority":-2147483648`), func(r *pb.GenerateRequest) { r.Priority = math.MaxInt32 }},
		{"cache_salt", routing(`"cache_salt":"t1"`), func(r *pb.GenerateRequest) { r.Kv.CacheSalt = "dynamo-cache-salt:t1" }},
		{"cache_salt is prefixed again", routing(`"cache_salt":"dynamo-cache-salt:t1"`),
			func(r *pb.GenerateRequest) { r.Kv.CacheSalt = "dynamo-cache-salt:dynamo-cache-salt:t1" }},
		{"cache_salt empty is one all the same", routing(`"cache_salt":""`), func(r *pb.GenerateRequest) { r.Kv.CacheSalt = "dynamo-cache-salt:" }},
		{"encoder_result null", `"encoder_result":null`, func(*pb.GenerateRequest) {}},
		{"encoder_result", `"encoder_result":{"a":[1]}`,
			func(r *pb.GenerateRequest) { r.Kv.EcTransferParams = object(t, `{"a":[1]}`) }},
		{"no media in empty lists", `"multi_modal_data":{"image_url":[],"odd":[]},"multi_modal_uuids":{"audio_url":[]}`, func(*pb.GenerateRequest) {}},
		{"ignored silently", `"eos_token_ids":[2],"annotations":["x"],"router_config_override":null,"mdc_sum":"00","request_timestamp_ms":1.5,
			"require_reasoning":true,"migration_link":{"trace_id":"a","span_id":"b"},"_HEALTH_CHECK":true`, func(*pb.GenerateRequest) {}},
		{"ignored silently: what the engine could do, but the frontend does itself or nobody does",
			sampling(`"bad_words":["x"],"logit_bias":{"1":2},"allowed_token_ids":[1],"detokenize":false`) + "," +
				output(`"formatted_prompt":true,"return_tokens_as_token_ids":true,"no_stop_trim":true`) + `,"kv_hint":{"a":1},"session_id":"s"`,
			func(*pb.GenerateRequest) {}},
		{"guided json keeps the order of keys", guided(`"json":{"z":1,"a":{"n":[true,null,1.5,"é\n\"<"]}}`), func(r *pb.GenerateRequest) {
			r.Decoding.StructuredOutput = &pb.DecodingParameters_Json{Json: `{"z":1,"a":{"n":[true,null,1.5,"é\n\"<"]}}`}
		}},
		{"guided json text is a JSON value too", guided(`"json":"x"`), func(r *pb.GenerateRequest) {
			r.Decoding.StructuredOutput = &pb.DecodingParameters_Json{Json: `"x"`}
		}},
		{"guided regex", guided(`"regex":"a+"`), func(r *pb.GenerateRequest) {
			r.Decoding.StructuredOutput = &pb.DecodingParameters_Regex{Regex: "a+"}
		}},
		{"guided choice", guided(`"choice":["a","b"]`), func(r *pb.GenerateRequest) {
			r.Decoding.StructuredOutput = &pb.DecodingParameters_Choice{Choice: &pb.StringChoices{Choices: []string{"a", "b"}}}
		}},
		{"guided choice of nothing", guided(`"choice":[]`), func(r *pb.GenerateRequest) {
			r.Decoding.StructuredOutput = &pb.DecodingParameters_Choice{Choice: &pb.StringChoices{}}
		}},
		{"guided grammar", guided(`"grammar":"root ::= x"`), func(r *pb.GenerateRequest) {
			r.Decoding.StructuredOutput = &pb.DecodingParameters_Grammar{Grammar: "root ::= x"}
		}},
		{"structural_tag text", guided(`"structural_tag":"{}"`), func(r *pb.GenerateRequest) {
			r.Decoding.StructuredOutput = &pb.DecodingParameters_StructuralTag{StructuralTag: "{}"}
		}},
		{"structural_tag document", guided(`"structural_tag":{"b":1,"a":[]}`), func(r *pb.GenerateRequest) {
			r.Decoding.StructuredOutput = &pb.DecodingParameters_StructuralTag{StructuralTag: `{"b":1,"a":[]}`}
		}},
		{"guided_decoding with nothing in it", guided(`"json":null`), func(*pb.GenerateRequest) {}},
		{"bypass_prefix_cache", extra(`"bypass_prefix_cache":true`), func(r *pb.GenerateRequest) { r.Kv.BypassPrefixCache = true }},
		{"its alias", extra(`"skip_reading_prefix_cache":true`), func(r *pb.GenerateRequest) { r.Kv.BypassPrefixCache = true }},
		{"the alias yields even to false", extra(`"bypass_prefix_cache":false,"skip_reading_prefix_cache":true`), func(*pb.GenerateRequest) {}},
		{"kv_transfer_params", extra(`"kv_transfer_params":{"a":{"b":[1,null]}}`),
			func(r *pb.GenerateRequest) { r.Kv.KvTransferParams = object(t, `{"a":{"b":[1,null]}}`) }},
		{"extra_args empty", extra(``), func(*pb.GenerateRequest) {}},
		{"extra_args null", `"extra_args":null`, func(*pb.GenerateRequest) {}},
		{"nvext", routing(`"cache_salt":"s"`) + "," + extra(`"nvext":{"cache_salt":"s","token_in":true,
			"extra_fields":["worker_id","timing","completion_token_ids","prompt_token_ids","prompt_logprobs"]}`),
			func(r *pb.GenerateRequest) { r.Kv.CacheSalt = "dynamo-cache-salt:s" }},
		{"nvext empty", extra(`"nvext":{}`), func(*pb.GenerateRequest) {}},
		{"lora_name empty", routing(`"lora_name":""`), func(*pb.GenerateRequest) {}},
		{"lora_name of the base model: served name", routing(`"lora_name":"served"`), func(*pb.GenerateRequest) {}},
		{"lora_name of the base model: id", routing(`"lora_name":"org/model"`), func(*pb.GenerateRequest) {}},
		{"lora_name of the base model: alias", routing(`"lora_name":"alias-b"`), func(*pb.GenerateRequest) {}},
	} {
		t.Run(row.name, func(t *testing.T) {
			want := plain()
			row.want(want)
			call := convert(t, engine(protocol.Aggregated), row.members)
			if diff := cmp.Diff(want, call.Request, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			if call.HandoffUsed || call.Rank != nil {
				t.Errorf("hand-off %v, rank %v", call.HandoffUsed, call.Rank)
			}
		})
	}
}

func TestLegacyEnvelope(t *testing.T) {
	for _, row := range []struct {
		name    string
		members string
		want    func(*pb.GenerateRequest)
	}{
		{"sampling", legacy(`"temperature":0,"top_p":0.5,"top_k":4,"min_p":0.25,"seed":9,"presence_penalty":1,"frequency_penalty":2,"repetition_penalty":1.5`),
			func(r *pb.GenerateRequest) {
				r.Temperature = new(float32(0))
				r.Sampling = &pb.RandomSampling{NumSequences: 1, TopP: 0.5, TopK: 4, MinP: 0.25, Seed: new(int64(9))}
				r.Decoding = &pb.DecodingParameters{PresencePenalty: 1, FrequencyPenalty: 2, RepetitionPenalty: 1.5}
			}},
		{"stopping", legacy(`"max_tokens":5,"min_tokens":2,"ignore_eos":true,"stop_token_ids":[7,3]`), func(r *pb.GenerateRequest) {
			r.Stopping = &pb.StoppingCriteria{MaxNewTokens: 5, MinNewTokens: 2, IgnoreEos: true, StopTokenIds: []uint32{3, 7}}
		}},
		{"output", legacy(`"logprobs":1,"prompt_logprobs":-1,"skip_special_tokens":true,"return_token_ids":true`), func(r *pb.GenerateRequest) {
			r.Response.OutputLogprobs, r.Response.OutputCandidates = true, topN(1)
			r.Response.PromptTokenIds, r.Response.PromptLogprobs = true, true
			r.Response.PromptCandidates = &pb.CandidateTokens{Select: &pb.CandidateTokens_All{All: true}}
			r.Response.SkipSpecialTokens = new(true)
		}},
		{"output of everything", legacy(`"logprobs":-1`), func(r *pb.GenerateRequest) {
			r.Response.OutputLogprobs = true
			r.Response.OutputCandidates = &pb.CandidateTokens{Select: &pb.CandidateTokens_All{All: true}}
		}},
		{"nulls are absent", legacy(`"temperature":null,"seed":null,"stop_token_ids":null,"return_token_ids":null`), func(*pb.GenerateRequest) {}},
		{"the canonical field wins", legacy(`"temperature":0,"max_tokens":5`) + "," + sampling(`"temperature":0.5`) + "," + stop(`"max_tokens":6`),
			func(r *pb.GenerateRequest) {
				r.Temperature = new(float32(0.5))
				r.Stopping.MaxNewTokens = 6
			}},
		{"stop ids only where the frontend set none", legacy(`"stop_token_ids":[7]`) + "," + stop(`"stop_token_ids_hidden":[1]`),
			func(r *pb.GenerateRequest) { r.Stopping.StopTokenIds = []uint32{1} }},
		{"skip_reading_prefix_cache", legacy(`"skip_reading_prefix_cache":true`), func(r *pb.GenerateRequest) { r.Kv.BypassPrefixCache = true }},
		{"skip_reading_prefix_cache yields", extra(`"vllm_tito":{"sampling_params":{"skip_reading_prefix_cache":true}},"skip_reading_prefix_cache":false`),
			func(*pb.GenerateRequest) {}},
		{"kv_transfer_params", extra(`"vllm_tito":{"sampling_params":{},"kv_transfer_params":{"a":1}}`),
			func(r *pb.GenerateRequest) { r.Kv.KvTransferParams = object(t, `{"a":1}`) }},
		{"kv_transfer_params yield", extra(`"vllm_tito":{"sampling_params":{},"kv_transfer_params":{"a":1}},"kv_transfer_params":{"b":2}`),
			func(r *pb.GenerateRequest) { r.Kv.KvTransferParams = object(t, `{"b":2}`) }},
		{"keys that mean nothing here", extra(`"vllm_tito":{"sampling_params":{},"request_id":"x","model":"m","stream":true,"stream_options":{},
			"cache_salt":"s","priority":3,"features":null,"assistant_tokens_mask":null,"token_offsets":null,"content_parts":null,
			"return_token_ids":null,"ec_transfer_params":null}`), func(*pb.GenerateRequest) {}},
	} {
		t.Run(row.name, func(t *testing.T) {
			want := plain()
			row.want(want)
			r := request(t, row.members)
			call, refusal := engine(protocol.Aggregated).Convert("id", r)
			if refusal != nil {
				t.Fatal(refusal)
			}
			if diff := cmp.Diff(want, call.Request, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(request(t, row.members), r); diff != "" {
				t.Errorf("the request was changed:\n%s", diff)
			}
		})
	}
}

// TestPrefillRequest: one token that is no stop token, the marker for the engine, and leniency about what cannot matter.
func TestPrefillRequest(t *testing.T) {
	for _, row := range []struct {
		name    string
		members string
		params  string
	}{
		{"parameters are made", ``, `{"do_remote_decode":true}`},
		{"the marker is added", extra(`"kv_transfer_params":{"a":1}`), `{"a":1,"do_remote_decode":true}`},
		{"the marker is overwritten", extra(`"kv_transfer_params":{"do_remote_decode":"no"}`), `{"do_remote_decode":true}`},
		{"limits are replaced", stop(`"max_tokens":50,"min_tokens":20`), `{"do_remote_decode":true}`},
		{"top_k -1 and min_p 0 do not matter", sampling(`"top_k":-1,"min_p":0`), `{"do_remote_decode":true}`},
		{"top_k 0 does not matter", sampling(`"top_k":0`), `{"do_remote_decode":true}`},
		{"the legacy envelope's parameters become the hand-off's", extra(`"vllm_tito":{"sampling_params":{},"kv_transfer_params":{"a":1}}`), `{"a":1,"do_remote_decode":true}`},
		{"unknown legacy parameters do not matter", legacy(`"odd":1,"max_tokens":9`), `{"do_remote_decode":true}`},
	} {
		t.Run(row.name, func(t *testing.T) {
			want := plain()
			want.Stopping.MaxNewTokens, want.Stopping.MinNewTokens = 1, 1
			want.Kv.KvTransferParams = object(t, row.params)
			call := convert(t, engine(protocol.Prefill), row.members)
			if diff := cmp.Diff(want, call.Request, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			if call.HandoffUsed {
				t.Error("a prefill uses no hand-off")
			}
		})
	}
}

// TestEncoderResult: prefill and decode hand it on as an aggregated engine gets it.
func TestEncoderResult(t *testing.T) {
	for _, role := range []protocol.Role{protocol.Aggregated, protocol.Prefill, protocol.Decode} {
		call := convert(t, engine(role), `"encoder_result":{"a":[1]},"prefill_result":{"disaggregated_params":{}}`)
		if diff := cmp.Diff(object(t, `{"a":[1]}`), call.Request.GetKv().GetEcTransferParams(), protocmp.Transform()); diff != "" {
			t.Errorf("%v: %s", role, diff)
		}
	}
}

func TestRank(t *testing.T) {
	handoff := `,"prefill_result":{"disaggregated_params":{}}`
	for _, row := range []struct {
		name    string
		role    protocol.Role
		members string
		want    *uint32
	}{
		{"aggregated", protocol.Aggregated, routing(`"dp_rank":3`), new(uint32(3))},
		{"aggregated, none", protocol.Aggregated, routing(``), nil},
		{"aggregated ignores prefill_dp_rank", protocol.Aggregated, routing(`"prefill_dp_rank":3`), nil},
		{"decode", protocol.Decode, routing(`"dp_rank":3,"prefill_dp_rank":4`) + handoff, new(uint32(3))},
		{"prefill", protocol.Prefill, routing(`"dp_rank":3,"prefill_dp_rank":4`), new(uint32(4))},
		{"prefill falls back", protocol.Prefill, routing(`"dp_rank":3`), new(uint32(3))},
	} {
		t.Run(row.name, func(t *testing.T) {
			if diff := cmp.Diff(row.want, convert(t, engine(row.role), row.members).Rank); diff != "" {
				t.Error(diff)
			}
		})
	}
	hybrid := engine(protocol.Aggregated)
	hybrid.RankStart, hybrid.RankCount = 4, 4
	for rank, fits := range map[string]bool{"0": false, "3": false, "4": true, "7": true, "8": false, "4294967295": false} {
		_, refusal := hybrid.Convert("id", request(t, routing(`"dp_rank":`+rank)))
		if (refusal == nil) != fits {
			t.Errorf("rank %s of 4 to 7: %v", rank, refusal)
		}
		if !fits && (refusal.Err.Kind != protocol.ErrorBackendInvalidArgument || !strings.Contains(refusal.Err.Public, "rank "+rank+" is not served here: this worker has ranks 4 to 7")) {
			t.Errorf("rank %s: %+v", rank, refusal.Err)
		}
	}
}

// TestRefusals: each row names the words that tell the client what to change.
func TestRefusals(t *testing.T) {
	for _, row := range []struct {
		name    string
		role    protocol.Role
		members string
		words   string
	}{
		{"empty token_ids", protocol.Aggregated, `"token_ids":[]`, "token_ids is empty"},
		{"prompt_embeds", protocol.Aggregated, `"prompt_embeds":"AA=="`, "prompt_embeds"},
		{"mm_processor_kwargs, even empty", protocol.Aggregated, `"mm_processor_kwargs":{}`, "mm_processor_kwargs"},
		{"bootstrap_info", protocol.Prefill, `"bootstrap_info":{"bootstrap_host":"h","bootstrap_port":1,"bootstrap_room":2}`, "bootstrap_info"},
		{"visible stop ids", protocol.Aggregated, stop(`"stop_token_ids_visible":[1]`), "stop_token_ids_visible"},
		{"max_thinking_tokens", protocol.Aggregated, stop(`"max_thinking_tokens":0`), "max_thinking_tokens"},
		{"n", protocol.Aggregated, sampling(`"n":2`), "n must be 1"},
		{"n 0", protocol.Aggregated, sampling(`"n":0`), "n must be 1"},
		{"best_of", protocol.Aggregated, sampling(`"best_of":2`), "best_of"},
		{"beam search", protocol.Prefill, sampling(`"use_beam_search":true`), "beam search"},
		{"length_penalty", protocol.Aggregated, sampling(`"length_penalty":1.001`), "length_penalty"},
		{"top_k below -1", protocol.Prefill, sampling(`"top_k":-2`), "top_k"},
		{"top_k -1", protocol.Aggregated, sampling(`"top_k":-1`), "top_k -1"},
		{"top_k 0", protocol.Aggregated, sampling(`"top_k":0`), "top_k 0"},
		{"min_p 0", protocol.Aggregated, sampling(`"min_p":0`), "min_p 0"},
		{"logprobs out of range", protocol.Aggregated, output(`"logprobs":2147483648`), "logprobs"},
		{"prompt_logprobs out of range", protocol.Prefill, output(`"prompt_logprobs":4294967294`), "prompt_logprobs"},
		{"guided backend", protocol.Aggregated, guided(`"backend":"x","regex":"a"`), "guided_decoding.backend"},
		{"guided whitespace_pattern", protocol.Aggregated, guided(`"whitespace_pattern":" "`), "whitespace_pattern"},
		{"guided twice", protocol.Aggregated, guided(`"regex":"a","json":{}`), "one of json"},
		{"media on a text model", protocol.Aggregated, `"multi_modal_data":{"image_url":[{"Url":"http://h/x"}]}`, "takes text only"},
		{"preprocessed media on a text model", protocol.Aggregated, extra(`"vllm_tito":{"sampling_params":{},"features":{}}`), "takes text only"},
		{"media ids alone", protocol.Aggregated, `"multi_modal_uuids":{"image_url":["a"]}`, "multi_modal_uuids"},
		{"extra_args no object", protocol.Aggregated, `"extra_args":[]`, "extra_args must be an object"},
		{"extra_args unknown key", protocol.Aggregated, extra(`"odd":null`), `"odd"`},
		{"bypass_prefix_cache no boolean", protocol.Aggregated, extra(`"bypass_prefix_cache":1`), "bypass_prefix_cache"},
		{"alias no boolean", protocol.Aggregated, extra(`"skip_reading_prefix_cache":null`), "skip_reading_prefix_cache"},
		{"kv_transfer_params no object", protocol.Aggregated, extra(`"kv_transfer_params":null`), "kv_transfer_params must be an object"},
		{"kv_transfer_params no object, prefill", protocol.Prefill, extra(`"kv_transfer_params":"x"`), "kv_transfer_params must be an object"},
		{"kv_transfer_params inexact", protocol.Aggregated, extra(`"kv_transfer_params":{"a":{"room":[9007199254740992]}}`), "kv_transfer_params.a.room[0] is 9007199254740992"},
		{"encoder_result inexact", protocol.Aggregated, `"encoder_result":{"a":18446744073709551615}`, "encoder_result.a"},
		{"messages", protocol.Aggregated, extra(`"messages":[]`), "extra_args.messages"},
		{"formatted_prompt", protocol.Aggregated, extra(`"formatted_prompt":"x"`), "extra_args.formatted_prompt"},
		{"mm_hashes", protocol.Aggregated, extra(`"mm_hashes":[]`), "extra_args.mm_hashes"},
		{"dynamo_mm_routing_hashes", protocol.Aggregated, extra(`"dynamo_mm_routing_hashes":["a"]`), "dynamo_mm_routing_hashes"},
		{"nvext no object", protocol.Aggregated, extra(`"nvext":null`), `unknown key "nvext"`},
		{"nvext left-over", protocol.Aggregated, extra(`"nvext":{"odd":1}`), `unknown key "nvext"`},
		{"nvext salt without routing", protocol.Aggregated, extra(`"nvext":{"cache_salt":"a"}`), "nvext.cache_salt"},
		{"nvext salt differs", protocol.Aggregated, routing(`"cache_salt":"b"`) + "," + extra(`"nvext":{"cache_salt":"a"}`), "nvext.cache_salt"},
		{"nvext salt empty", protocol.Aggregated, routing(`"cache_salt":""`) + "," + extra(`"nvext":{"cache_salt":""}`), "nvext.cache_salt"},
		{"nvext token_in", protocol.Aggregated, extra(`"nvext":{"token_in":false}`), "token_in"},
		{"nvext extra_fields", protocol.Aggregated, extra(`"nvext":{"extra_fields":["timing","engine_data"]}`), "extra_fields[1]"},
		{"nvext extra_fields no list", protocol.Aggregated, extra(`"nvext":{"extra_fields":"timing"}`), "extra_fields must be a list"},
		{"legacy no object", protocol.Aggregated, extra(`"vllm_tito":null`), "vllm_tito must be an object"},
		{"legacy without sampling_params", protocol.Prefill, extra(`"vllm_tito":{}`), "sampling_params must be an object"},
		{"legacy unknown key", protocol.Aggregated, extra(`"vllm_tito":{"sampling_params":{},"odd":null}`), "vllm_tito.odd"},
		{"legacy key only when null", protocol.Aggregated, extra(`"vllm_tito":{"sampling_params":{},"token_offsets":[]}`), "vllm_tito.token_offsets"},
		{"legacy unknown parameter", protocol.Aggregated, legacy(`"stop":null`), "sampling_params.stop"},
		{"legacy return_token_ids false", protocol.Aggregated, legacy(`"return_token_ids":false`), "return_token_ids"},
		{"legacy wrong kind", protocol.Aggregated, legacy(`"max_tokens":"5"`), "sampling_params.max_tokens"},
		{"legacy negative count", protocol.Prefill, legacy(`"logprobs":-2`), "sampling_params.logprobs"},
		{"legacy stop ids", protocol.Aggregated, legacy(`"stop_token_ids":[1,-1]`), "sampling_params.stop_token_ids"},
		{"legacy top_k is checked like top_k", protocol.Aggregated, legacy(`"top_k":-1`), "top_k -1"},
		{"legacy temperature of the wrong kind", protocol.Aggregated, legacy(`"temperature":[]`), "sampling_params.temperature"},
		{"adapter", protocol.Aggregated, routing(`"lora_name":"tuned"`), `adapter "tuned"`},
		{"encode role", protocol.Encode, ``, "encode role"},
	} {
		t.Run(row.name, func(t *testing.T) {
			call, refusal := engine(row.role).Convert("id", request(t, row.members))
			if refusal == nil {
				t.Fatalf("accepted: %v", call.Request)
			}
			if refusal.Err.Kind != protocol.ErrorBackendInvalidArgument || refusal.Handoff != FaultNone {
				t.Errorf("kind %v, hand-off fault %q", refusal.Err.Kind, refusal.Handoff)
			}
			if !strings.Contains(refusal.Err.Message, row.words) || refusal.Err.Public != refusal.Err.Message {
				t.Errorf("message %q, public %q; want %q in both", refusal.Err.Message, refusal.Err.Public, row.words)
			}
		})
	}
}

// TestCapableEngineRefusals: an engine that could do it gets another sentence, since the operator can do nothing about it.
func TestCapableEngineRefusals(t *testing.T) {
	e := engine(protocol.Aggregated)
	e.LoRA = true
	_, refusal := e.Convert("id", request(t, routing(`"lora_name":"tuned"`)))
	if refusal == nil || !strings.Contains(refusal.Err.Error(), "this version does not support") {
		t.Error(refusal)
	}
}

// TestStockFrontendRequest: every field that a stock frontend always writes passes, null or not.
func TestStockFrontendRequest(t *testing.T) {
	body := `"model":"m","token_ids":[3,89],"stop_conditions":{"max_tokens":4,"stop":null,"stop_token_ids":null,"stop_token_ids_visible":null,
	"stop_token_ids_hidden":[1],"min_tokens":null,"ignore_eos":null,"max_thinking_tokens":null},"sampling_options":{"n":null,"best_of":null,
	"presence_penalty":null,"frequency_penalty":null,"repetition_penalty":null,"temperature":null,"top_p":null,"top_k":null,"min_p":null,
	"use_beam_search":null,"length_penalty":null,"seed":null,"include_stop_str_in_output":null,"guided_decoding":null},
	"output_options":{"logprobs":2,"prompt_logprobs":null,"skip_special_tokens":null,"formatted_prompt":null,"return_tokens_as_token_ids":null},
	"eos_token_ids":[1],"mdc_sum":"0606","annotations":[],"routing":{},"router_config_override":null`
	got := convert(t, engine(protocol.Aggregated), body).Request
	if got.GetStopping().GetMaxNewTokens() != 4 || !slices.Equal(got.GetStopping().GetStopTokenIds(), []uint32{1}) {
		t.Errorf("stopping %v", got.GetStopping())
	}
	if got.GetTemperature() != 1 || !got.GetResponse().GetOutputLogprobs() || got.GetResponse().SkipSpecialTokens != nil {
		t.Errorf("temperature %v, response %v", got.GetTemperature(), got.GetResponse())
	}
}

func TestShorten(t *testing.T) {
	r := convert(t, engine(protocol.Aggregated), stop(`"max_tokens":50,"min_tokens":20,"stop":["x"]`)).Request
	Shorten(r)
	if s := r.GetStopping(); s.GetMaxNewTokens() != 1 || s.GetMinNewTokens() != 0 || len(s.GetStopStrings()) != 1 {
		t.Errorf("stopping %v", s)
	}
	bare := &pb.GenerateRequest{}
	if Shorten(bare); bare.GetStopping().GetMaxNewTokens() != 1 {
		t.Errorf("stopping %v", bare.GetStopping())
	}
}
