package modelcard

import "encoding/json"

// document is the card on the wire, its keys in the order of the Rust sidecar. migration_limit and the media fields are
// always what they are here.
type document struct {
	DisplayName        string          `json:"display_name"`
	Slug               string          `json:"slug"`
	SourcePath         string          `json:"source_path"`
	ModelInfo          modelInfo       `json:"model_info"`
	Tokenizer          *tokenizerKind  `json:"tokenizer"` // null if there is none
	PromptFormatter    *formatter      `json:"prompt_formatter,omitempty"`
	ChatTemplateFile   *templateFile   `json:"chat_template_file,omitempty"`
	GenConfig          *generation     `json:"gen_config,omitempty"`
	ArchitecturalLimit uint32          `json:"architectural_max_context_length,omitempty"`
	ContextLength      uint32          `json:"context_length"`
	KVCacheBlockSize   uint32          `json:"kv_cache_block_size"`
	MigrationLimit     uint32          `json:"migration_limit"`
	ModelType          string          `json:"model_type"`
	ModelInput         string          `json:"model_input"`
	WorkerType         string          `json:"worker_type"`
	Needs              [][]string      `json:"needs"`
	Aliases            []string        `json:"aliases,omitempty"`
	RuntimeConfig      runtimeConfig   `json:"runtime_config"`
	MediaDecoder       json.RawMessage `json:"media_decoder"` // null
	MediaFetcher       json.RawMessage `json:"media_fetcher"` // null
	ExtraFiles         []*checkedFile  `json:"extra_files,omitempty"`
}

type modelInfo struct {
	HFConfig *checkedFile `json:"hf_config_json"`
}

type tokenizerKind struct {
	HuggingFace *checkedFile `json:"hf_tokenizer_json,omitempty"`
	Tiktoken    *checkedFile `json:"tik_token_model,omitempty"`
}

type formatter struct {
	TokenizerConfig *checkedFile `json:"hf_tokenizer_config_json"`
}

type templateFile struct {
	Jinja *template `json:"hf_chat_template,omitempty"`
	JSON  *template `json:"hf_chat_template_json,omitempty"`
}

type template struct {
	IsCustom bool         `json:"is_custom"`
	File     *checkedFile `json:"file"`
}

type generation struct {
	HFGeneration *checkedFile `json:"hf_generation_config_json"`
}

type runtimeConfig struct {
	ContextLength          uint32          `json:"context_length,omitempty"` // only what the engine says
	TotalKVBlocks          *uint64         `json:"total_kv_blocks"`
	MaxNumSeqs             *uint64         `json:"max_num_seqs"`
	MaxNumBatchedTokens    *uint64         `json:"max_num_batched_tokens"`
	ToolCallParser         *string         `json:"tool_call_parser"`
	ReasoningParser        *string         `json:"reasoning_parser"`
	ToolCallArgumentFormat string          `json:"tool_call_arguments_format"`
	StructuralTagMode      string          `json:"structural_tag_mode"`
	StructuralTagScope     string          `json:"structural_tag_scope"`
	StructuralTagSchema    string          `json:"structural_tag_schema"`
	ExcludeTools           bool            `json:"exclude_tools_when_tool_choice_none"`
	DPStartRank            uint32          `json:"data_parallel_start_rank"`
	DPSize                 uint32          `json:"data_parallel_size"`
	EnableLocalIndexer     bool            `json:"enable_local_indexer"`
	RuntimeData            map[string]bool `json:"runtime_data"`
	EnableEagle            bool            `json:"enable_eagle"`
	StableRoutingID        string          `json:"stable_routing_id,omitempty"`
	MaxGPULoraCount        uint32          `json:"max_gpu_lora_count,omitempty"`
}

// files lists the card's files in the order of the card, without the extra ones.
func (d *document) files() []*checkedFile {
	files := []*checkedFile{d.ModelInfo.HFConfig}
	add := func(file *checkedFile) {
		if file != nil {
			files = append(files, file)
		}
	}
	if d.Tokenizer != nil {
		add(d.Tokenizer.HuggingFace)
		add(d.Tokenizer.Tiktoken)
	}
	if d.PromptFormatter != nil {
		add(d.PromptFormatter.TokenizerConfig)
	}
	if t := d.ChatTemplateFile; t != nil {
		if t.Jinja != nil {
			add(t.Jinja.File)
		}
		if t.JSON != nil {
			add(t.JSON.File)
		}
	}
	if d.GenConfig != nil {
		add(d.GenConfig.HFGeneration)
	}
	return files
}
