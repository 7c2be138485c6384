package protocol

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// inBoth returns the JSON document in both codecs.
func inBoth(tb testing.TB, doc string) map[Codec][]byte {
	tb.Helper()
	return map[Codec][]byte{JSON: []byte(doc), MsgPack: AppendValue(nil, MsgPack, mustParse(tb, JSON, []byte(doc)))}
}

func TestRequestFieldsThatAreRefused(t *testing.T) {
	for _, c := range []struct{ doc, path, reason string }{
		{`{}`, "token_ids", "missing"},
		{`{"token_ids":null}`, "token_ids", "missing"},
		{`{"token_ids":[1],"token_ids":null}`, "token_ids", "missing"},
		{`{"token_ids":7}`, "token_ids", "want a list, got a number"},
		{`{"token_ids":[1,-1]}`, "token_ids[1]", "want an integer from 0 to 4294967295, got -1"},
		{`{"token_ids":[4294967296]}`, "token_ids[0]", "got 4294967296"},
		{`{"token_ids":[1.0]}`, "token_ids[0]", "got 1.0"},
		{`{"token_ids":[null]}`, "token_ids[0]", "want a number, got null"},
		{`{"token_ids":["1"]}`, "token_ids[0]", "want a number, got a string"},
		{`{"token_ids":[],"model":1}`, "model", "want a string, got a number"},
		{`{"token_ids":[],"stop_conditions":[]}`, "stop_conditions", "want a map, got a list"},
		{`{"token_ids":[],"stop_conditions":{"stop":["a",1]}}`, "stop_conditions.stop[1]", "want a string"},
		{`{"token_ids":[],"stop_conditions":{"max_tokens":-1}}`, "stop_conditions.max_tokens", "got -1"},
		{`{"token_ids":[],"stop_conditions":{"ignore_eos":1}}`, "stop_conditions.ignore_eos", "want a boolean"},
		{`{"token_ids":[],"sampling_options":{"n":256}}`, "sampling_options.n", "from 0 to 255, got 256"},
		{`{"token_ids":[],"sampling_options":{"n":1.0}}`, "sampling_options.n", "got 1.0"},
		{`{"token_ids":[],"sampling_options":{"temperature":"hot"}}`, "sampling_options.temperature", "want a number"},
		{`{"token_ids":[],"sampling_options":{"temperature":1e39}}`, "sampling_options.temperature", "finite 32-bit float"},
		{`{"token_ids":[],"sampling_options":{"top_k":2147483648}}`, "sampling_options.top_k", "got 2147483648"},
		{`{"token_ids":[],"sampling_options":{"seed":9223372036854775808}}`, "sampling_options.seed", "got 9223372036854775808"},
		{`{"token_ids":[],"sampling_options":{"guided_decoding":{"choice":"a"}}}`, "sampling_options.guided_decoding.choice", "want a list"},
		{`{"token_ids":[],"output_options":{"logprobs":true}}`, "output_options.logprobs", "want a number"},
		{`{"token_ids":[],"routing":{"dp_rank":-1}}`, "routing.dp_rank", "got -1"},
		{`{"token_ids":[],"routing":{"decode_worker_id":18446744073709551616}}`, "routing.decode_worker_id", "got 1.8446744073709552e19"},
		{`{"token_ids":[],"annotations":{}}`, "annotations", "want a list"},
		{`{"token_ids":[],"prefill_result":{}}`, "prefill_result.disaggregated_params", "missing"},
		{`{"token_ids":[],"prefill_result":[]}`, "prefill_result", "want a map"},
		{`{"token_ids":[],"encoder_result":[]}`, "encoder_result", "want a map, got a list"},
		{`{"token_ids":[],"multi_modal_data":"x"}`, "multi_modal_data", "want a map"},
		{`{"token_ids":[],"multi_modal_uuids":["a"]}`, "multi_modal_uuids", "want a map"},
		{`{"token_ids":[],"bootstrap_info":1}`, "bootstrap_info", "want a map"},
		{`{"token_ids":[],"migration_link":{"trace_id":1}}`, "migration_link.trace_id", "want a string"},
		{`{"token_ids":[],"_HEALTH_CHECK":"yes"}`, "_HEALTH_CHECK", "want a boolean"},
		{`[]`, "", "want a map, got a list"},
	} {
		for _, codec := range []Codec{JSON, MsgPack} {
			body := inBoth(t, c.doc)[codec]
			if strings.Contains(c.doc, "token_ids\":null}") && codec == MsgPack {
				body = []byte("\x82\xa9token_ids\x91\x01\xa9token_ids\xc0") // a Value cannot hold a key twice
			}
			_, err := ParseRequest(codec, body)
			if err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("%v %s: got %v, want %s", codec, c.doc, err, c.reason)
				continue
			}
			path := ""
			if field, ok := errors.AsType[*FieldError](err); ok {
				path = field.Path
			}
			if path != c.path {
				t.Errorf("%v %s: path %q, want %q", codec, c.doc, path, c.path)
			}
		}
	}
}

func TestRequestsThatAreAccepted(t *testing.T) {
	for _, c := range []struct {
		doc  string
		want PreprocessedRequest
	}{
		{`{"token_ids":[]}`, PreprocessedRequest{TokenIDs: []uint32{}}},
		{
			`{"token_ids":[0,4294967295],"model":null,"stop_conditions":null,"sampling_options":null,"output_options":null,` +
				`"eos_token_ids":null,"mdc_sum":null,"annotations":null,"routing":null,"prefill_result":null,"encoder_result":null,` +
				`"extra_args":null,"_HEALTH_CHECK":null,"migration_link":null,"prompt_embeds":null}`,
			PreprocessedRequest{TokenIDs: []uint32{0, 4294967295}},
		},
		{ // what nobody here reads may have any shape
			`{"kv_hint":[[{"a":[1,{"b":null}]}],"x",true],"request_timestamp_ms":1.5,"token_ids":[1],"router":{"token_ids":"no"}}`,
			PreprocessedRequest{TokenIDs: []uint32{1}},
		},
		{ // integers are good enough for floats
			`{"token_ids":[1],"sampling_options":{"temperature":1,"top_p":18446744073709551615,"seed":-9223372036854775808,"top_k":-1,"n":255}}`,
			PreprocessedRequest{TokenIDs: []uint32{1}, SamplingOptions: SamplingOptions{
				Temperature: new(float32(1)), TopP: new(float32(18446744073709551615)), Seed: new(int64(-1 << 63)),
				TopK: new(int32(-1)), N: new(uint8(255)),
			}},
		},
		{
			`{"token_ids":[1],"routing":{"prefill_worker_id":18446744073709551615,"dp_rank":3,"priority":-5,"cache_salt":"","lora_name":"l"}}`,
			PreprocessedRequest{TokenIDs: []uint32{1}, Routing: Routing{
				PrefillWorkerID: new(uint64(1<<64 - 1)), DPRank: new(uint32(3)), Priority: new(int32(-5)),
				CacheSalt: new(""), LoraName: new("l"),
			}},
		},
		{ // opaque values keep their order and their integers
			`{"token_ids":[1],"prefill_result":{"disaggregated_params":{"z":18446744073709551615,"a":[[1,2.0]],"é\u0000":-0.0},"prompt_tokens_details":{}}}`,
			PreprocessedRequest{TokenIDs: []uint32{1}, PrefillResult: &PrefillResult{
				DisaggregatedParams: Map(Member{"z", Value{Kind: KindUint, Uint: 1<<64 - 1}}, Member{"a", List(List(Int(1), Float(2)))}, Member{"é\x00", Float(0)}),
				PromptTokensDetails: Map(),
			}},
		},
		{ // media: opaque, and none where null; what only a router or a decoder reads is skipped
			`{"token_ids":[1],"multi_modal_data":{"image_url":[{"Url":"data:,x"},{"UuidOnly":null}],"x":5},"multi_modal_uuids":{"image_url":["u",null]},` +
				`"mm_routing_info":{"block_mm_infos":[]},"media_io_kwargs":[1],"mm_processor_kwargs":{}}`,
			PreprocessedRequest{
				TokenIDs: []uint32{1}, MMProcessorKwargs: Map(),
				MultiModalData: Map(
					Member{"image_url", List(Map(Member{"Url", String("data:,x")}), Map(Member{"UuidOnly", Null()}))}, Member{"x", Int(5)}),
				MultiModalUUIDs: Map(Member{"image_url", List(String("u"), Null())}),
			},
		},
		{`{"token_ids":[1],"multi_modal_data":null,"multi_modal_uuids":null,"mm_processor_kwargs":null}`, PreprocessedRequest{TokenIDs: []uint32{1}}},
		{ // required, but its worth is not judged here
			`{"token_ids":[1],"prefill_result":{"disaggregated_params":null}}`,
			PreprocessedRequest{TokenIDs: []uint32{1}, PrefillResult: &PrefillResult{}},
		},
	} {
		for codec, body := range inBoth(t, c.doc) {
			got, err := ParseRequest(codec, body)
			if err != nil {
				t.Errorf("%v %s: %v", codec, c.doc, err)
				continue
			}
			if diff := cmp.Diff(&c.want, got); diff != "" {
				t.Errorf("%v %s: %s", codec, c.doc, diff)
			}
		}
	}
}

// TestLastKeyWins: a field that comes twice counts the second time only, nested objects and nulls included.
func TestLastKeyWins(t *testing.T) {
	const doc = `{"token_ids":[1,2],"stop_conditions":{"max_tokens":1,"min_tokens":2},"sampling_options":{"n":1},"extra_args":{"a":1,"b":2,"a":3},` +
		`"token_ids":[3],"stop_conditions":{"max_tokens":5},"sampling_options":null,"model":"x","model":null}`
	got, err := ParseRequest(JSON, []byte(doc))
	want := &PreprocessedRequest{
		TokenIDs: []uint32{3}, StopConditions: StopConditions{MaxTokens: new(uint32(5))},
		ExtraArgs: Map(Member{"a", Int(3)}, Member{"b", Int(2)}),
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

// TestEscapedKeys: a known field is known in any spelling, and the texts of keys survive the reading of their values.
func TestEscapedKeys(t *testing.T) {
	got, err := ParseRequest(JSON, []byte(`{"token\u005fids":[1],"extra_args":{"\u0061":"\u0062\n","\ud83d\ude00":{"\t":1}}}`))
	want := &PreprocessedRequest{TokenIDs: []uint32{1}, ExtraArgs: Map(Member{"a", String("b\n")}, Member{"😀", Map(Member{"\t", Int(1)})})}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

// TestHostileBodies: whatever a peer sends costs an error and no more than its own size in memory.
func TestHostileBodies(t *testing.T) {
	deep := func(open, shut string) string {
		return strings.Repeat(open, maxDepth+1) + strings.Repeat(shut, maxDepth+1)
	}
	for name, c := range map[string]struct {
		codec Codec
		body  string
		want  string
	}{
		"empty json":                  {JSON, "", "ends too early"},
		"empty msgpack":               {MsgPack, "", "ends too early"},
		"deep known":                  {JSON, `{"extra_args":` + deep("[", "]"), "deeper than"},
		"deep unknown":                {JSON, `{"whatever":` + deep(`{"":`, "}"), "deeper than"},
		"deep msgpack":                {MsgPack, "\x81\xa1x" + deep("\x91", ""), "deeper than"},
		"billions of elements":        {MsgPack, "\x81\xa9token_ids\xdd\xff\xff\xff\xff\x01", "ends too early"},
		"billions of members":         {MsgPack, "\xdf\xff\xff\xff\xff\xa1x\xc0", "ends too early"},
		"billions of bytes":           {MsgPack, "\x81\xa5model\xdb\xff\xff\xff\xff", "ends too early"},
		"integer key":                 {MsgPack, "\x81\x01\x02", "map key: want a string, got a number"},
		"binary key":                  {MsgPack, "\x81\xc4\x01x\x02", "map key: want a string, got bytes"},
		"extension":                   {MsgPack, "\x81\xa1x\xd4\x05\x00", "type byte 0xd4"},
		"binary text":                 {MsgPack, "\x81\xa5model\xc4\x01x", "model: want a string, got bytes"},
		"text not UTF-8":              {MsgPack, "\x81\xa5model\xa1\xff", "model: text is not UTF-8"},
		"JSON text not UTF-8":         {JSON, "{\"model\":\"\xff\"}", "model: text is not UTF-8"},
		"escaped and not UTF-8":       {JSON, "{\"model\":\"\\n\xff\"}", "model: text is not UTF-8"},
		"lone surrogate":              {JSON, `{"model":"\ud800"}`, "model: "},
		"surrogate and letter":        {JSON, `{"model":"\ud800\u0061"}`, "unpaired surrogate"},
		"control character":           {JSON, "{\"model\":\"\x01\"}", "unexpected byte"},
		"number out of range":         {JSON, `{"x":1e999}`, "out of range"},
		"leading zero":                {JSON, `{"token_ids":[01]}`, "malformed number"},
		"bare minus":                  {JSON, `{"x":-}`, "malformed number"},
		"no fraction":                 {JSON, `{"x":1.}`, "malformed number"},
		"no exponent":                 {JSON, `{"x":1e+}`, "malformed number"},
		"trailing comma":              {JSON, `{"token_ids":[1,]}`, "unexpected byte"},
		"trailing comma in a map":     {JSON, `{"x":1,}`, "unexpected byte"},
		"missing comma":               {JSON, `{"token_ids":[1 2]}`, "unexpected byte"},
		"missing colon":               {JSON, `{"token_ids"[1]}`, "unexpected byte"},
		"wrong closer":                {JSON, `{"token_ids":[1}`, "unexpected byte"},
		"misspelt word":               {JSON, `{"x":nul}`, "unexpected byte"},
		"bytes behind":                {JSON, `{"token_ids":[1]} x`, "follow the document"},
		"bytes behind msgpack":        {MsgPack, "\x81\xa9token_ids\x90\xc0", "follow the document"},
		"NaN":                         {MsgPack, "\x82\xa9token_ids\x90\xb0sampling_options\x81\xa5top_p\xca\x7f\xc0\x00\x00", "finite 32-bit float"},
		"a struct as positional list": {MsgPack, "\x92\xa1m\x91\x01", "want a map, got a list"},
		"unknown codec":               {Codec(9), "{}", "unknown codec"},
		"too many opaque nodes":       {JSON, `{"extra_args":[` + strings.Repeat("0,", maxNodes) + `0]}`, "more than 1048576 nodes"},
	} {
		_, err := ParseRequest(c.codec, []byte(c.body))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
	body := "{\"token_ids\":[1,2],\"extra_args\":{\"a\":[1.5,\"\\u00e9\",true,null]}}"
	for codec, whole := range inBoth(t, body) {
		for n := range whole {
			if _, err := ParseRequest(codec, whole[:n]); err == nil {
				t.Errorf("%v: accepted the first %d bytes of %d", codec, n, len(whole))
			}
		}
	}
}

// TestManyOpaqueKeys: maps that are too large to be searched still keep one of each key, the last, in the first one's place.
func TestManyOpaqueKeys(t *testing.T) {
	var doc strings.Builder
	for i := range 100 {
		fmt.Fprintf(&doc, `,"k%d":%d`, i%40, i)
	}
	v := mustParse(t, JSON, []byte("{"+doc.String()[1:]+"}"))
	if len(v.Map) != 40 {
		t.Fatalf("%d members", len(v.Map))
	}
	for i, m := range v.Map {
		want := int64(40 + i)
		if i < 20 {
			want += 40
		}
		if m.Key != fmt.Sprintf("k%d", i) || m.Value.Int != want {
			t.Errorf("member %d: %s=%d, want %d", i, m.Key, m.Value.Int, want)
		}
	}
}

// TestFullRequest: every field that can be written is read again, in both codecs.
func TestFullRequest(t *testing.T) {
	want := &PreprocessedRequest{
		Model: "m", TokenIDs: []uint32{1, 1 << 31}, PromptEmbeds: new("AAA="),
		MultiModalData:  Map(Member{"image_url", List(Map(Member{"Url", String("data:,")}))}),
		MultiModalUUIDs: Map(Member{"image_url", List(Null())}),
		StopConditions: StopConditions{
			MaxTokens: new(uint32(1)), Stop: []string{"\"", "\\"}, StopTokenIDs: []uint32{1}, StopTokenIDsVisible: []uint32{2},
			StopTokenIDsHidden: []uint32{3}, MinTokens: new(uint32(0)), IgnoreEOS: new(true), MaxThinkingTokens: new(uint32(9)),
		},
		SamplingOptions: SamplingOptions{
			N: new(uint8(2)), BestOf: new(uint8(3)), PresencePenalty: new(float32(-0.5)), FrequencyPenalty: new(float32(1e-7)),
			RepetitionPenalty: new(float32(1.1)), Temperature: new(float32(0.7)), TopP: new(float32(0.9)), TopK: new(int32(-1)),
			MinP: new(float32(0)), UseBeamSearch: new(false), LengthPenalty: new(float32(3e38)), Seed: new(int64(-7)),
			IncludeStopStrOutput: new(true),
			GuidedDecoding: &GuidedDecoding{
				JSON: Map(Member{"type", String("object")}), Regex: new("a+"), Choice: []string{"a"}, Grammar: new("g"),
				Backend: new("b"), WhitespacePattern: new(" "), StructuralTag: String("t"),
			},
		},
		OutputOptions: OutputOptions{
			Logprobs: new(uint32(5)), PromptLogprobs: new(uint32(0)), SkipSpecialTokens: new(true), FormattedPrompt: new(false),
			ReturnTokensAsTokenIDs: new(true),
		},
		EOSTokenIDs: []uint32{2}, MDCSum: "abc", Annotations: []string{"x:y"},
		Routing: Routing{
			BackendInstanceID: new(uint64(1 << 63)), PrefillWorkerID: new(uint64(1)), DecodeWorkerID: new(uint64(2)),
			DPRank: new(uint32(0)), PrefillDPRank: new(uint32(7)), LoraName: new("l"), CacheSalt: new("s"), Priority: new(int32(-1)),
		},
		PrefillResult:     &PrefillResult{DisaggregatedParams: Map(Member{"p", Value{Kind: KindUint, Uint: 1<<64 - 1}}), PromptTokensDetails: Map(Member{"cached_tokens", Int(1)})},
		EncoderResult:     Map(Member{"e", Bool(true)}),
		BootstrapInfo:     Map(Member{"bootstrap_port", Int(1)}),
		ExtraArgs:         List(Float(1.5)),
		MMProcessorKwargs: Map(Member{"k", Null()}),
		MigrationLink:     &TraceLink{"t", "s"},
		HealthCheck:       true,
	}
	for _, codec := range []Codec{JSON, MsgPack} {
		got, err := ParseRequest(codec, AppendRequest([]byte{}, codec, want))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v: %v %s", codec, err, diff)
		}
	}
}
