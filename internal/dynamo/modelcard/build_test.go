package modelcard

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"remora/internal/dynamo/protocol"
)

// recording is a card that the Rust sidecar 1.6.1 published, with all that went into it. @DIR@ and @TEMPLATES@ stand for
// the folders of the model and of the custom template, and the worker hosts its files on 127.0.0.1:9090.
type recording struct {
	About          string            `json:"about"`
	Files          map[string]string `json:"files"`
	Role           string            `json:"role"`
	EndpointTypes  string            `json:"endpoint_types"`
	RouteToEncoder bool              `json:"route_to_encoder"`
	CustomTemplate string            `json:"custom_template"` // its text
	ToolParser     string            `json:"tool_call_parser"`
	ReasonParser   string            `json:"reasoning_parser"`
	ExcludeTools   bool              `json:"exclude_tools"`
	Hosted         *Hosting          `json:"hosted"`
	Engine         recordedEngine    `json:"engine"`
	Card           json.RawMessage   `json:"card"`
}

// recordedEngine is what the engine said before the engine client has made a block size and a number of blocks a rank of it.
type recordedEngine struct {
	Engine

	EffectiveAttentionBlockSize uint32 // goes before KVBlockSize
	TotalKVBlocks               uint64 // over all local ranks
}

func (r recordedEngine) discovered() Engine {
	e := r.Engine
	if r.EffectiveAttentionBlockSize > 0 {
		e.KVBlockSize = r.EffectiveAttentionBlockSize
	}
	if r.TotalKVBlocks > 0 {
		e.BlocksPerRank = max(r.TotalKVBlocks/uint64(max(e.DataParallelSize, 1)), 1)
	}
	return e
}

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// modelDir makes a folder that no link leads to, as Resolve gives it.
func modelDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	writeFiles(t, dir, files)
	return dir
}

func (r recording) config(t *testing.T) (c Config, placeholders *strings.Replacer) {
	t.Helper()
	dir, templates := modelDir(t, r.Files), modelDir(t, nil)
	types, ok := map[string]EndpointTypes{
		"chat,completions": Chat | Completions, "completions": Completions, "embeddings,completions": Embedding | Completions,
		"images,video,AUDIOS,tensor, ,Chat": Images | Videos | Audios | TensorBased | Chat,
	}[r.EndpointTypes]
	if !ok {
		t.Fatalf("endpoint types %q", r.EndpointTypes)
	}
	c = Config{
		Dir: dir, Engine: r.Engine.discovered(), EndpointTypes: types, RouteToEncoder: r.RouteToEncoder, ToolCallParser: r.ToolParser,
		ReasoningParser: r.ReasonParser, ExcludeToolsWhenToolChoiceNone: r.ExcludeTools, Hosting: r.Hosted,
	}
	c.Engine.ModelID = dir
	for role := protocol.Aggregated; ; role++ {
		if role.String() == r.Role {
			c.Role = role
			break
		}
	}
	if c.Hosting != nil {
		c.Hosting.BaseURL = "http://127.0.0.1:9090"
	}
	if r.CustomTemplate != "" {
		c.CustomTemplate = filepath.Join(templates, "my.jinja")
		writeFiles(t, templates, map[string]string{"my.jinja": r.CustomTemplate})
	}
	return c, strings.NewReplacer(dir, "@DIR@", templates, "@TEMPLATES@")
}

func keyOrder(t *testing.T, object json.RawMessage) (keys []string, values map[string]json.RawMessage) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(object))
	if _, err := decoder.Token(); err != nil {
		t.Fatal(err)
	}
	values = map[string]json.RawMessage{}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			t.Fatal(err)
		}
		var value json.RawMessage
		if err = decoder.Decode(&value); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key.(string))
		values[key.(string)] = value
	}
	return keys, values
}

// parse reads a card for comparison: numbers as text, the extra files in the order of their names (Rust lists them as the
// file system does; a frontend sorts them).
func parse(t *testing.T, card []byte) map[string]any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(card))
	decoder.UseNumber()
	var parsed map[string]any
	if err := decoder.Decode(&parsed); err != nil {
		t.Fatal(err)
	}
	if extra, ok := parsed["extra_files"].([]any); ok {
		slices.SortFunc(extra, func(a, b any) int {
			return strings.Compare(a.(map[string]any)["path"].(string), b.(map[string]any)["path"].(string))
		})
	}
	return parsed
}

func TestCardsEqualThoseOfTheRustSidecar(t *testing.T) {
	files, err := filepath.Glob("testdata/rust/*.json")
	if err != nil || len(files) < 20 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			text, readErr := os.ReadFile(file)
			if readErr != nil {
				t.Fatal(readErr)
			}
			var r recording
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatal(err)
			}
			config, placeholders := r.config(t)
			card, buildErr := Build(config)
			if buildErr != nil {
				t.Fatal(buildErr)
			}
			got := []byte(placeholders.Replace(string(card.JSON())))
			if diff := cmp.Diff(parse(t, r.Card), parse(t, got)); diff != "" {
				t.Errorf("%s (-rust +ours):\n%s", r.About, diff)
			}
			wantKeys, wantValues := keyOrder(t, r.Card)
			gotKeys, gotValues := keyOrder(t, got)
			if diff := cmp.Diff(wantKeys, gotKeys); diff != "" {
				t.Errorf("order of keys (-rust +ours):\n%s", diff)
			}
			wantKeys, _ = keyOrder(t, wantValues["runtime_config"])
			gotKeys, _ = keyOrder(t, gotValues["runtime_config"])
			if diff := cmp.Diff(wantKeys, gotKeys); diff != "" {
				t.Errorf("order of runtime_config's keys (-rust +ours):\n%s", diff)
			}
			checkHosted(t, card)
		})
	}
}

// checkHosted: every URL in the card is served, from a file with that checksum, and nothing else is.
func checkHosted(t *testing.T, card Card) {
	t.Helper()
	text := string(card.JSON())
	if hosted := strings.Count(text, `"path":"http://`); hosted != len(card.Files) {
		t.Errorf("the card has %d URLs, %d files are served", hosted, len(card.Files))
	}
	for _, file := range card.Files {
		sum, err := check(file.Path)
		if err != nil {
			t.Error(err)
			continue
		}
		if want := `{"path":"http://127.0.0.1:9090` + file.URLPath + `","checksum":"` + sum.Checksum + `"`; !strings.Contains(text, want) {
			t.Errorf("%s is served, but the card does not say %s", file.Path, want)
		}
	}
}

var plain = map[string]string{
	configFile:          `{"max_position_embeddings":4096}`,
	tokenizerFile:       `{}`,
	tokenizerConfigFile: `{"chat_template":"x"}`,
}

// with gives plain with changes; an empty text removes a file.
func with(pairs ...string) map[string]string {
	files := maps.Clone(plain)
	for i := 0; i < len(pairs); i += 2 {
		files[pairs[i]] = pairs[i+1]
		if pairs[i+1] == "" {
			delete(files, pairs[i])
		}
	}
	return files
}

func configFor(t *testing.T, files map[string]string) Config {
	t.Helper()
	return Config{
		Dir: modelDir(t, files), Engine: Engine{ModelID: "org/m", ServedName: "m"}, EndpointTypes: Chat | Completions,
		ExcludeToolsWhenToolChoiceNone: true,
	}
}

func TestChecksumVector(t *testing.T) {
	file, err := check(filepath.Join(modelDir(t, plain), tokenizerFile))
	if err != nil || file.Size != 2 || file.Checksum != "blake3:6e46dd10defc9b56c29a6ec56b508c21f54c08192194e4df25bf36f0c9c3c279" {
		t.Error(file, err)
	}
}

func TestBuildRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		files  map[string]string
		change func(*Config)
		kind   error
		says   string
	}{
		"no config":             {with(configFile, ""), nil, ErrFolder, "config.json is missing"},
		"Mistral's own layout":  {with(configFile, "", "params.json", "{}"), nil, ErrFolder, "config.json is missing"},
		"broken config":         {with(configFile, `{"a":`), nil, ErrFolder, "config.json is not a JSON object"},
		"config is a list":      {with(configFile, `[]`), nil, ErrFolder, "config.json is not a JSON object"},
		"no tokenizer":          {with(tokenizerFile, ""), nil, ErrFolder, "neither tokenizer.json nor"},
		"two tokenizers":        {with(tokenizerFile, "", "a.tiktoken", "x", "b.tiktoken", "y"), nil, ErrFolder, "a.tiktoken, b.tiktoken"},
		"config is a folder":    {with(configFile, "", configFile+"/x", "y"), nil, ErrFolder, "config.json"},
		"limit is a text":       {with(configFile, `{"max_position_embeddings":"4096"}`), nil, ErrFolder, "max_position_embeddings"},
		"limit is a float":      {with(configFile, `{"max_position_embeddings":4096.0}`), nil, ErrFolder, "max_position_embeddings"},
		"limit is negative":     {with(configFile, `{"max_position_embeddings":-1}`), nil, ErrFolder, "max_position_embeddings"},
		"limit is null":         {with(configFile, `{"max_position_embeddings":null}`), nil, ErrFolder, "max_position_embeddings"},
		"limit is too large":    {with(configFile, `{"max_position_embeddings":4294967296}`), nil, ErrFolder, "max_position_embeddings"},
		"nested limit":          {with(configFile, `{"text_config":{"max_position_embeddings":"x"}}`), nil, ErrFolder, "text_config.max_position_embeddings"},
		"text_config is a text": {with(configFile, `{"text_config":"x"}`), nil, ErrFolder, "text_config"},
		"no such template":      {plain, func(c *Config) { c.CustomTemplate = "/no/such.jinja" }, ErrConfig, "/no/such.jinja does not exist"},
		"template is a folder":  {plain, func(c *Config) { c.CustomTemplate = c.Dir }, ErrConfig, "custom template"},
		"template named like a model file": {with("sub/"+tokenizerFile, "x"), func(c *Config) {
			c.CustomTemplate, c.Hosting = filepath.Join(c.Dir, "sub", tokenizerFile), &Hosting{BaseURL: "http://h:1"}
		}, ErrConfig, "rename it"},
		"no name":        {plain, func(c *Config) { c.Engine.ServedName = " " }, ErrConfig, "no name"},
		"no types":       {plain, func(c *Config) { c.EndpointTypes = 0 }, ErrConfig, "endpoint type"},
		"no such folder": {plain, func(c *Config) { c.Dir = "/no/such" }, ErrFolder, "/no/such/config.json is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			config := configFor(t, c.files)
			if c.change != nil {
				c.change(&config)
			}
			_, err := Build(config)
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want one that says %q", err, c.says)
			}
		})
	}
}

func TestBuildWarns(t *testing.T) {
	for name, c := range map[string]struct {
		files  map[string]string
		change func(*Config)
		says   string // empty: no warning
	}{
		"all there":               {plain, nil, ""},
		"no template":             {with(tokenizerConfigFile, `{}`), nil, "--endpoint-types completions"},
		"null template":           {with(tokenizerConfigFile, `{"chat_template":null}`), nil, "--endpoint-types completions"},
		"empty template":          {with(tokenizerConfigFile, `{"chat_template":""}`), nil, "--endpoint-types completions"},
		"broken tokenizer_config": {with(tokenizerConfigFile, `{`), nil, "--endpoint-types completions"},
		"named templates":         {with(tokenizerConfigFile, `{"chat_template":[{"name":"default","template":"x"}]}`), nil, ""},
		"template in a file":      {with(tokenizerConfigFile, `{}`, templateJinjaFile, "x"), nil, ""},
		"completions only":        {with(tokenizerConfigFile, `{}`), func(c *Config) { c.EndpointTypes = Completions }, ""},
		"prefill needs none":      {with(tokenizerConfigFile, `{}`), func(c *Config) { c.Role = protocol.Prefill }, ""},
		"no tokenizer_config":     {with(tokenizerConfigFile, "", templateJinjaFile, "x"), nil, tokenizerConfigFile},
	} {
		t.Run(name, func(t *testing.T) {
			config := configFor(t, c.files)
			if c.change != nil {
				c.change(&config)
			}
			card, err := Build(config)
			if err != nil {
				t.Fatal(err)
			}
			warnings := strings.Join(card.Warnings, "\n")
			if c.says == "" && warnings != "" || !strings.Contains(warnings, c.says) {
				t.Errorf("warnings %q, want one that says %q", warnings, c.says)
			}
		})
	}
}

// A prefill or encode worker tokenizes nothing, so no tokenizer is asked of its folder; the key says null, as Rust's does.
func TestRolesWithoutTokenizer(t *testing.T) {
	for _, role := range []protocol.Role{protocol.Prefill, protocol.Encode} {
		config := configFor(t, with(tokenizerFile, "", tokenizerConfigFile, ""))
		config.Role, config.EndpointTypes = role, 0
		card, err := Build(config)
		if err != nil || len(card.Warnings) > 0 || !strings.Contains(string(card.JSON()), `"tokenizer":null`) {
			t.Errorf("%v: %s, %v, %v", role, card.JSON(), card.Warnings, err)
		}
	}
}

func TestCardTellsTheWorkerWhatItSays(t *testing.T) {
	config := configFor(t, plain)
	config.Engine.ServedName, config.Engine.KVBlockSize = "Org/M", 32
	card, err := Build(config)
	if err != nil {
		t.Fatal(err)
	}
	if card.DisplayName != "Org/M" || card.Slug != "org_m" || card.KVBlockSize != 32 || card.ContextLength != 4096 || card.Files != nil {
		t.Errorf("%+v", card)
	}
}

// The hub's cache holds links to blobs: cards name the link, whose name tells what the file is.
func TestFilesBehindLinks(t *testing.T) {
	blobs := modelDir(t, map[string]string{"b1": plain[configFile], "b2": "{}", "b3": plain[tokenizerConfigFile], "b4": "extra"})
	dir := modelDir(t, nil)
	for name, blob := range map[string]string{configFile: "b1", tokenizerFile: "b2", tokenizerConfigFile: "b3", "vocab.json": "b4"} {
		if err := os.Symlink(filepath.Join(blobs, blob), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling.json")); err != nil {
		t.Fatal(err)
	}
	config := configFor(t, nil)
	config.Dir, config.Hosting = dir, &Hosting{BaseURL: "http://127.0.0.1:9090/", Namespace: "n", Component: "c", Endpoint: "e"}
	card, err := Build(config)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, file := range card.Files {
		paths = append(paths, file.URLPath)
	}
	want := []string{"config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"}
	for i := range want {
		want[i] = "/v1/metadata/n/c/e/m/_base/" + want[i]
	}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Error(diff)
	}
	checkHosted(t, card)
}

func TestStableRoutingID(t *testing.T) {
	for id, want := range map[string]bool{"": false, "pod-3": true} {
		config := configFor(t, plain)
		config.StableRoutingID = id
		card, err := Build(config)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(card.JSON()), `"stable_routing_id":"pod-3"`); got != want || strings.Contains(string(card.JSON()), `"stable_routing_id"`) != want {
			t.Errorf("%q: %s", id, card.JSON())
		}
	}
}

func TestHostedNamesAreEscaped(t *testing.T) {
	config := configFor(t, with("odd name?#%.txt", "x"))
	config.Hosting = &Hosting{BaseURL: "http://127.0.0.1:9090", Namespace: "n.\u00fc", Component: "c%d", Endpoint: "E"}
	card, err := Build(config)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(card.JSON()), `/v1/metadata/n.%C3%BC/c%25d/E/m/_base/odd%20name%3F%23%25.txt"`) {
		t.Errorf("%s", card.JSON())
	}
	if got := card.Files[len(card.Files)-1].URLPath; got != "/v1/metadata/n.\u00fc/c%d/E/m/_base/odd name?#%.txt" {
		t.Error(got)
	}
}
