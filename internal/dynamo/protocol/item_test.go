package protocol

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func output(fields string) string {
	return `{"data":{"data":{"token_ids":[1]` + fields + `}},"complete_final":false}`
}

func TestFinishReasons(t *testing.T) {
	for _, c := range []struct {
		wire    string
		want    FinishReason
		message string
		bad     string // part of the error
	}{
		{`null`, FinishNone, "", ""},
		{`"eos"`, FinishEOS, "", ""},
		{`"length"`, FinishLength, "", ""},
		{`"stop"`, FinishStop, "", ""},
		{`"cancelled"`, FinishCancelled, "", ""},
		{`"abort"`, FinishCancelled, "", ""},
		{`"content_filter"`, FinishContentFilter, "", ""},
		{`"error"`, FinishError, "", ""},
		{`"error: out of luck"`, FinishError, "out of luck", ""},
		{`{"error":"out of luck"}`, FinishError, "out of luck", ""},
		{`""`, "", "", `unknown word ""`},
		{`"done"`, "", "", `unknown word "done"`},
		{`"Stop"`, "", "", `unknown word "Stop"`},
		{`7`, "", "", "want a string, got a number"},
		{`{}`, "", "", "a map without a variant"},
		{`{"oops":"x"}`, "", "", "unknown variant"},
		{`{"error":1}`, "", "", "finish_reason.error: want a string"},
	} {
		for codec, body := range inBoth(t, output(`,"finish_reason":`+c.wire)) {
			item, final, err := ParseItem(codec, body)
			if c.bad != "" {
				if err == nil || !strings.Contains(err.Error(), c.bad) || !strings.Contains(err.Error(), "data.data.finish_reason") {
					t.Errorf("%v %s: %v, want %s", codec, c.wire, err, c.bad)
				}
				continue
			}
			if err != nil || final || item.Data.FinishReason != c.want || item.Data.FinishMessage != c.message {
				t.Errorf("%v %s: %+v %v %v", codec, c.wire, item.Data, final, err)
			}
		}
	}
}

func TestItemsThatAreRefused(t *testing.T) {
	for _, c := range []struct{ doc, want string }{
		{`{"data":{"data":{}},"complete_final":false}`, "data.data.token_ids: missing"},
		{`{"complete_final":false}`, "data: missing"},
		{`{"data":null,"complete_final":false}`, "data: missing"},
		{`{"data":{"data":{"token_ids":[]}}}`, "complete_final: missing"},
		{`{"data":[],"complete_final":false}`, "data: want a map"},
		{`{"complete_final":1}`, "complete_final: want a boolean"},
		{output(`,"text":1`), "data.data.text: want a string"},
		{output(`,"log_probs":["x"]`), "data.data.log_probs[0]: want a number"},
		{output(`,"top_logprobs":[[{"rank":-1}]]`), "data.data.top_logprobs[0][0].rank: want an integer"},
		{output(`,"stop_reason":1.5`), "data.data.stop_reason: want a string, an integer or a list of integers"},
		{output(`,"stop_reason":[1,"x"]`), "data.data.stop_reason[1]: want a number"},
		{output(`,"completion_usage":{"prompt_tokens":"1"}`), "data.data.completion_usage.prompt_tokens: want a number"},
		{output(`,"index":-1`), "data.data.index: want an integer"},
		{`{"data":{"event":"error","error":{"error_type":{"Frontend":"X"}}},"complete_final":false}`, "data.error.error_type.Frontend: unknown variant"},
		{`{"data":{"event":1},"complete_final":false}`, "data.event: want a string"},
	} {
		for codec, body := range inBoth(t, c.doc) {
			if _, _, err := ParseItem(codec, body); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v %s: got %v, want %s", codec, c.doc, err, c.want)
			}
		}
	}
}

func TestFullItem(t *testing.T) {
	want := Item{Data: &EngineOutput{
		TokenIDs: []uint32{1, 2}, Text: new("a\"\u2028\x7f"), LogProbs: []float64{-0.5, float64(float32(-6.23832368850708))},
		TopLogprobs:  [][]TopLogprob{{{1, 2, -0.25}}, {}},
		FinishReason: FinishError, FinishMessage: "m", StopReason: List(Int(7)), Index: new(uint32(1)),
		DisaggregatedParams: Map(Member{"a", Value{Kind: KindUint, Uint: 1<<64 - 1}}), EncoderResult: Map(Member{"e", Int(-1)}),
		WorkerTraceLink: &TraceLink{"t", "s"}, Usage: &Usage{1, 2, 3, new(uint32(0))},
		EngineData: Map(Member{"prompt_logprobs", List(Null())}),
	}}
	for _, codec := range []Codec{JSON, MsgPack} {
		got, final, err := ParseItem(codec, AppendItem(nil, codec, &want))
		if diff := cmp.Diff(want, got); err != nil || final || diff != "" {
			t.Errorf("%v: %v %v %s", codec, err, final, diff)
		}
	}
}

// TestItemBytes pins what differs between "none" and "nothing asked for".
func TestItemBytes(t *testing.T) {
	for _, c := range []struct {
		item Item
		want string
	}{
		{
			Item{Data: &EngineOutput{}},
			`{"data":{"data":{"token_ids":[],"tokens":null,"text":null,"output_type":"text","cum_log_probs":null,"log_probs":null,` +
				`"top_logprobs":null,"finish_reason":null,"index":null}},"complete_final":false}`,
		},
		{
			Item{Data: &EngineOutput{
				LogProbs: []float64{}, TopLogprobs: [][]TopLogprob{}, FinishReason: FinishLength, StopReason: String("x"),
				Index: new(uint32(0)), Usage: &Usage{9, 2, 11, new(uint32(0))},
			}},
			`{"data":{"data":{"token_ids":[],"tokens":null,"text":null,"output_type":"text","cum_log_probs":null,"log_probs":[],` +
				`"top_logprobs":[],"finish_reason":"length","stop_reason":"x","index":0,"completion_usage":{"prompt_tokens":9,` +
				`"completion_tokens":2,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":0}}}},"complete_final":false}`,
		},
		{
			Item{Data: &EngineOutput{TokenIDs: []uint32{1}, LogProbs: []float64{math.NaN(), math.Inf(-1), -9999}}},
			`{"data":{"data":{"token_ids":[1],"tokens":null,"text":null,"output_type":"text","cum_log_probs":null,` +
				`"log_probs":[null,null,-9999.0],"top_logprobs":null,"finish_reason":null,"index":null}},"complete_final":false}`,
		},
		{
			Item{Error: &Error{ErrorBackendInvalidArgument, "prompt has 40000 tokens", "The prompt is too long"}},
			`{"data":{"event":"error","error":{"error_type":{"Backend":"InvalidArgument"},"class":"InvalidRequest",` +
				`"reason":"backend.invalid_argument","message":"prompt has 40000 tokens","diagnostic":"prompt has 40000 tokens",` +
				`"public":{"type":"message","message":"The prompt is too long"}}},"complete_final":false}`,
		},
		{
			Item{Error: &Error{ErrorWorkerOverloaded, "full", ""}},
			`{"data":{"event":"error","error":{"error_type":"WorkerOverloaded","class":"CapacityExhausted",` +
				`"reason":"capacity.worker_overloaded","message":"full","diagnostic":"full"}},"complete_final":false}`,
		},
		{Item{}, `{"data":{},"complete_final":false}`},
	} {
		if got := string(AppendItem(nil, JSON, &c.item)); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
		doc := string(AppendValue(nil, JSON, mustParse(t, MsgPack, AppendItem(nil, MsgPack, &c.item))))
		if doc != c.want {
			t.Errorf("msgpack says %s\nwant         %s", doc, c.want)
		}
	}
	for _, codec := range []Codec{JSON, MsgPack} {
		if item, final, err := ParseItem(codec, AppendFinal(nil, codec)); err != nil || !final || item != (Item{}) {
			t.Errorf("%v final: %v %v %v", codec, item, final, err)
		}
	}
}

// TestAppendItemAllocates: nothing, once dst has grown; the buffer's other content is left alone.
func TestAppendItemAllocates(t *testing.T) {
	item := Item{Data: &EngineOutput{
		TokenIDs: []uint32{1}, Text: new("x"), LogProbs: []float64{-0.1}, TopLogprobs: [][]TopLogprob{{{1, 1, -0.1}}},
		DisaggregatedParams: Map(Member{"a", List(Int(1))}), Usage: &Usage{},
	}}
	for _, codec := range []Codec{JSON, MsgPack} {
		dst := AppendItem([]byte{'{'}, codec, &item)
		if n := testing.AllocsPerRun(100, func() { dst = AppendItem(dst[:1], codec, &item) }); n != 0 {
			t.Errorf("%v: %v allocations", codec, n)
		}
		if !bytes.Equal(dst[1:], AppendItem(nil, codec, &item)) || dst[0] != '{' {
			t.Errorf("%v: what was in dst has changed the item: %q", codec, dst)
		}
	}
}
