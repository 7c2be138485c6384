package vllm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// TestDescriptors pins what other people's engines and clients depend on: package, full method names, field names, numbers,
// types, presence. The tables were written from the wire facts of vLLM, not from the code that they check: a field may be
// added, none may change.
func TestDescriptors(t *testing.T) {
	for _, row := range []struct {
		file protoreflect.FileDescriptor
		want string
	}{
		{File_vllm_inference_proto, inferenceWire},
		{File_vllm_control_proto, controlWire},
	} {
		got := "\n" + strings.Join(describe(row.file), "\n") + "\n"
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s:\n%s", row.file.Path(), diff)
		}
	}
}

// TestMethodNames: the names that travel in the :path of a call.
func TestMethodNames(t *testing.T) {
	for got, want := range map[string]string{
		Inference_Generate_FullMethodName:        "/vllm.Inference/Generate",
		Inference_GenerateStream_FullMethodName:  "/vllm.Inference/GenerateStream",
		Control_GetServerInfo_FullMethodName:     "/vllm.Control/GetServerInfo",
		Control_GetModelInfo_FullMethodName:      "/vllm.Control/GetModelInfo",
		Control_Abort_FullMethodName:             "/vllm.Control/Abort",
		Control_GetKvEventSources_FullMethodName: "/vllm.Control/GetKvEventSources",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// describe lists a file, one line a method, field and enum value.
func describe(file protoreflect.FileDescriptor) []string {
	var out []string
	for i := range file.Services().Len() {
		methods := file.Services().Get(i).Methods()
		for j := range methods.Len() {
			m := methods.Get(j)
			answer := string(m.Output().Name())
			if m.IsStreamingServer() {
				answer = "stream " + answer
			}
			if m.IsStreamingClient() {
				answer += ", client streams"
			}
			out = append(out, fmt.Sprintf("%s(%s) %s", m.FullName(), m.Input().Name(), answer))
		}
	}
	out = append(out, describeEnums(file.Enums())...)
	return append(out, describeMessages(file.Messages())...)
}

func describeEnums(enums protoreflect.EnumDescriptors) []string {
	var out []string
	for i := range enums.Len() {
		values := enums.Get(i).Values()
		for j := range values.Len() {
			out = append(out, fmt.Sprintf("%s: %d %s", enums.Get(i).FullName(), values.Get(j).Number(), values.Get(j).Name()))
		}
	}
	return out
}

func describeMessages(messages protoreflect.MessageDescriptors) []string {
	var out []string
	for i := range messages.Len() {
		m := messages.Get(i)
		if m.IsMapEntry() {
			continue
		}
		if m.Fields().Len() == 0 {
			out = append(out, string(m.FullName()))
		}
		for j := range m.Fields().Len() {
			out = append(out, fmt.Sprintf("%s: %s", m.FullName(), describeField(m.Fields().Get(j))))
		}
		out = append(out, describeEnums(m.Enums())...)
		out = append(out, describeMessages(m.Messages())...)
	}
	return out
}

// describeField gives number, name, cardinality, type and the oneof, which is what the wire and a reader's presence depend on.
func describeField(f protoreflect.FieldDescriptor) string {
	kind := f.Kind().String()
	switch {
	case f.IsMap():
		kind = fmt.Sprintf("map<%s,%s>", f.MapKey().Kind(), f.MapValue().Kind())
	case f.Message() != nil:
		kind = string(f.Message().FullName())
	case f.Enum() != nil:
		kind = string(f.Enum().FullName())
	}
	out := fmt.Sprintf("%d %s", f.Number(), f.Name())
	switch {
	case f.IsList():
		out += " repeated"
	case f.HasOptionalKeyword():
		out += " optional"
	}
	out += " " + kind
	if oneof := f.ContainingOneof(); oneof != nil && !oneof.IsSynthetic() {
		out += " of " + string(oneof.Name())
	}
	return out
}

const inferenceWire = `
vllm.Inference.Generate(GenerateRequest) GenerateResponse
vllm.Inference.GenerateStream(GenerateRequest) stream GenerateResponse
vllm.Modality: 0 MODALITY_UNSPECIFIED
vllm.Modality: 1 MODALITY_IMAGE
vllm.Modality: 2 MODALITY_VIDEO
vllm.Modality: 3 MODALITY_AUDIO
vllm.GenerateRequest: 1 request_id string
vllm.GenerateRequest: 2 model string
vllm.GenerateRequest: 3 text string of prompt
vllm.GenerateRequest: 4 token_ids vllm.TokenIds of prompt
vllm.GenerateRequest: 5 temperature optional float
vllm.GenerateRequest: 6 sampling vllm.RandomSampling
vllm.GenerateRequest: 7 decoding vllm.DecodingParameters
vllm.GenerateRequest: 8 stopping vllm.StoppingCriteria
vllm.GenerateRequest: 9 response vllm.ResponseOptions
vllm.GenerateRequest: 10 kv vllm.KVCacheParameters
vllm.GenerateRequest: 11 truncate_prompt_tokens uint32
vllm.GenerateRequest: 12 priority int32
vllm.GenerateRequest: 13 session_id optional string
vllm.GenerateRequest: 14 media repeated vllm.MediaItem
vllm.GenerateRequest: 15 lora_name string
vllm.GenerateRequest: 16 watermarking optional bool
vllm.GenerateRequest: 17 kv_hints vllm.KVHintsEnvelope
vllm.GenerateRequest: 18 engine_reasoning_gate vllm.EngineReasoningGate
vllm.TokenIds: 1 ids repeated uint32
vllm.RandomSampling: 1 num_sequences uint32
vllm.RandomSampling: 2 top_k uint32
vllm.RandomSampling: 3 top_p float
vllm.RandomSampling: 4 min_p float
vllm.RandomSampling: 5 seed optional int64
vllm.DecodingParameters: 1 presence_penalty float
vllm.DecodingParameters: 2 frequency_penalty float
vllm.DecodingParameters: 3 repetition_penalty float
vllm.DecodingParameters: 4 logit_bias map<uint32,float>
vllm.DecodingParameters: 5 allowed_token_ids repeated uint32
vllm.DecodingParameters: 6 json string of structured_output
vllm.DecodingParameters: 7 regex string of structured_output
vllm.DecodingParameters: 8 choice vllm.StringChoices of structured_output
vllm.DecodingParameters: 9 grammar string of structured_output
vllm.DecodingParameters: 10 json_object bool of structured_output
vllm.DecodingParameters: 11 structural_tag string of structured_output
vllm.DecodingParameters: 12 bad_words_token_ids repeated vllm.TokenIds
vllm.StringChoices: 1 choices repeated string
vllm.StoppingCriteria: 1 max_new_tokens uint32
vllm.StoppingCriteria: 2 min_new_tokens uint32
vllm.StoppingCriteria: 3 stop_token_ids repeated uint32
vllm.StoppingCriteria: 4 stop_strings repeated string
vllm.StoppingCriteria: 5 include_stop_strings bool
vllm.StoppingCriteria: 6 ignore_eos bool
vllm.StoppingCriteria: 7 thinking_token_budget optional int64
vllm.ResponseOptions: 1 prompt_token_ids bool
vllm.ResponseOptions: 2 prompt_logprobs bool
vllm.ResponseOptions: 3 prompt_candidates optional vllm.CandidateTokens
vllm.ResponseOptions: 4 output_text optional bool
vllm.ResponseOptions: 5 output_token_ids bool
vllm.ResponseOptions: 6 output_logprobs bool
vllm.ResponseOptions: 7 output_candidates optional vllm.CandidateTokens
vllm.ResponseOptions: 8 skip_special_tokens optional bool
vllm.KVCacheParameters: 1 bypass_prefix_cache bool
vllm.KVCacheParameters: 2 cache_salt string
vllm.KVCacheParameters: 3 kv_transfer_params google.protobuf.Struct
vllm.KVCacheParameters: 4 ec_transfer_params google.protobuf.Struct
vllm.CandidateTokens: 1 top_n uint32 of select
vllm.CandidateTokens: 2 token_ids vllm.TokenIds of select
vllm.CandidateTokens: 3 all bool of select
vllm.MediaItem: 1 modality vllm.Modality
vllm.MediaItem: 2 url string of source
vllm.MediaItem: 3 data_uri string of source
vllm.MediaItem: 4 raw_bytes bytes of source
vllm.MediaItem: 7 features vllm.PreprocessedMediaFeatures of source
vllm.MediaItem: 5 mime_type string
vllm.MediaItem: 6 uuid string
vllm.PreprocessedMediaFeatures: 1 kwargs optional bytes
vllm.PreprocessedMediaFeatures: 2 identifier string
vllm.PreprocessedMediaFeatures: 3 offset uint64
vllm.PreprocessedMediaFeatures: 4 length uint64
vllm.PreprocessedMediaFeatures: 5 mm_hash optional string
vllm.PreprocessedMediaFeatures: 6 is_embed repeated bool
vllm.KVHintsEnvelope: 1 protocol_version string
vllm.KVHintsEnvelope: 2 message_id string
vllm.KVHintsEnvelope: 3 actions repeated vllm.KVHintAction
vllm.KVHintAction: 1 action_id string
vllm.KVHintAction: 2 action_type string
vllm.KVHintAction: 3 action_version string
vllm.KVHintAction: 4 payload google.protobuf.Struct
vllm.EngineReasoningGate: 1 reasoning_ended optional bool
vllm.EngineReasoningGate: 2 chat_template_kwargs google.protobuf.Struct
vllm.GenerateResponse: 1 prompt_info optional vllm.PromptInfo
vllm.GenerateResponse: 2 outputs vllm.SequenceOutput
vllm.PromptInfo: 1 num_prompt_tokens uint32
vllm.PromptInfo: 2 token_ids repeated uint32
vllm.PromptInfo: 3 logprobs repeated float
vllm.PromptInfo: 4 ranks repeated uint32
vllm.PromptInfo: 5 candidate_tokens repeated vllm.CandidateTokenInfo
vllm.SequenceOutput: 1 index uint32
vllm.SequenceOutput: 2 text string
vllm.SequenceOutput: 3 num_tokens uint32
vllm.SequenceOutput: 4 token_ids repeated uint32
vllm.SequenceOutput: 5 logprobs repeated float
vllm.SequenceOutput: 6 ranks repeated uint32
vllm.SequenceOutput: 7 candidate_tokens repeated vllm.CandidateTokenInfo
vllm.SequenceOutput: 8 finish_info optional vllm.FinishInfo
vllm.CandidateTokenInfo: 1 tokens repeated vllm.TokenInfo
vllm.TokenInfo: 1 id uint32
vllm.TokenInfo: 2 logprob float
vllm.TokenInfo: 3 rank uint32
vllm.FinishInfo: 1 num_output_tokens uint32
vllm.FinishInfo: 2 finish_reason vllm.FinishInfo.FinishReason
vllm.FinishInfo: 3 stop_token_id uint32 of stop_reason
vllm.FinishInfo: 4 eos_token_id uint32 of stop_reason
vllm.FinishInfo: 5 stop_string string of stop_reason
vllm.FinishInfo: 6 kv_transfer_params google.protobuf.Struct
vllm.FinishInfo: 8 ec_transfer_params google.protobuf.Struct
vllm.FinishInfo: 9 num_cached_tokens optional uint32
vllm.FinishInfo.FinishReason: 0 NOT_FINISHED
vllm.FinishInfo.FinishReason: 1 LENGTH
vllm.FinishInfo.FinishReason: 2 STOP
vllm.FinishInfo.FinishReason: 3 ABORTED
`

const controlWire = `
vllm.Control.GetServerInfo(GetServerInfoRequest) ServerInfo
vllm.Control.GetModelInfo(GetModelInfoRequest) ModelInfo
vllm.Control.Abort(AbortRequest) AbortResponse
vllm.Control.GetKvEventSources(GetKvEventSourcesRequest) GetKvEventSourcesResponse
vllm.Control.LoadLora(LoadLoraRequest) LoadLoraResponse
vllm.Control.UnloadLora(UnloadLoraRequest) UnloadLoraResponse
vllm.Control.ListLoras(ListLorasRequest) ListLorasResponse
vllm.Control.PauseGeneration(PauseGenerationRequest) PauseGenerationResponse
vllm.Control.ResumeGeneration(ResumeGenerationRequest) ResumeGenerationResponse
vllm.Control.IsPaused(IsPausedRequest) IsPausedResponse
vllm.Control.Sleep(SleepRequest) SleepResponse
vllm.Control.WakeUp(WakeUpRequest) WakeUpResponse
vllm.Control.IsSleeping(IsSleepingRequest) IsSleepingResponse
vllm.Control.InitWeightTransferEngine(InitWeightTransferEngineRequest) InitWeightTransferEngineResponse
vllm.Control.StartWeightUpdate(StartWeightUpdateRequest) StartWeightUpdateResponse
vllm.Control.StartDraftWeightUpdate(StartDraftWeightUpdateRequest) StartDraftWeightUpdateResponse
vllm.Control.UpdateWeights(UpdateWeightsRequest) UpdateWeightsResponse
vllm.Control.FinishWeightUpdate(FinishWeightUpdateRequest) FinishWeightUpdateResponse
vllm.Control.UpdateWeightVersion(UpdateWeightVersionRequest) UpdateWeightVersionResponse
vllm.Control.GetWeightVersion(GetWeightVersionRequest) GetWeightVersionResponse
vllm.PauseMode: 0 PAUSE_MODE_UNSPECIFIED
vllm.PauseMode: 1 PAUSE_MODE_ABORT
vllm.PauseMode: 2 PAUSE_MODE_WAIT
vllm.PauseMode: 3 PAUSE_MODE_KEEP
vllm.GetServerInfoRequest
vllm.ServerInfo: 1 engine_version string
vllm.ServerInfo: 2 api_version string
vllm.ServerInfo: 3 instance_id string
vllm.ServerInfo: 4 parallelism vllm.ParallelismInfo
vllm.ServerInfo: 5 max_model_len uint32
vllm.ServerInfo: 6 kv_block_size uint32
vllm.ServerInfo: 7 total_kv_blocks uint64
vllm.ServerInfo: 8 max_running_requests uint64
vllm.ServerInfo: 9 max_batched_tokens uint64
vllm.ServerInfo: 10 max_loras uint32
vllm.ServerInfo: 11 rl vllm.RlCapabilities
vllm.ServerInfo: 14 effective_attention_block_size optional uint64
vllm.RlCapabilities: 1 weight_transfer_enabled bool
vllm.RlCapabilities: 2 weight_transfer_backend string
vllm.RlCapabilities: 3 sleep_mode_enabled bool
vllm.RlCapabilities: 4 draft_weight_updates_enabled bool
vllm.ParallelismInfo: 1 tensor_parallel_size uint32
vllm.ParallelismInfo: 2 pipeline_parallel_size uint32
vllm.ParallelismInfo: 3 data_parallel_size uint32
vllm.ParallelismInfo: 4 data_parallel_rank uint32
vllm.ParallelismInfo: 5 decode_context_parallel_size uint32
vllm.ParallelismInfo: 6 world_size uint64
vllm.ParallelismInfo: 7 data_parallel_size_local uint32
vllm.GetModelInfoRequest
vllm.ModelInfo: 1 model_id string
vllm.ModelInfo: 2 served_model_name string
vllm.ModelInfo: 3 served_model_aliases repeated string
vllm.ModelInfo: 20 supports_text_input bool
vllm.ModelInfo: 21 supports_token_ids_input bool
vllm.ModelInfo: 22 supports_lora bool
vllm.ModelInfo: 23 supports_multimodal bool
vllm.ModelInfo: 24 reasoning_parser string
vllm.ModelInfo: 25 tool_call_parser string
vllm.AbortRequest: 1 request_ids repeated string
vllm.AbortResponse
vllm.GetKvEventSourcesRequest
vllm.GetKvEventSourcesResponse: 1 sources repeated vllm.KvEventSource
vllm.KvEventSource: 1 transport string
vllm.KvEventSource: 2 endpoint string
vllm.KvEventSource: 3 topic string
vllm.KvEventSource: 4 replay_endpoint string
vllm.KvEventSource: 5 data_parallel_rank optional uint32
vllm.KvEventSource: 6 encoding string
vllm.KvEventSource: 7 schema_version uint32
vllm.KvEventSource: 8 buffer_steps uint64
vllm.KvEventSource: 9 hwm uint64
vllm.KvEventSource: 10 max_queue_size uint64
vllm.LoraAdapter: 1 lora_id int64
vllm.LoraAdapter: 2 lora_name string
vllm.LoraAdapter: 3 source_path string
vllm.LoadLoraRequest: 1 lora_name string
vllm.LoadLoraRequest: 2 source_path string
vllm.LoadLoraResponse: 1 adapter vllm.LoraAdapter
vllm.UnloadLoraRequest: 1 lora_name string
vllm.UnloadLoraResponse: 1 adapter vllm.LoraAdapter
vllm.ListLorasRequest
vllm.ListLorasResponse: 1 adapters repeated vllm.LoraAdapter
vllm.PauseGenerationRequest: 1 mode vllm.PauseMode
vllm.PauseGenerationRequest: 2 clear_cache optional bool
vllm.PauseGenerationResponse
vllm.ResumeGenerationRequest
vllm.ResumeGenerationResponse
vllm.IsPausedRequest
vllm.IsPausedResponse: 1 paused bool
vllm.SleepRequest: 1 level optional uint32
vllm.SleepRequest: 2 mode vllm.PauseMode
vllm.SleepResponse
vllm.WakeUpRequest: 1 tags repeated string
vllm.WakeUpResponse
vllm.IsSleepingRequest
vllm.IsSleepingResponse: 1 sleeping bool
vllm.InitWeightTransferEngineRequest: 1 init_info_json bytes
vllm.InitWeightTransferEngineResponse
vllm.StartWeightUpdateRequest
vllm.StartWeightUpdateResponse
vllm.StartDraftWeightUpdateRequest
vllm.StartDraftWeightUpdateResponse
vllm.UpdateWeightsRequest: 1 update_info_json bytes
vllm.UpdateWeightsResponse
vllm.FinishWeightUpdateRequest: 1 weight_version optional string
vllm.FinishWeightUpdateResponse
vllm.UpdateWeightVersionRequest: 1 weight_version string
vllm.UpdateWeightVersionResponse
vllm.GetWeightVersionRequest
vllm.GetWeightVersionResponse: 1 weight_version string
`
