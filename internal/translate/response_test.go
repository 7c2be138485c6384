package translate

import (
	"errors"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

func message(tb testing.TB, text string) *pb.GenerateResponse {
	tb.Helper()
	m := &pb.GenerateResponse{}
	if err := protojson.Unmarshal([]byte(text), m); err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	return m
}

func response(tb testing.TB, role protocol.Role, members string) *Response {
	tb.Helper()
	if role == protocol.Decode && !strings.Contains(members, "prefill_result") {
		members += `,"prefill_result":{"disaggregated_params":{}}`
		members = strings.TrimPrefix(members, ",")
	}
	return convert(tb, engine(role), members).Response
}

// item renders an output as the wire has it, so that a row can say all of it.
func item(o *protocol.EngineOutput) string {
	if o == nil {
		return ""
	}
	text := string(protocol.AppendItem(nil, protocol.JSON, &protocol.Item{Data: o}))
	text = strings.TrimSuffix(strings.TrimPrefix(text, `{"data":{"data":`), `},"complete_final":false}`)
	for _, unused := range []string{`"tokens":null,`, `"text":null,`, `"output_type":"text",`, `"cum_log_probs":null,`, `"log_probs":null,`,
		`"top_logprobs":null,`, `"finish_reason":null,`} {
		text = strings.Replace(text, unused, "", 1)
	}
	return text
}

const (
	aToken = `{"outputs":{"num_tokens":1,"token_ids":[7]}}`
	params = `"kv_transfer_params":{"b":2.0,"a":[[1.0]]}`
)

// TestResponseItems: each row is a stream of messages and the items that come out; "" is none.
func TestResponseItems(t *testing.T) {
	for _, row := range []struct {
		name     string
		role     protocol.Role
		members  string
		messages []string
		items    []string
	}{
		{"prompt info emits nothing", protocol.Aggregated, ``, []string{`{"prompt_info":{"num_prompt_tokens":3}}`, `{}`}, []string{``, ``}},
		{"outputs without tokens emit nothing", protocol.Aggregated, ``, []string{`{"outputs":{}}`}, []string{``}},
		{"a delta", protocol.Aggregated, ``, []string{`{"outputs":{"num_tokens":2,"token_ids":[7,8],"text":"engine text is not passed on"}}`},
			[]string{`{"token_ids":[7,8],"index":0}`}},
		{"prompt info with any message, more than once", protocol.Aggregated, ``, []string{aToken,
			`{"prompt_info":{"num_prompt_tokens":3},"outputs":{"num_tokens":1,"token_ids":[8]}}`, `{"prompt_info":{"num_prompt_tokens":3}}`},
			[]string{`{"token_ids":[7],"index":0}`, `{"token_ids":[8],"index":0}`, ``}},
		{"length", protocol.Aggregated, ``, []string{aToken, `{"outputs":{"num_tokens":1,"token_ids":[8],"finish_info":{"num_output_tokens":2,"finish_reason":"LENGTH"}}}`},
			[]string{`{"token_ids":[7],"index":0}`,
				`{"token_ids":[8],"finish_reason":"length","index":0,"completion_usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`}},
		{"a finish without tokens", protocol.Decode, ``, []string{aToken, `{"outputs":{"finish_info":{"num_output_tokens":1,"finish_reason":"STOP"}}}`},
			[]string{`{"token_ids":[7],"index":0}`,
				`{"token_ids":[],"finish_reason":"stop","index":0,"completion_usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}`}},
		{"aborted", protocol.Aggregated, ``, []string{`{"outputs":{"finish_info":{"finish_reason":"ABORTED"}}}`},
			[]string{`{"token_ids":[],"finish_reason":"cancelled","index":0,"completion_usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3}}`}},
		{"cached tokens", protocol.Aggregated, ``, []string{`{"outputs":{"finish_info":{"finish_reason":"LENGTH","num_cached_tokens":0}}}`},
			[]string{`{"token_ids":[],"finish_reason":"length","index":0,"completion_usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3,"prompt_tokens_details":{"cached_tokens":0}}}`}},
		{"stop string", protocol.Aggregated, stop(`"stop":["x"]`), []string{`{"outputs":{"finish_info":{"finish_reason":"STOP","stop_string":"x"}}}`},
			[]string{`{"token_ids":[],"finish_reason":"stop","index":0,"stop_reason":"x","completion_usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3}}`}},
		{"parameters of an aggregated engine", protocol.Aggregated, ``, []string{`{"outputs":{"finish_info":{"finish_reason":"LENGTH",` + params + `}}}`},
			[]string{`{"token_ids":[],"finish_reason":"length","index":0,"completion_usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3},"disaggregated_params":{"a":[[1]],"b":2}}`}},
		{"parameters of a decode engine", protocol.Decode, ``, []string{`{"outputs":{"finish_info":{"finish_reason":"STOP",` + params + `}}}`},
			[]string{`{"token_ids":[],"finish_reason":"stop","index":0,"completion_usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3},"disaggregated_params":{"a":[[1]],"b":2}}`}},
		{"encoder parameters are nobody's", protocol.Aggregated, ``, []string{`{"outputs":{"finish_info":{"finish_reason":"STOP","ec_transfer_params":{"e":1}}}}`},
			[]string{`{"token_ids":[],"finish_reason":"stop","index":0,"completion_usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3}}`}},
		{"prefill", protocol.Prefill, ``, []string{`{"prompt_info":{"num_prompt_tokens":3}}`, `{"outputs":{"num_tokens":1,"token_ids":[7],"finish_info":{"num_output_tokens":1,"finish_reason":"LENGTH","num_cached_tokens":2,` + params + `}}}`},
			[]string{``, `{"token_ids":[],"finish_reason":"length","index":0,"completion_usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3,"prompt_tokens_details":{"cached_tokens":2}},"disaggregated_params":{"a":[[1]],"b":2}}`}},
		{"prefill tokens before the finish", protocol.Prefill, ``, []string{aToken, `{"outputs":{"finish_info":{"num_output_tokens":1,"finish_reason":"STOP","eos_token_id":1,` + params + `}}}`},
			[]string{``, `{"token_ids":[],"finish_reason":"stop","index":0,"completion_usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3},"disaggregated_params":{"a":[[1]],"b":2}}`}},
		{"prefill with logprobs asked needs none", protocol.Prefill, output(`"logprobs":2`), []string{`{"outputs":{"num_tokens":1,"token_ids":[7],"finish_info":{"num_output_tokens":1,"finish_reason":"LENGTH",` + params + `}}}`},
			[]string{`{"token_ids":[],"finish_reason":"length","index":0,"completion_usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3},"disaggregated_params":{"a":[[1]],"b":2}}`}},
		{"an aborted prefill hands nothing off", protocol.Prefill, ``, []string{`{"outputs":{"num_tokens":1,"token_ids":[7],"finish_info":{"num_output_tokens":1,"finish_reason":"ABORTED",` + params + `}}}`},
			[]string{`{"token_ids":[],"finish_reason":"cancelled","index":0,"completion_usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3}}`}},
		{"selected logprobs", protocol.Aggregated, output(`"logprobs":0`), []string{
			`{"outputs":{"num_tokens":2,"token_ids":[7,8],"logprobs":[-0.5,-1.25],"ranks":[1,3],"candidate_tokens":[{},{}]}}`},
			[]string{`{"token_ids":[7,8],"log_probs":[-0.5,-1.25],"index":0}`}},
		{"top logprobs: the selected token first, and once", protocol.Decode, output(`"logprobs":2`), []string{
			`{"outputs":{"num_tokens":2,"token_ids":[7,8],"logprobs":[-0.5,-9],"ranks":[2,40],"candidate_tokens":[
			{"tokens":[{"id":6,"logprob":-0.25,"rank":1},{"id":7,"logprob":-0.5,"rank":2}]},{"tokens":[{"id":1,"logprob":-1,"rank":1},{"id":2,"logprob":-2,"rank":2}]}]}}`},
			[]string{`{"token_ids":[7,8],"log_probs":[-0.5,-9.0],"top_logprobs":[` +
				`[{"rank":2,"token_id":7,"token":null,"logprob":-0.5},{"rank":1,"token_id":6,"token":null,"logprob":-0.25}],` +
				`[{"rank":40,"token_id":8,"token":null,"logprob":-9.0},{"rank":1,"token_id":1,"token":null,"logprob":-1.0},{"rank":2,"token_id":2,"token":null,"logprob":-2.0}]],"index":0}`}},
		{"a token-less finish has empty lists", protocol.Aggregated, output(`"logprobs":2`), []string{`{"outputs":{"finish_info":{"finish_reason":"LENGTH"}}}`},
			[]string{`{"token_ids":[],"log_probs":[],"top_logprobs":[],"finish_reason":"length","index":0,"completion_usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3}}`}},
		{"logprobs that JSON cannot say", protocol.Aggregated, output(`"logprobs":1`), []string{
			`{"outputs":{"num_tokens":3,"token_ids":[7,8,9],"logprobs":["-Infinity","NaN",-10000],"ranks":[1,1,1],"candidate_tokens":[{"tokens":[{"id":1,"logprob":"Infinity","rank":1}]},{},{}]}}`},
			[]string{`{"token_ids":[7,8,9],"log_probs":[-9999.0,-9999.0,-9999.0],"top_logprobs":[[{"rank":1,"token_id":7,"token":null,"logprob":-9999.0},{"rank":1,"token_id":1,"token":null,"logprob":-9999.0}],` +
				`[{"rank":1,"token_id":8,"token":null,"logprob":-9999.0}],[{"rank":1,"token_id":9,"token":null,"logprob":-9999.0}]],"index":0}`}},
		{"logprobs not asked for are ignored", protocol.Aggregated, ``, []string{`{"outputs":{"num_tokens":1,"token_ids":[7],"logprobs":[-1,-2]}}`},
			[]string{`{"token_ids":[7],"index":0}`}},
		{"prompt logprobs", protocol.Aggregated, output(`"prompt_logprobs":1`), []string{
			`{"prompt_info":{"num_prompt_tokens":3,"token_ids":[1,2,3],"logprobs":[0,-0.5,"-Infinity"],"ranks":[0,1,9],"candidate_tokens":[{},{"tokens":[{"id":2,"logprob":-0.25,"rank":1}]},{"tokens":[{"id":5,"logprob":-1,"rank":1}]}]}}`,
			aToken, `{"outputs":{"finish_info":{"num_output_tokens":1,"finish_reason":"LENGTH"}}}`},
			[]string{``, `{"token_ids":[7],"index":0}`, `{"token_ids":[],"finish_reason":"length","index":0,"completion_usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4},` +
				`"engine_data":{"prompt_logprobs":[null,{"2":{"logprob":-0.25,"rank":1}},{"3":{"logprob":-9999.0,"rank":9},"5":{"logprob":-1.0,"rank":1}}]}}`}},
		{"prompt logprobs told twice: the last ones count", protocol.Aggregated, `"token_ids":[1,2],` + output(`"prompt_logprobs":0`), []string{
			`{"prompt_info":{"num_prompt_tokens":2,"token_ids":[1,2],"logprobs":[0,-1],"ranks":[0,1],"candidate_tokens":[{},{}]}}`,
			`{"prompt_info":{"num_prompt_tokens":2,"token_ids":[1,2],"logprobs":[0,-2],"ranks":[0,3],"candidate_tokens":[{},{}]}}`,
			`{"outputs":{"finish_info":{"finish_reason":"LENGTH"}}}`},
			[]string{``, ``, `{"token_ids":[],"finish_reason":"length","index":0,"completion_usage":{"prompt_tokens":2,"completion_tokens":0,"total_tokens":2},` +
				`"engine_data":{"prompt_logprobs":[null,{"2":{"logprob":-2.0,"rank":3}}]}}`}},
		{"prompt logprobs of a prefill", protocol.Prefill, `"token_ids":[1],` + output(`"prompt_logprobs":0`), []string{
			`{"prompt_info":{"num_prompt_tokens":1,"token_ids":[1],"logprobs":[0],"ranks":[0],"candidate_tokens":[{}]}}`,
			`{"outputs":{"finish_info":{"finish_reason":"LENGTH",` + params + `}}}`},
			[]string{``, `{"token_ids":[],"finish_reason":"length","index":0,"completion_usage":{"prompt_tokens":1,"completion_tokens":0,"total_tokens":1},` +
				`"disaggregated_params":{"a":[[1]],"b":2},"engine_data":{"prompt_logprobs":[null]}}`}},
		{"prompt logprobs of an aborted prefill", protocol.Prefill, `"token_ids":[1],` + output(`"prompt_logprobs":0`), []string{
			`{"prompt_info":{"num_prompt_tokens":1,"token_ids":[1],"logprobs":[0],"ranks":[0],"candidate_tokens":[{}]}}`,
			`{"outputs":{"finish_info":{"finish_reason":"ABORTED",` + params + `}}}`},
			[]string{``, `{"token_ids":[],"finish_reason":"cancelled","index":0,"completion_usage":{"prompt_tokens":1,"completion_tokens":0,"total_tokens":1},` +
				`"engine_data":{"prompt_logprobs":[null]}}`}},
		{"prompt logprobs that never come", protocol.Aggregated, output(`"prompt_logprobs":1`), []string{`{"outputs":{"finish_info":{"finish_reason":"LENGTH"}}}`},
			[]string{`{"token_ids":[],"finish_reason":"length","index":0,"completion_usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3}}`}},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := response(t, row.role, row.members)
			for i, text := range row.messages {
				result, err := r.Convert(message(t, text))
				if err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
				if got := canonical(t, item(result.Output)); got != canonical(t, row.items[i]) {
					t.Errorf("message %d:\n got %s\nwant %s", i, got, canonical(t, row.items[i]))
				}
			}
		})
	}
}

// canonical puts a document into one form, since the order of an item's keys is the codec's affair.
func canonical(tb testing.TB, text string) string {
	tb.Helper()
	if text == "" {
		return ""
	}
	return string(sorted(value(tb, text)).AppendJSON(nil))
}

func TestStopReasons(t *testing.T) {
	const lists = `"stop_token_ids":[5,6],"stop_token_ids_hidden":[6,1]`
	for _, row := range []struct{ name, finish, want string }{
		{"stop string", `"finish_reason":"STOP","stop_string":"x"`, `"x"`},
		{"an id of the client", `"finish_reason":"STOP","stop_token_id":5`, `5`},
		{"an id of client and frontend", `"finish_reason":"STOP","stop_token_id":6`, `6`},
		{"an id of the frontend", `"finish_reason":"STOP","stop_token_id":1`, `null`},
		{"an id of nobody", `"finish_reason":"STOP","stop_token_id":9`, `9`},
		{"eos", `"finish_reason":"STOP","eos_token_id":1`, `null`},
		{"eos of nobody", `"finish_reason":"STOP","eos_token_id":9`, `null`},
		{"eos that the client listed", `"finish_reason":"STOP","eos_token_id":5`, `5`},
		{"none", `"finish_reason":"STOP"`, `null`},
		{"with length", `"finish_reason":"LENGTH","stop_token_id":5`, `5`},
	} {
		t.Run(row.name, func(t *testing.T) {
			result, err := response(t, protocol.Aggregated, stop(lists)).Convert(message(t, `{"outputs":{"finish_info":{`+row.finish+`}}}`))
			if err != nil {
				t.Fatal(err)
			}
			if got := string(result.Output.StopReason.AppendJSON(nil)); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// TestResponseErrors: what an engine may not answer.
func TestResponseErrors(t *testing.T) {
	for _, row := range []struct {
		name    string
		role    protocol.Role
		members string
		message string
		words   string
	}{
		{"index", protocol.Aggregated, ``, `{"outputs":{"index":1}}`, "index 1"},
		{"more ids than num_tokens", protocol.Aggregated, ``, `{"outputs":{"num_tokens":1,"token_ids":[7,8]}}`, "num_tokens is 1"},
		{"no ids", protocol.Decode, ``, `{"outputs":{"num_tokens":1}}`, "0 token ids"},
		{"prompt length", protocol.Aggregated, ``, `{"prompt_info":{"num_prompt_tokens":4}}`, "num_prompt_tokens is 4"},
		{"logprobs missing", protocol.Aggregated, output(`"logprobs":0`), aToken, "0 logprobs"},
		{"ranks missing", protocol.Decode, output(`"logprobs":0`), `{"outputs":{"num_tokens":1,"token_ids":[7],"logprobs":[-1],"candidate_tokens":[{}]}}`, "0 ranks"},
		{"candidates missing", protocol.Aggregated, output(`"logprobs":0`), `{"outputs":{"num_tokens":1,"token_ids":[7],"logprobs":[-1],"ranks":[1]}}`, "0 candidate lists"},
		{"logprobs without a token", protocol.Aggregated, output(`"logprobs":0`), `{"outputs":{"logprobs":[-1],"finish_info":{"finish_reason":"LENGTH"}}}`, "0 tokens"},
		{"prompt logprobs short", protocol.Aggregated, output(`"prompt_logprobs":0`), `{"prompt_info":{"num_prompt_tokens":3,"token_ids":[1,2,3],"logprobs":[0,-1],"ranks":[0,1,1],"candidate_tokens":[{},{},{}]}}`, "2 logprobs"},
		{"prompt ids missing", protocol.Prefill, output(`"prompt_logprobs":0`), `{"prompt_info":{"num_prompt_tokens":3}}`, "0 ids"},
		{"token count at the end", protocol.Aggregated, ``, `{"outputs":{"num_tokens":1,"token_ids":[7],"finish_info":{"num_output_tokens":2,"finish_reason":"LENGTH"}}}`, "num_output_tokens is 2"},
		{"not finished", protocol.Aggregated, ``, `{"outputs":{"finish_info":{}}}`, "NOT_FINISHED"},
		{"unknown reason", protocol.Aggregated, ``, `{"outputs":{"finish_info":{"finish_reason":9}}}`, "reason 9"},
		{"prefill without parameters, stopped", protocol.Prefill, ``, `{"outputs":{"finish_info":{"finish_reason":"STOP"}}}`, "without kv_transfer_params"},
		{"prefill without parameters", protocol.Prefill, ``, `{"outputs":{"finish_info":{"finish_reason":"LENGTH"}}}`, "without kv_transfer_params"},
		{"parameters that are no number", protocol.Prefill, ``, "", "kv_transfer_params.a[0] is not a finite number"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var m *pb.GenerateResponse
			if row.message != "" {
				m = message(t, row.message)
			} else {
				m = message(t, `{"outputs":{"finish_info":{"finish_reason":"LENGTH","kv_transfer_params":{"a":[1]}}}}`)
				m.Outputs.FinishInfo.KvTransferParams.Fields["a"].GetListValue().Values[0].GetKind().(*numberValue).NumberValue = math.NaN()
			}
			result, err := response(t, row.role, row.members).Convert(m)
			if !errors.Is(err, ErrInvalidResponse) || !strings.HasPrefix(err.Error(), "invalid vLLM gRPC response: ") || !strings.Contains(err.Error(), row.words) {
				t.Errorf("error %v, want %q", err, row.words)
			}
			if result.Output != nil {
				t.Errorf("result %+v beside an error", result)
			}
		})
	}
}

// TestHandoffMark: a hand-off is read off the message whether or not it converts.
func TestHandoffMark(t *testing.T) {
	for _, row := range []struct {
		name    string
		role    protocol.Role
		message string
		want    bool
	}{
		{"a decode hands nothing off", protocol.Decode, `{"outputs":{"finish_info":{"finish_reason":"STOP",` + params + `}}}`, false},
		{"prefill", protocol.Prefill, `{"outputs":{"finish_info":{"finish_reason":"LENGTH",` + params + `}}}`, true},
		{"prefill that does not convert", protocol.Prefill, `{"outputs":{"finish_info":{"finish_reason":"LENGTH","num_output_tokens":9,` + params + `}}}`, true},
		{"aborted prefill", protocol.Prefill, `{"outputs":{"finish_info":{"finish_reason":"ABORTED",` + params + `}}}`, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got, _ := response(t, row.role, ``).Convert(message(t, row.message)); got.Handoff != row.want {
				t.Errorf("got %v, want %v", got.Handoff, row.want)
			}
		})
	}
}

func TestCancelled(t *testing.T) {
	r := response(t, protocol.Decode, output(`"logprobs":0`))
	for range 2 {
		if _, err := r.Convert(message(t, `{"outputs":{"num_tokens":1,"token_ids":[7],"logprobs":[-1],"ranks":[1],"candidate_tokens":[{}]}}`)); err != nil {
			t.Fatal(err)
		}
	}
	want := `{"token_ids":[],"finish_reason":"cancelled","index":null,"completion_usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`
	if got := item(r.Cancelled()); got != want {
		t.Errorf("got %s", got)
	}
	p := response(t, protocol.Prefill, ``)
	if _, err := p.Convert(message(t, aToken)); err != nil {
		t.Fatal(err)
	}
	if u := p.Cancelled().Usage; u.PromptTokens != 3 || u.CompletionTokens != 0 {
		t.Errorf("usage of a cancelled prefill: %+v", u)
	}
}

// TestCachedTokensOfDecode: the decode engine counts what it pulled as cached, which is not what a client is told.
func TestCachedTokensOfDecode(t *testing.T) {
	for _, row := range []struct {
		name, result string
		want         *uint32
	}{
		{"from the prefill's usage", `{"disaggregated_params":{"remote_prefill_cached_tokens":1},"prompt_tokens_details":{"cached_tokens":2}}`, new(uint32(2))},
		{"from the hand-off", `{"disaggregated_params":{"remote_prefill_cached_tokens":1},"prompt_tokens_details":{"cached_tokens":null}}`, new(uint32(1))},
		{"unknown", `{"disaggregated_params":{}}`, nil},
		{"nonsense", `{"disaggregated_params":{"remote_prefill_cached_tokens":-1}}`, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := response(t, protocol.Decode, `"prefill_result":`+row.result)
			result, err := r.Convert(message(t, `{"outputs":{"finish_info":{"finish_reason":"LENGTH","num_cached_tokens":3}}}`))
			if err != nil {
				t.Fatal(err)
			}
			got := result.Output.Usage.CachedTokens
			if (got == nil) != (row.want == nil) || (got != nil && *got != *row.want) {
				t.Errorf("got %v, want %v", got, row.want)
			}
		})
	}
}

// TestCounterSaturates: an engine that counts beyond 32 bits must not wrap around to a small number.
func TestCounterSaturates(t *testing.T) {
	r := response(t, protocol.Aggregated, ``)
	r.completion = math.MaxUint32
	if _, err := r.Convert(message(t, aToken)); err != nil {
		t.Fatal(err)
	}
	if u := r.Cancelled().Usage; u.CompletionTokens != math.MaxUint32 || u.TotalTokens != math.MaxUint32 {
		t.Errorf("usage %+v", u)
	}
}

// TestTokenCostsNoAllocation pins the hot path.
func TestTokenCostsNoAllocation(t *testing.T) {
	withLogprobs := message(t, `{"outputs":{"num_tokens":1,"token_ids":[7],"logprobs":[-0.5],"ranks":[2],"candidate_tokens":[{"tokens":[{"id":6,"logprob":-0.25,"rank":1},{"id":7,"logprob":-0.5,"rank":2}]}]}}`)
	for members, m := range map[string]*pb.GenerateResponse{``: message(t, aToken), output(`"logprobs":2`): withLogprobs} {
		r := response(t, protocol.Aggregated, members)
		if n := testing.AllocsPerRun(100, func() {
			if result, err := r.Convert(m); err != nil || result.Output == nil {
				t.Fatal(result, err)
			}
		}); n != 0 {
			t.Errorf("%q: %v allocations a token", members, n)
		}
	}
}

func BenchmarkToken(b *testing.B) {
	r := response(b, protocol.Aggregated, ``)
	m := message(b, aToken)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Convert(m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	e := engine(protocol.Decode)
	r := decodeRequest(b, with(), 64)
	b.ReportAllocs()
	for b.Loop() {
		if _, refusal := e.Convert("id", r); refusal != nil {
			b.Fatal(refusal)
		}
	}
}
