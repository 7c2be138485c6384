package frontdoor

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"

	"remora/internal/dynamo/protocol"
	"remora/internal/tinymodel"
)

const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
	chatBody       = `{"model":"tiny","messages":[{"role":"user","content":"Hello"}],"max_tokens":9,"temperature":0,"seed":7}`
	streamBody     = `{"model":"tiny","messages":[{"role":"user","content":"Hello"}],"stream":true}`
)

func promptBody(extra string) string { return `{"model":"tiny","prompt":"Hello"` + extra + `}` }

func TestChatWhole(t *testing.T) {
	d := openDoor(t, nil)
	d.serve(protocol.Aggregated)
	answer := d.post(chatPath, chatBody)
	c := d.call()
	text, err := tinymodel.RenderChat([]tinymodel.Message{{Role: "user", Content: "Hello"}}, true)
	d.must(err)
	if !slices.Equal(c.request.TokenIDs, tinymodel.Encode(text)) || c.request.Model != "tiny" {
		t.Errorf("request %+v", c.request)
	}
	stop, sampling := c.request.StopConditions, c.request.SamplingOptions
	if *stop.MaxTokens != 9 || !slices.Equal(stop.StopTokenIDsHidden, []uint32{tinymodel.EOS}) || stop.Stop != nil {
		t.Errorf("stop conditions %+v", stop)
	}
	if *sampling.Temperature != 0 || *sampling.Seed != 7 || sampling.TopP != nil || c.request.OutputOptions.Logprobs != nil {
		t.Errorf("sampling options %+v", sampling)
	}
	c.accept()
	c.tokens(tinymodel.Encode(" the")...)
	c.tokens(tinymodel.Encode(" world")...)
	c.finish(protocol.FinishLength)
	r := <-answer
	if r.status != http.StatusOK || r.get(t, "object") != "chat.completion" || r.get(t, "id") != "chatcmpl-"+c.id {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r.get(t, "choices.0.message.content") != " the world" || r.get(t, "choices.0.message.role") != "assistant" ||
		r.get(t, "choices.0.finish_reason") != "length" || r.get(t, "choices.0.logprobs") != nil {
		t.Errorf("%s", r.body)
	}
	if r.get(t, "usage.prompt_tokens") != float64(len(c.request.TokenIDs)) || r.get(t, "usage.completion_tokens") != 2.0 {
		t.Errorf("%s", r.body)
	}
}

// The headers come with the worker's prologue, the first chunk with the first token.
func TestChatStream(t *testing.T) {
	d := openDoor(t, nil)
	d.serve(protocol.Aggregated)
	e := d.open(chatPath, streamBody)
	c := d.call()
	c.accept()
	e.headers()
	c.tokens('h')
	first := e.next()
	if pick(t, first, "choices.0.delta.role") != "assistant" || pick(t, first, "choices.0.delta.content") != "h" ||
		pick(t, first, "object") != "chat.completion.chunk" || strings.Contains(first, "usage") {
		t.Errorf("first chunk %s", first)
	}
	for _, b := range []byte("é😀") {
		c.tokens(uint32(b))
	}
	c.data(protocol.EngineOutput{TokenIDs: []uint32{0xe2, 0x82}, FinishReason: protocol.FinishEOS})
	c.close()
	if text, finish := e.rest("choices.0.delta.content"); text != "é😀\uFFFD" || finish != "stop" {
		t.Errorf("%q, %q", text, finish)
	}
}

func TestStreamNeverSplitsACharacter(t *testing.T) {
	d := openDoor(t, nil)
	d.serve(protocol.Aggregated)
	e := d.open(completionPath, promptBody(`,"stream":true`))
	c := d.call()
	c.accept()
	e.headers()
	for _, b := range []byte("😀é") {
		c.tokens(uint32(b))
	}
	c.finish(protocol.FinishStop)
	for _, want := range []string{"😀", "é", ""} {
		if got := pick(t, e.next(), "choices.0.text"); got != want {
			t.Errorf("chunk %q, want %q", got, want)
		}
	}
}

func TestUsageInStream(t *testing.T) {
	d := openDoor(t, nil)
	d.serve(protocol.Aggregated)
	e := d.open(completionPath, promptBody(`,"stream":true,"stream_options":{"include_usage":true}`))
	c := d.call()
	c.accept()
	e.headers()
	c.tokens('x')
	if chunk := e.next(); !strings.Contains(chunk, `"usage":null`) {
		t.Errorf("chunk %s", chunk)
	}
	cached := uint32(3)
	c.data(protocol.EngineOutput{FinishReason: protocol.FinishLength, Usage: &protocol.Usage{
		PromptTokens: 4, CompletionTokens: 5, TotalTokens: 9, CachedTokens: &cached,
	}})
	c.close()
	e.next()
	last := e.next()
	if !strings.Contains(last, `"choices":[]`) || pick(t, last, "usage.total_tokens") != 9.0 ||
		pick(t, last, "usage.prompt_tokens_details.cached_tokens") != 3.0 {
		t.Errorf("usage chunk %s", last)
	}
	if done := e.next(); done != "[DONE]" {
		t.Errorf("got %s", done)
	}
}

func TestStops(t *testing.T) {
	long := strings.Repeat("ab", 50)
	for _, tc := range []struct {
		name, extra  string
		pieces       []string
		text, finish string
		killed       bool
	}{
		{"across tokens", `,"stop":["END"]`, []string{"xE", "N", "Dy"}, "x", "stop", true},
		{"a false start is shown", `,"stop":"END"`, []string{"xE", "N", "E", "ND"}, "xEN", "stop", true},
		{"one of several", `,"stop":["zz","b"]`, []string{"abc"}, "a", "stop", true},
		{"the first in the text", `,"stop":["e","o"]`, []string{"Hello"}, "H", "stop", true},
		{"not there", `,"stop":["END"]`, []string{"xEN"}, "xEN", "length", false},
		{"a character", `,"stop":["€"]`, []string{"a\xe2", "\x82", "\xac!"}, "a", "stop", true},
		{"long", `,"stop":["` + long + `c"]`, []string{long, "ab", "c"}, "ab", "stop", true},
		{"min_tokens", `,"stop":["x"],"min_tokens":2`, []string{"x", "x", "x"}, "xx", "stop", true},
		{"ignore_eos", `,"stop":["x"],"ignore_eos":true`, []string{"x", "<|eos|>", "x"}, "xx", "length", false},
		{"hidden id", ``, []string{"a", "<|eos|>", "b"}, "a", "stop", true},
		{"special", ``, []string{"a", "<|end|>", "b"}, "ab", "length", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := openDoor(t, nil)
			d.serve(protocol.Aggregated)
			answer := d.post(completionPath, promptBody(tc.extra))
			c := d.call()
			c.accept()
			for _, piece := range tc.pieces {
				c.tokens(tinymodel.Encode(piece)...)
			}
			if !tc.killed {
				c.finish(protocol.FinishLength)
			}
			r := <-answer
			if r.get(t, "choices.0.text") != tc.text || r.get(t, "choices.0.finish_reason") != tc.finish {
				t.Errorf("%s", r.body)
			}
			c.awaitKill(t) // after a regular end it is only a release; before one it cuts
		})
	}
}

// TestStopInTheLastItem: where the worker ends by itself there is nothing to cut, and its end is awaited.
func TestStopInTheLastItem(t *testing.T) {
	for _, tc := range []struct {
		finish protocol.FinishReason
		end    error
		status int
		tokens float64 // of the answer
	}{
		{protocol.FinishLength, io.EOF, 200, 9}, // as the worker counts
		{protocol.FinishLength, ErrUnavailable, 503, 0},
		{"", ErrUnavailable, 200, 2}, // cut, so nobody else has counted
	} {
		d := openDoor(t, nil)
		d.serve(protocol.Aggregated)
		answer := d.post(completionPath, promptBody(`,"stop":"b"`))
		c := d.call()
		c.accept()
		c.data(protocol.EngineOutput{
			TokenIDs: []uint32{'a', 'b', 'c'}, FinishReason: tc.finish,
			Usage: &protocol.Usage{PromptTokens: 1, CompletionTokens: 9, TotalTokens: 10},
		})
		c.end <- tc.end
		r := <-answer
		if r.status != tc.status {
			t.Errorf("%+v: %d %s", tc, r.status, r.body)
		}
		if r.status == http.StatusOK && (r.get(t, "choices.0.text") != "a" || r.get(t, "choices.0.finish_reason") != "stop" ||
			r.get(t, "usage.completion_tokens") != tc.tokens) {
			t.Errorf("%+v: %s", tc, r.body)
		}
	}
}

// TestLogprobsOfHeldTokens: a chunk has those of every token that its text is made of, and only numbers that JSON knows.
func TestLogprobsOfHeldTokens(t *testing.T) {
	d := openDoor(t, nil)
	d.serve(protocol.Aggregated)
	e := d.open(completionPath, promptBody(`,"stream":true,"logprobs":0`))
	c := d.call()
	c.accept()
	e.headers()
	if n := c.request.OutputOptions.Logprobs; n == nil || *n != 1 { // 0 would be none at all
		t.Errorf("%+v", c.request.OutputOptions)
	}
	for i, b := range []byte("€") {
		c.data(protocol.EngineOutput{TokenIDs: []uint32{uint32(b)}, LogProbs: []float64{[]float64{-1, math.NaN(), math.Inf(-1)}[i]}})
	}
	c.finish(protocol.FinishLength)
	if chunk := e.next(); pick(t, chunk, "choices.0.text") != "€" || !strings.Contains(chunk, `"token_logprobs":[-1,-9999,-9999]`) ||
		!strings.Contains(chunk, `"text_offset":[0,1,2]`) {
		t.Errorf("%s", chunk)
	}
}

// TestLongestWholeAnswer: a worker that never ends does not fill the memory.
func TestLongestWholeAnswer(t *testing.T) {
	a := new(wholeAnswer)
	if err := a.add(delta{text: strings.Repeat("x", maxWholeText)}); err != nil {
		t.Fatal(err)
	}
	if err := a.add(delta{text: "x"}); err == nil {
		t.Error("taken")
	}
}

// An item's own text is passed on: neither stop strings nor hidden ids count in it.
func TestTextOfTheWorkerIsPassedOn(t *testing.T) {
	d := openDoor(t, nil)
	d.serve(protocol.Aggregated)
	answer := d.post(completionPath, promptBody(`,"stop":["b"],"logprobs":1`))
	c := d.call()
	c.accept()
	for _, text := range []string{"ab", "", "c\xff"} {
		c.data(protocol.EngineOutput{TokenIDs: []uint32{tinymodel.EOS}, Text: &text})
	}
	c.finish(protocol.FinishEOS)
	r := <-answer
	if r.get(t, "choices.0.text") != "abc\uFFFD" || r.get(t, "usage.completion_tokens") != 3.0 {
		t.Errorf("%s", r.body)
	}
}

func TestLogprobs(t *testing.T) {
	out := protocol.EngineOutput{
		TokenIDs: []uint32{'a', 0xe2}, LogProbs: []float64{-0.5, -1},
		TopLogprobs: [][]protocol.TopLogprob{
			{{Rank: 1, TokenID: 'a', Logprob: -0.5}, {Rank: 2, TokenID: 'b', Logprob: -2}},
			{{Rank: 1, TokenID: 0xe2, Logprob: -1}, {Rank: 2, TokenID: 0xe3, Logprob: -3}},
		},
		FinishReason: protocol.FinishLength,
	}
	d := openDoor(t, nil)
	d.serve(protocol.Aggregated)

	answer := d.post(chatPath, `{"model":"tiny","messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":1}`)
	c := d.call()
	if *c.request.OutputOptions.Logprobs != 1 {
		t.Errorf("output options %+v", c.request.OutputOptions)
	}
	c.accept()
	c.data(out)
	c.close()
	r := <-answer
	first, second := "choices.0.logprobs.content.0.", "choices.0.logprobs.content.1."
	if r.get(t, first+"token") != "a" || r.get(t, first+"logprob") != -0.5 || r.get(t, first+"top_logprobs.0.token") != "a" ||
		r.get(t, second+"token") != "\uFFFD" || r.get(t, second+"bytes.0") != 226.0 || strings.Contains(r.body, `"b"`) {
		t.Errorf("chat: %s", r.body)
	}

	answer = d.post(completionPath, promptBody(`,"logprobs":2`))
	c = d.call()
	c.accept()
	c.data(out)
	c.close()
	r = <-answer
	if r.get(t, "choices.0.logprobs.tokens.0") != "a" || r.get(t, "choices.0.logprobs.token_logprobs.1") != -1.0 ||
		!strings.Contains(r.body, `{"a":-0.5,"b":-2}`) || r.get(t, "choices.0.logprobs.top_logprobs.1.\uFFFD") != -1.0 || r.get(t, "choices.0.logprobs.text_offset.1") != 1.0 {
		t.Errorf("completion: %s", r.body)
	}
}

func TestPrompts(t *testing.T) {
	d := openDoor(t, nil)
	d.serve(protocol.Aggregated)
	for _, prompt := range []string{`"Hello"`, `["Hello"]`, fmt.Sprint("[", tinymodel.Encode("Hello")[0], "]"), `[[376]]`} {
		answer := d.post(completionPath, `{"model":"tiny","prompt":`+prompt+`}`)
		c := d.call()
		if !slices.Equal(c.request.TokenIDs, []uint32{376}) {
			t.Errorf("%s: %v", prompt, c.request.TokenIDs)
		}
		c.accept()
		c.finish(protocol.FinishStop)
		<-answer
	}
}

// Worker failures before the answer has begun: the status, and a text that tells the client no more than it may know.
func TestWorkerFailures(t *testing.T) {
	kind := func(backend bool, name string) protocol.ErrorKind {
		return protocol.ErrorKind{Backend: backend, Name: name}
	}
	refusal := func(k protocol.ErrorKind) error {
		return &RefusedError{&protocol.Error{Kind: k, Message: "secret", Public: "public"}}
	}
	for _, tc := range []struct {
		name          string
		send, ready   error
		item          protocol.ErrorKind
		end           error
		finish        protocol.FinishReason
		status        int
		public        bool
		statusInEvent int // of the same failure in a stream, where it has begun by then
	}{
		{name: "overloaded", send: fmt.Errorf("x: %w", ErrOverloaded), status: 529},
		{name: "unavailable", send: ErrUnavailable, status: 503},
		{name: "no acknowledgement", send: ErrTimeout, status: 504},
		{name: "not reached", send: ErrNotReached, status: 503},
		{name: "refused argument", ready: refusal(protocol.ErrorBackendInvalidArgument), status: 400, public: true},
		{name: "refused overload", ready: refusal(protocol.ErrorWorkerOverloaded), status: 529},
		{name: "refused unknown", ready: refusal(protocol.ErrorBackendUnknown), status: 500},
		{name: "refused otherwise", ready: refusal(protocol.ErrorBackendCancelled), status: 503, public: true},
		{name: "never connected", ready: ErrUnavailable, status: 503},
		{name: "argument", item: protocol.ErrorInvalidArgument, status: 400, public: true, statusInEvent: 400},
		{name: "shutdown", item: protocol.ErrorBackendEngineShutdown, status: 503, public: true, statusInEvent: 503},
		{name: "disconnected", item: protocol.ErrorBackendDisconnected, status: 503, public: true, statusInEvent: 503},
		{name: "timeout", item: protocol.ErrorBackendTimeout, status: 504, public: true, statusInEvent: 504},
		{name: "exhausted", item: protocol.ErrorResourceExhausted, status: 529, statusInEvent: 529},
		{name: "cancelled", item: protocol.ErrorBackendCancelled, status: 499, statusInEvent: 499},
		{name: "unknown", item: kind(false, "Newer"), status: 500, statusInEvent: 500},
		{name: "broken off", end: ErrUnavailable, status: 503, statusInEvent: 503},
		{name: "no finish", end: io.EOF, status: 503, statusInEvent: 503},
		{name: "garbage", end: ErrProtocol, status: 500, statusInEvent: 500},
		{name: "finish error", finish: protocol.FinishError, status: 500, statusInEvent: 500},
	} {
		play := func(d *door) {
			if tc.send != nil {
				return
			}
			c := d.call()
			c.ready <- tc.ready
			c.tokens('x')
			switch {
			case tc.item.Name != "":
				c.items <- protocol.Item{Error: &protocol.Error{Kind: tc.item, Message: "secret", Public: "public"}}
			case tc.end != nil:
				c.end <- tc.end
			case tc.finish != "":
				c.data(protocol.EngineOutput{FinishReason: tc.finish, FinishMessage: "secret"})
			}
		}
		t.Run(tc.name, func(t *testing.T) {
			d := openDoor(t, nil)
			d.serve(protocol.Aggregated)
			d.plane.refuse(1, tc.send)
			answer := d.post(completionPath, promptBody(""))
			play(d)
			r := <-answer
			message, _ := r.get(t, "error.message").(string)
			if r.status != tc.status || (message == "public") != tc.public || message == "secret" || r.get(t, "error.type") == "" {
				t.Errorf("%d %s", r.status, r.body)
			}
			if tc.statusInEvent == 0 {
				return
			}
			e := d.open(completionPath, promptBody(`,"stream":true`))
			play(d)
			e.headers()
			e.next()
			event := e.next()
			if pick(t, event, "error.code") != float64(tc.statusInEvent) || strings.Contains(event, "secret") ||
				(tc.item.Name != "" && pick(t, event, "error.message") != "public") {
				t.Errorf("event %s", event)
			}
			if done := e.next(); done != "[DONE]" {
				t.Errorf("after the error: %s", done)
			}
		})
	}
}

func TestAnotherInstanceWhereOneIsNotReached(t *testing.T) {
	d := openDoor(t, nil)
	d.serve(protocol.Aggregated, protocol.Aggregated)
	d.plane.refuse(1, ErrNotReached)
	for range 3 {
		answer := d.post(completionPath, promptBody(""))
		c := d.call()
		if c.to.ID != 2 {
			t.Errorf("instance %d", c.to.ID)
		}
		c.accept()
		c.finish(protocol.FinishStop)
		if r := <-answer; r.status != http.StatusOK {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
	d.plane.refuse(1, ErrUnavailable) // it has the request, perhaps: nobody else may get it
	var statuses []int
	for range 2 {
		answer := d.post(completionPath, promptBody(""))
		select {
		case c := <-d.plane.calls:
			c.accept()
			c.finish(protocol.FinishStop)
			statuses = append(statuses, (<-answer).status)
		case r := <-answer:
			statuses = append(statuses, r.status)
		}
	}
	slices.Sort(statuses)
	if !slices.Equal(statuses, []int{200, 503}) {
		t.Errorf("statuses %v", statuses)
	}
}
