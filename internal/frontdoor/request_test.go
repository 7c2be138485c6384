package frontdoor

import (
	"net/http"
	"strings"
	"testing"

	"remora/internal/dynamo/protocol"
	"remora/internal/tinymodel"
)

// chatWith is a good chat request with further members.
func chatWith(extra string) string {
	return `{"model":"tiny","messages":[{"role":"user","content":"x"}]` + extra + `}`
}

func TestBadRequests(t *testing.T) {
	for _, tc := range []struct{ body, param, message string }{
		// Chat.
		{``, "", "not valid JSON"},
		{`{"model":`, "", "not valid JSON"},
		{`{"model":"tiny"} x`, "", "not valid JSON"},
		{`[]`, "", "must be a JSON object"},
		{`"x"`, "", "must be a JSON object"},
		{`{"model":"a","model":"b"}`, "", "not valid JSON"},
		{"{\"model\":\"\xff\"}", "", "not valid JSON"},
		{`{"messages":[]}`, "model", "model is missing"},
		{`{"model":7}`, "model", "wrong type: got a number"},
		{`{"model":"tiny"}`, "messages", "at least one message"},
		{`{"model":"tiny","messages":{}}`, "messages", "wrong type: got an object"},
		{`{"model":"tiny","messages":["x"]}`, "messages[0]", "wrong type: got a string"},
		{`{"model":"tiny","messages":[{"role":"user","content":"x"},{"role":9}]}`, "messages[1].role", "wrong type"},
		{`{"model":"tiny","messages":[{"role":"king","content":"x"}]}`, "messages[0].role", "must be one of"},
		{`{"model":"tiny","messages":[{"role":"user"}]}`, "messages[0].content", "is missing"},
		{`{"model":"tiny","messages":[{"role":"user","content":7}]}`, "messages[0].content", "string or an array"},
		{`{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, "messages[0].content", "only parts of type text"},
		{`{"model":"tiny","messages":[{"role":"user","content":["x"]}]}`, "messages[0].content", "array of text parts"},
		{chatWith(`,"n":2`), "n", "n must be 1"},
		{chatWith(`,"n":0`), "n", "n must be 1"},
		{chatWith(`,"temperature":2.1`), "temperature", "between 0 and 2"},
		{chatWith(`,"temperature":"hot"`), "temperature", "wrong type: got a string"},
		{chatWith(`,"top_p":0`), "top_p", "above 0"},
		{chatWith(`,"top_p":1.5`), "top_p", "between 0 and 1"},
		{chatWith(`,"top_k":0`), "top_k", "at least 1"},
		{chatWith(`,"top_k":-1`), "top_k", "leave it out"},
		{chatWith(`,"logit_bias":{"5":100},"guided_json":{}`), "guided_json", "guided_json is not served"},
		{chatWith(`,"temprature":0.5`), "temprature", "not served"},
		{chatWith(`,"tools":[],"tool_choice":"required"`), "tool_choice", "not served"},
		{chatWith(`,"tool_choice":{"type":"function"}`), "tool_choice", "not served"},
		{chatWith(`,"presence_penalty":-3`), "presence_penalty", "between -2 and 2"},
		{chatWith(`,"max_tokens":0`), "max_tokens", "between 1"},
		{chatWith(`,"max_tokens":1.5`), "max_tokens", "wrong type"},
		{chatWith(`,"max_tokens":99999999999`), "max_tokens", "between 1"},
		{chatWith(`,"max_tokens":99999999999999999999`), "max_tokens", "does not fit"},
		{chatWith(`,"max_completion_tokens":-1`), "max_completion_tokens", "between 1"},
		{chatWith(`,"max_tokens":2,"min_tokens":3`), "min_tokens", "above max_tokens"},
		{chatWith(`,"stop":7`), "stop", "string or an array"},
		{chatWith(`,"stop":[7]`), "stop", "string or an array"},
		{chatWith(`,"stop":["a","b","c","d","e"]`), "stop", "at most 4"},
		{chatWith(`,"stop":""`), "stop", "1 to 4096 bytes"},
		{chatWith(`,"stop":"` + strings.Repeat("x", maxStopLength+1) + `"`), "stop", "1 to 4096 bytes"},
		{chatWith(`,"top_logprobs":2`), "top_logprobs", "needs logprobs"},
		{chatWith(`,"logprobs":true,"top_logprobs":21`), "top_logprobs", "between 0 and 20"},
		{chatWith(`,"logprobs":1`), "logprobs", "wrong type"},
		{chatWith(`,"stream_options":{"include_usage":true}`), "stream_options", "only allowed when stream"},
		{chatWith(`,"response_format":{"type":"json_object"}`), "response_format", "only the response format text"},
		// Completions.
		{`{"model":"tiny","prompt":null}`, "prompt", "is missing"},
		{`{"model":"tiny","prompt":""}`, "prompt", "must not be empty"},
		{`{"model":"tiny","prompt":[]}`, "prompt", "must not be empty"},
		{`{"model":"tiny","prompt":["a","b"]}`, "prompt", "has 2 prompts"},
		{`{"model":"tiny","prompt":[[1],[2]]}`, "prompt", "has 2 prompts"},
		{`{"model":"tiny","prompt":[[[1]]]}`, "prompt", "string or an array of token ids"},
		{`{"model":"tiny","prompt":[1,"a"]}`, "prompt", "string or an array of token ids"},
		{`{"model":"tiny","prompt":[512]}`, "prompt", "token id 512"},
		{`{"model":"tiny","prompt":[-1]}`, "prompt", "string or an array of token ids"},
		{`{"model":"tiny","prompt":[null]}`, "prompt", "string or an array of token ids"},
		{`{"model":"tiny","prompt":[97,null]}`, "prompt", "string or an array of token ids"},
		{promptBody(`,"logit_bias":{"5":100}`), "logit_bias", "not served"},
		{`{"model":"tiny","prompt":{}}`, "prompt", "string or an array of token ids"},
		{promptBody(`,"logprobs":21`), "logprobs", "between 0 and 20"},
		{promptBody(`,"logprobs":true`), "logprobs", "wrong type"},
		{promptBody(`,"echo":true`), "echo", "not served"},
		{promptBody(`,"best_of":2`), "best_of", "must be 1"},
		{promptBody(`,"suffix":"x"`), "suffix", "not served"},
		{promptBody(`,"n":3`), "n", "n must be 1"},
	} {
		_, err := readChat([]byte(tc.body), TinyModel{})
		if strings.Contains(tc.body, `"prompt"`) {
			_, err = readCompletion([]byte(tc.body), TinyModel{})
		}
		switch {
		case err == nil:
			t.Errorf("%.80s: accepted", tc.body)
		case err.status != http.StatusBadRequest || err.param != tc.param || !strings.Contains(err.message, tc.message):
			t.Errorf("%.80s: %v, param %q; want %q, %q", tc.body, err, err.param, tc.message, tc.param)
		}
	}
}

func TestGoodRequests(t *testing.T) {
	for _, body := range []string{
		chatWith(`,"tools":[{"type":"function"}],"tool_choice":"auto","logit_bias":null,"user":"me","n":1,"stop":null,"temperature":null,"response_format":{"type":"text"}`),
		chatWith(`,"stream":true,"stream_options":{"include_usage":false,"x":1},"max_tokens":null,"max_completion_tokens":5`),
		chatWith(`,"top_k":1,"min_tokens":0,"ignore_eos":false,"seed":-5,"stop":["a","b","c","d"],"logprobs":false,"top_logprobs":0`),
		`{"model":"tiny","messages":[{"role":"developer","content":"x"},{"role":"assistant","content":null},{"role":"tool","content":""}]}`,
	} {
		if _, err := readChat([]byte(body), TinyModel{}); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	g, err := readChat([]byte(`{"model":"tiny","max_tokens":3,"max_completion_tokens":5,
		"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`), TinyModel{})
	if err != nil {
		t.Fatal(err)
	}
	want, _ := tinymodel.RenderChat([]tinymodel.Message{{Role: "user", Content: "a\nb"}}, true)
	if got := tinymodel.Encode(want); *g.maxTokens != 5 || len(got) != len(g.prompt) {
		t.Errorf("%+v", g)
	}
}

// Errors over HTTP: status and shape.
func TestErrorShape(t *testing.T) {
	d := openDoor(t, nil)
	d.serve(protocol.Aggregated)
	long := strings.Repeat("1,", tinymodel.MaxContext-1)
	for _, tc := range []struct {
		method, path, body  string
		status              int
		kind, param, code   any
		allow, errorMessage string
	}{
		{"POST", chatPath, `{`, 400, "invalid_request_error", nil, nil, "", "not valid JSON"},
		{"POST", chatPath, chatWith(`,"n":2`), 400, "invalid_request_error", "n", nil, "", "n must be 1"},
		{"POST", chatPath, `{"model":"no","messages":[{"role":"user","content":"x"}]}`, 404, "invalid_request_error", "model", "model_not_found", "", `"no" does not exist`},
		{"POST", completionPath, `{"model":"tiny","prompt":[` + long + `1]}`, 400, "invalid_request_error", nil, "context_length_exceeded", "", "8192 tokens"},
		{"POST", completionPath, strings.Repeat(" ", maxBody+1), 413, "invalid_request_error", nil, nil, "", "larger than"},
		{"GET", chatPath, ``, 405, "invalid_request_error", nil, nil, "POST", "wants POST"},
		{"POST", "/v1/models", ``, 405, "invalid_request_error", nil, nil, "GET", "wants GET"},
		{"GET", "/v1/models/tin", ``, 404, "invalid_request_error", "model", "model_not_found", "", `"tin" does not exist`},
		{"GET", "/nowhere", ``, 404, "invalid_request_error", nil, nil, "", "nothing at /nowhere"},
	} {
		r := d.send(tc.method, tc.path, tc.body)
		message, _ := r.get(t, "error.message").(string)
		if r.status != tc.status || r.get(t, "error.type") != tc.kind || r.get(t, "error.param") != tc.param ||
			r.get(t, "error.code") != tc.code || r.header.Get("Allow") != tc.allow || r.header.Get("Content-Length") == "" || !strings.Contains(message, tc.errorMessage) {
			t.Errorf("%s %s %.60s: %d %s", tc.method, tc.path, tc.body, r.status, r.body)
		}
	}
	d.noCall()
}

func TestTooManyRequests(t *testing.T) {
	d := openDoor(t, func(c *Config) { c.MaxRequests = 1 })
	d.serve(protocol.Aggregated)
	first := d.post(completionPath, promptBody(""))
	c := d.call()
	if r := d.send("POST", completionPath, promptBody("")); r.status != 529 || r.get(t, "error.type") != "service_unavailable" {
		t.Errorf("%d %s", r.status, r.body)
	}
	for range 2 { // the place is free again for the next
		c.accept()
		c.finish(protocol.FinishStop)
		if r := <-first; r.status != 200 {
			t.Errorf("%d %s", r.status, r.body)
		}
		d.await(func() bool { return len(d.server.slots) == 0 })
		first = d.post(completionPath, promptBody(""))
		c = d.call()
	}
	c.accept()
	c.finish(protocol.FinishStop)
	<-first
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(chatWith(`,"stop":["a"],"logprobs":true,"top_logprobs":3`)))
	f.Add([]byte(promptBody(`,"stop":"x","logprobs":2,"min_tokens":1,"ignore_eos":true`)))
	f.Add([]byte(`{"model":"tiny","prompt":[[1,2,3]],"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}`))
	f.Add([]byte(`{"model":"tiny","prompt":["\ud83d\ude00"],"max_tokens":1e3}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, read := range []func([]byte, Model) (*generation, *httpError){readChat, readCompletion} {
			g, err := read(body, TinyModel{})
			if (g == nil) == (err == nil) {
				t.Fatalf("%+v, %v", g, err)
			}
			if err != nil {
				if err.status != http.StatusBadRequest || err.message == "" {
					t.Fatalf("%v", err)
				}
				continue
			}
			if g.model == "" || len(g.prompt) == 0 || len(g.stops) > maxStops || (g.maxTokens != nil && *g.maxTokens == 0) {
				t.Fatalf("%+v", g)
			}
			for _, id := range preprocess(g, TinyModel{}.EOS()).TokenIDs {
				if id >= tinymodel.VocabSize {
					t.Fatalf("id %d", id)
				}
			}
		}
	})
}

func FuzzStopMatcher(f *testing.F) {
	f.Add("abcabd", "abd", "ca", uint8(2))
	f.Add("aaaaab", "aab", "b", uint8(1))
	f.Fuzz(func(t *testing.T, text, one, two string, size uint8) {
		if one == "" || two == "" || size == 0 {
			return
		}
		m := stopMatcher{stops: []string{one, two}}
		var shown strings.Builder
		matched := false
		for rest := text; rest != "" && !matched; {
			n := min(int(size), len(rest))
			var piece string
			piece, matched = m.push(rest[:n])
			shown.WriteString(piece)
			rest = rest[n:]
			if !matched && len(m.held) >= max(len(one), len(two)) {
				t.Fatalf("held %q", m.held)
			}
		}
		if !matched {
			shown.WriteString(m.flush())
		}
		switch got := shown.String(); {
		case !strings.HasPrefix(text, got):
			t.Fatalf("%q shown of %q", got, text)
		case !matched && (got != text || strings.Contains(text, one) || strings.Contains(text, two)):
			t.Fatalf("%q shown of %q, no match", got, text)
		case strings.Contains(got, one) || strings.Contains(got, two):
			if matched {
				t.Fatalf("a stop string was shown: %q", got)
			}
		}
	})
}
