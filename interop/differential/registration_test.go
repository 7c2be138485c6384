package differential

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"remora/internal/dynamo/protocol"
	"remora/internal/vllm/vllmtest"
)

// setups are engines and flags whose registration is compared; the first one is what every other test uses.
var setups = []struct {
	name   string
	roles  string
	engine func(b *vllmtest.Behaviour)
	args   []string
}{
	{name: "default", roles: "apd"},
	{name: "aliases", roles: "a", engine: func(b *vllmtest.Behaviour) { b.Model.ServedModelAliases = []string{"small", "mini"} }},
	{name: "what the engine says of parsers", roles: "a", engine: func(b *vllmtest.Behaviour) {
		b.Model.ReasoningParser, b.Model.ToolCallParser = "deepseek_r1", "hermes"
	}},
	{name: "lengths unknown", roles: "apd", engine: func(b *vllmtest.Behaviour) {
		b.Server.MaxModelLen, b.Server.KvBlockSize, b.Server.TotalKvBlocks, b.Server.EffectiveAttentionBlockSize = 0, 0, 0, nil
		b.Server.MaxRunningRequests, b.Server.MaxBatchedTokens = 0, 0
	}},
	{name: "effective block size", roles: "ad", engine: func(b *vllmtest.Behaviour) {
		b.Server.KvBlockSize, b.Server.EffectiveAttentionBlockSize = 16, proto.Uint64(64)
	}},
	{name: "no parallelism", roles: "a", engine: func(b *vllmtest.Behaviour) { b.Server.Parallelism = nil }},
	{name: "several ranks", roles: "apd", engine: func(b *vllmtest.Behaviour) {
		b.Server.Parallelism.DataParallelSize, b.Server.Parallelism.DataParallelSizeLocal = 8, 4
		b.Server.Parallelism.DataParallelRank = 4
		b.Server.TotalKvBlocks = 1002
	}},
	{name: "LoRA", roles: "a", engine: func(b *vllmtest.Behaviour) { b.Model.SupportsLora, b.Server.MaxLoras = true, 3 }},
	{name: "multimodal", roles: "a", engine: func(b *vllmtest.Behaviour) { b.Model.SupportsMultimodal = true }},
	{name: "names", roles: "a", args: []string{"--namespace", "ns-1", "--component", "workers", "--endpoint", "run"}},
	{name: "chat alone", roles: "a", args: []string{"--endpoint-types", "chat"}},
	{name: "parsers", roles: "apd", args: []string{"--dyn-tool-call-parser", "hermes", "--dyn-reasoning-parser", "deepseek_r1", "--exclude-tools-when-tool-choice-none", "false"}},
}

// TestRegistration compares what both publish, for every setup.
func TestRegistration(t *testing.T) {
	if !*full {
		return // TestRequests looks at the first setup
	}
	for _, s := range setups[1:] {
		for _, letter := range s.roles {
			t.Run(s.name+"/"+string(letters[letter]), func(t *testing.T) {
				p := newPair(t, letters[letter], s.engine, nil, s.args...)
				p.registration(t, s.name)
			})
		}
	}
}

// registration compares the records of discovery and the pages of the status server.
func (p *pair) registration(t *testing.T, setup string) {
	t.Helper()
	var seen [2]observation
	for i, s := range p.sides {
		o := observation{}
		seen[i] = o
		id := s.id()
		for path, record := range s.records(t) {
			o.value("record "+anonymous(path, id), record)
		}
		for path, text := range o {
			o[path] = anonymous(text, id)
		}
	}
	judge(t, strings.Join([]string{string(p.role), "registration", setup}, "/"), seen[0], seen[1])
}

// id is the worker's instance id in hexadecimal, which its path begins with.
func (s *side) id() string {
	id, _, _ := strings.Cut(s.path, "/")
	return id
}

var (
	loopback = regexp.MustCompile(`(127\.0\.0\.1|192\.0\.2\.\d+|0\.0\.0\.0|172\.\d+\.\d+\.\d+|10\.\d+\.\d+\.\d+):\d+`)
	hexID    = regexp.MustCompile(`%2F[0-9a-f]{10,16}\b`)
)

// anonymous takes out what differs between any two workers: ids and ports.
func anonymous(text, id string) string {
	text = strings.ReplaceAll(text, id, "<id>")
	if n, err := strconv.ParseUint(id, 16, 64); err == nil {
		text = strings.ReplaceAll(text, strconv.FormatUint(n, 10), "<id>")
	}
	text = loopback.ReplaceAllString(text, "<address>")
	return hexID.ReplaceAllString(text, "%2F<hex>")
}

var sample = regexp.MustCompile(`^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+$`)
var label = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)

// status enters the pages of the status server: of the metrics names, types and labels, not their values.
func (o observation) status(ctx context.Context, s *side) error {
	for _, page := range []string{"/health", "/live"} {
		text, err := s.sidecar.Status.Get(ctx, page)
		if err != nil {
			return err
		}
		if v, err := protocol.ParseValue(protocol.JSON, []byte(text)); err == nil {
			o.value("page "+page, v)
		} else {
			o["page "+page] = text
		}
	}
	text, err := s.sidecar.Status.Get(ctx, "/metrics")
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if kind, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, word, _ := strings.Cut(kind, " ")
			o["metric type "+name] = word
		}
		m := sample.FindStringSubmatch(line)
		if len(m) != 3 || strings.HasSuffix(m[1], "_bucket") {
			continue
		}
		var labels []string
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			labels = append(labels, l[1]+"="+anonymous(l[2], s.id()))
		}
		slices.Sort(labels)
		o["metric "+m[1]+" {"+strings.Join(labels, " ")+"}"] = "there"
	}
	return nil
}

// pages compares the status servers.
func (p *pair) pages(t *testing.T) {
	t.Helper()
	var seen [2]observation
	for i, s := range p.sides {
		seen[i] = observation{}
		if err := seen[i].status(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s.kind, err)
		}
	}
	judge(t, string(p.role)+"/status/pages", seen[0], seen[1])
}
