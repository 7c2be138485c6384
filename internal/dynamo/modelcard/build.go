package modelcard

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"remora/internal/dynamo/protocol"
)

// defaultBlockSize stands in the card when the engine does not say how large its KV blocks are.
const defaultBlockSize = 16

// maxDownload is the largest file that a frontend fetches.
const maxDownload = 1 << 30

// Engine is what the engine says of itself; a zero means that it does not say.
type Engine struct {
	ModelID               string // a local folder or a hub id
	ServedName            string
	Aliases               []string
	MaxModelLen           uint32
	KVBlockSize           uint32 // tokens
	BlocksPerRank         uint64 // KV blocks
	MaxRunningRequests    uint64
	MaxBatchedTokens      uint64
	DataParallelStartRank uint32
	DataParallelSize      uint32 // the ranks behind this worker; 0 is 1
	MaxLoras              uint32 // 0 without LoRA
}

// Config is everything that a card is built from.
type Config struct {
	Dir                            string // the model's folder, from Resolve
	Engine                         Engine
	Role                           protocol.Role
	EndpointTypes                  EndpointTypes // of no effect in the roles prefill and encode
	RouteToEncoder                 bool          // aggregated only
	CustomTemplate                 string        // path of a Jinja template that replaces the model's own; empty: none
	ToolCallParser                 string        // empty: none
	ReasoningParser                string        // empty: none
	ExcludeToolsWhenToolChoiceNone bool
	StableRoutingID                string   // a name of the worker that outlives its instance id; empty: none
	Hosting                        *Hosting // nil: the card names local paths, and frontends must have the same
}

// Card is a finished model deployment card.
type Card struct {
	json []byte

	DisplayName   string
	Slug          string
	KVBlockSize   uint32
	ContextLength uint32 // 0: nobody says
	// Files must be served over HTTP as long as the card is published; empty without Hosting.
	Files []HostedFile
	// Warnings are for the log: the card is good, but something about the model will not work as one may expect.
	Warnings []string
}

// JSON is the card's text. It must not be changed.
func (c Card) JSON() []byte { return c.json }

// Build reads the model's folder and makes the card.
func Build(c Config) (Card, error) {
	if strings.TrimSpace(c.Engine.ServedName) == "" {
		return Card{}, fmt.Errorf("%w: the engine serves its model under no name", ErrConfig)
	}
	if c.EndpointTypes == 0 && (c.Role == protocol.Aggregated || c.Role == protocol.Decode) {
		return Card{}, fmt.Errorf("%w: no endpoint type given", ErrConfig)
	}
	b := builder{Config: c}
	b.describe()
	for _, step := range []func() error{b.contextLength, b.modelFiles, b.chatTemplate, b.host} {
		if err := step(); err != nil {
			return Card{}, err
		}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(&b.doc); err != nil {
		return Card{}, fmt.Errorf("encode model card: %w", err)
	}
	return Card{
		json: bytes.TrimSuffix(text.Bytes(), []byte("\n")), DisplayName: b.doc.DisplayName, Slug: b.doc.Slug,
		KVBlockSize: b.doc.KVCacheBlockSize, ContextLength: b.doc.ContextLength, Files: b.hosted, Warnings: b.warnings,
	}, nil
}

type builder struct {
	Config

	doc      document
	hosted   []HostedFile
	warnings []string
}

func (b *builder) warnf(format string, args ...any) {
	b.warnings = append(b.warnings, fmt.Sprintf(format, args...))
}

// describe fills in what needs no file.
func (b *builder) describe() {
	e := b.Engine
	b.doc = document{
		DisplayName: e.ServedName,
		Slug:        Slug(e.ServedName),
		SourcePath:  e.ModelID,
		ModelType:   modelType(b.Role, b.EndpointTypes),
		ModelInput:  "Tokens",
		WorkerType:  b.Role.String(),
		Needs:       needs(b.Role, b.RouteToEncoder),
		Aliases:     e.Aliases,

		KVCacheBlockSize: cmp.Or(e.KVBlockSize, defaultBlockSize),
		RuntimeConfig: runtimeConfig{
			ContextLength:          e.MaxModelLen,
			TotalKVBlocks:          b.blocksPerRank(),
			MaxNumSeqs:             known(e.MaxRunningRequests),
			MaxNumBatchedTokens:    known(e.MaxBatchedTokens),
			ToolCallParser:         given(b.ToolCallParser),
			ReasoningParser:        given(b.ReasoningParser),
			ToolCallArgumentFormat: "json_string",
			StructuralTagMode:      "off",
			StructuralTagScope:     "auto",
			StructuralTagSchema:    "auto",
			ExcludeTools:           b.ExcludeToolsWhenToolChoiceNone,
			DPStartRank:            e.DataParallelStartRank,
			DPSize:                 max(e.DataParallelSize, 1),
			EnableLocalIndexer:     b.Role != protocol.Encode,
			RuntimeData:            map[string]bool{"lora_requires_registration": true, "vllm_inference_v1_generate": true},
			StableRoutingID:        b.StableRoutingID,
			MaxGPULoraCount:        e.MaxLoras,
		},
	}
	if b.RouteToEncoder {
		b.doc.RuntimeConfig.RuntimeData["encoder_result_handoff"] = true
	}
}

// blocksPerRank is what routers count with. An encode worker has no cache to route by.
func (b *builder) blocksPerRank() *uint64 {
	if b.Role == protocol.Encode {
		return nil
	}
	return known(b.Engine.BlocksPerRank)
}

func (b *builder) contextLength() error {
	limit, err := contextLimit(b.Dir)
	if err != nil {
		return err
	}
	b.doc.ArchitecturalLimit = limit
	b.doc.ContextLength = b.Engine.MaxModelLen
	if b.doc.ContextLength == 0 {
		b.doc.ContextLength = limit
	}
	return nil
}

// modelFiles checksums what the frontend needs to tokenize.
func (b *builder) modelFiles() error {
	config, err := check(filepath.Join(b.Dir, configFile))
	if err != nil {
		return err
	}
	b.doc.ModelInfo = modelInfo{HFConfig: config}
	huggingFace, tiktoken, err := tokenizer(b.Dir)
	if err != nil {
		return err
	}
	if huggingFace != nil || tiktoken != nil {
		b.doc.Tokenizer = &tokenizerKind{HuggingFace: huggingFace, Tiktoken: tiktoken}
	} else if b.servesText() {
		return fmt.Errorf("%w: %s has no tokenizer: neither %s nor a tiktoken file", ErrFolder, b.Dir, tokenizerFile)
	}
	tokenizerConfig, err := checkOptional(filepath.Join(b.Dir, tokenizerConfigFile))
	if err != nil {
		return err
	}
	if tokenizerConfig != nil {
		b.doc.PromptFormatter = &formatter{TokenizerConfig: tokenizerConfig}
	} else if b.servesText() {
		b.warnf("%s has no %s; the stock frontend does not list such a model", b.Dir, tokenizerConfigFile)
	}
	generationConfig, err := checkOptional(filepath.Join(b.Dir, generationFile))
	if err != nil {
		return err
	}
	if generationConfig != nil {
		b.doc.GenConfig = &generation{HFGeneration: generationConfig}
	}
	return nil
}

// servesText: the frontend makes prompts for this worker, so it needs to tokenize.
func (b *builder) servesText() bool {
	return servedTypes(b.Role, b.EndpointTypes)&(Chat|Completions) != 0
}

// host moves the card's files to URLs of our own.
func (b *builder) host() error {
	if b.Hosting == nil {
		return nil
	}
	files := b.doc.files()
	var taken []string
	for _, file := range files {
		name := filepath.Base(file.Path)
		if slices.Contains(taken, name) {
			return fmt.Errorf("%w: the custom template %s has the name of a model file; rename it", ErrConfig, file.Path)
		}
		taken = append(taken, name)
	}
	extra, err := extraFiles(b.Dir, taken)
	if err != nil {
		return err
	}
	b.doc.ExtraFiles = extra
	for _, file := range slices.Concat(files, extra) {
		if file.Size > maxDownload {
			b.warnf("%s has %d bytes; frontends refuse files above %d, and with it the model", file.Path, file.Size, maxDownload)
		}
		b.hosted = append(b.hosted, b.Hosting.move(b.doc.Slug, file))
	}
	return nil
}

// chatTemplate finds the template that turns a chat into a prompt.
func (b *builder) chatTemplate() error {
	found, err := b.findTemplate()
	if err != nil {
		return err
	}
	b.doc.ChatTemplateFile = found
	if found == nil && servedTypes(b.Role, b.EndpointTypes)&Chat != 0 && !b.hasInlineTemplate() {
		b.warnf("%s has no chat template: the stock frontend never lists a chat model without one, not even for completions "+
			"(except families that it has a formatter for, such as DeepSeek); set --endpoint-types completions, "+
			"or give a template with --custom-jinja-template", b.Dir)
	}
	return nil
}

func (b *builder) findTemplate() (*templateFile, error) {
	if b.CustomTemplate != "" {
		path, err := filepath.Abs(b.CustomTemplate)
		if err != nil {
			return nil, fmt.Errorf("%w: custom template: %w", ErrConfig, err)
		}
		file, err := check(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: custom template %s does not exist (see --custom-jinja-template)", ErrConfig, path)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: custom template (see --custom-jinja-template): %w", ErrConfig, err)
		}
		return &templateFile{Jinja: &template{IsCustom: true, File: file}}, nil
	}
	file, err := checkOptional(filepath.Join(b.Dir, templateJinjaFile))
	if err != nil {
		return nil, err
	}
	if file != nil {
		return &templateFile{Jinja: &template{File: file}}, nil
	}
	file, err = checkOptional(filepath.Join(b.Dir, templateJSONFile))
	if err != nil {
		return nil, err
	}
	if file != nil {
		return &templateFile{JSON: &template{File: file}}, nil
	}
	return nil, nil //nolint:nilnil // absent is a good answer
}

// hasInlineTemplate looks for the older place of the template: a text, or a list of named texts, in tokenizer_config.json.
func (b *builder) hasInlineTemplate() bool {
	config, err := readObject(filepath.Join(b.Dir, tokenizerConfigFile))
	if err != nil {
		return false
	}
	switch inline := config["chat_template"]; string(inline) {
	case "", "null", `""`, "[]":
		return false
	default:
		return true
	}
}

// known and given turn "does not say" into null.
func known(n uint64) *uint64 {
	if n == 0 {
		return nil
	}
	return &n
}

func given(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
