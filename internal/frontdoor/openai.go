package frontdoor

import (
	"strings"

	"remora/internal/dynamo/protocol"
)

// head is what every chunk and every whole answer begins with.
type head struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"` // seconds
	Model   string `json:"model"`
}

type usageJSON struct {
	PromptTokens     uint32       `json:"prompt_tokens"`
	CompletionTokens uint32       `json:"completion_tokens"`
	TotalTokens      uint32       `json:"total_tokens"`
	PromptDetails    *cachedCount `json:"prompt_tokens_details,omitzero"`
}

type cachedCount struct {
	CachedTokens uint32 `json:"cached_tokens"`
}

func (u usage) json() *usageJSON {
	out := &usageJSON{PromptTokens: u.prompt, CompletionTokens: u.completion, TotalTokens: u.prompt + u.completion}
	if u.cached != nil {
		out.PromptDetails = &cachedCount{*u.cached}
	}
	return out
}

// body is a chunk, or the whole answer. Usage is a null in chunks of a client that asked for usage, absent for others.
type body[C any] struct {
	head

	Choices []C         `json:"choices"`
	Usage   **usageJSON `json:"usage,omitzero"`
}

// dialect is the form of one route's answers.
type dialect interface {
	idPrefix() string
	// chunk gives the body for one delta of a stream; first says that it is the stream's first.
	chunk(h head, d delta, first bool, u **usageJSON) any
	// usageChunk gives the chunk without choices that ends a stream whose client asked for usage.
	usageChunk(h head, u **usageJSON) any
	// whole gives the body of an answer that is not streamed; its delta holds all of it.
	whole(h head, d delta, u **usageJSON) any
}

// errorJSON is OpenAI's error body. Param and Code are null where empty; Code is a number in a stream.
type errorJSON struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    any     `json:"code"`
	} `json:"error"`
}

func (e *httpError) json() *errorJSON {
	out := new(errorJSON)
	out.Error.Message, out.Error.Type = e.message, e.kind
	if e.param != "" {
		out.Error.Param = &e.param
	}
	if e.code != "" {
		out.Error.Code = e.code
	}
	return out
}

// orNull is a string that is null on the wire where empty.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// The chat dialect.

type chatDialect struct {
	model       Model
	logprobs    bool
	topLogprobs int
}

type chatChoice struct {
	Index        int           `json:"index"`
	Message      *chatText     `json:"message,omitzero"` // whole answers
	Delta        *chatText     `json:"delta,omitzero"`   // chunks
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

type chatText struct {
	Role    string  `json:"role,omitzero"`
	Content *string `json:"content,omitzero"`
}

type chatLogprobs struct {
	Content []chatToken `json:"content"`
}

type chatToken struct {
	chatTop

	TopLogprobs []chatTop `json:"top_logprobs"`
}

type chatTop struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

func (chatDialect) idPrefix() string { return "chatcmpl-" }

func (c chatDialect) chunk(h head, d delta, first bool, u **usageJSON) any {
	h.Object = "chat.completion.chunk"
	text := &chatText{}
	if first {
		text.Role = "assistant"
	}
	if d.text != "" || first {
		text.Content = &d.text
	}
	return body[chatChoice]{h, []chatChoice{{Delta: text, Logprobs: c.tokens(d.tokens), FinishReason: orNull(d.finish)}}, u}
}

func (chatDialect) usageChunk(h head, u **usageJSON) any {
	h.Object = "chat.completion.chunk"
	return body[chatChoice]{h, []chatChoice{}, u}
}

func (c chatDialect) whole(h head, d delta, u **usageJSON) any {
	h.Object = "chat.completion"
	text := &chatText{Role: "assistant", Content: &d.text}
	return body[chatChoice]{h, []chatChoice{{Message: text, Logprobs: c.tokens(d.tokens), FinishReason: orNull(d.finish)}}, u}
}

func (c chatDialect) tokens(tokens []tokenLogprob) *chatLogprobs {
	if !c.logprobs {
		return nil
	}
	out := &chatLogprobs{Content: make([]chatToken, 0, len(tokens))}
	for _, t := range tokens {
		token := chatToken{chatTop: c.top(t.id, t.logprob), TopLogprobs: []chatTop{}}
		for _, top := range firstN(t.top, c.topLogprobs) {
			token.TopLogprobs = append(token.TopLogprobs, c.top(top.TokenID, finite(top.Logprob)))
		}
		out.Content = append(out.Content, token)
	}
	return out
}

func (c chatDialect) top(id uint32, logprob float64) chatTop {
	raw := c.model.TokenBytes(id)
	bytes := make([]int, len(raw))
	for i, b := range raw {
		bytes[i] = int(b)
	}
	return chatTop{Token: tokenText(raw), Logprob: logprob, Bytes: bytes}
}

// The completions dialect.

type completionDialect struct {
	model       Model
	logprobs    bool
	topLogprobs int
	offset      int // characters of text before the next token; one answer's
}

type completionChoice struct {
	Index        int                 `json:"index"`
	Text         string              `json:"text"`
	Logprobs     *completionLogprobs `json:"logprobs"`
	FinishReason *string             `json:"finish_reason"`
}

type completionLogprobs struct {
	Tokens        []string             `json:"tokens"`
	TokenLogprobs []float64            `json:"token_logprobs"`
	TopLogprobs   []map[string]float64 `json:"top_logprobs"`
	TextOffset    []int                `json:"text_offset"`
}

func (*completionDialect) idPrefix() string { return "cmpl-" }

func (c *completionDialect) chunk(h head, d delta, _ bool, u **usageJSON) any {
	return c.whole(h, d, u)
}

func (*completionDialect) usageChunk(h head, u **usageJSON) any {
	h.Object = "text_completion"
	return body[completionChoice]{h, []completionChoice{}, u}
}

func (c *completionDialect) whole(h head, d delta, u **usageJSON) any {
	h.Object = "text_completion"
	choice := completionChoice{Text: d.text, Logprobs: c.tokens(d.tokens), FinishReason: orNull(d.finish)}
	return body[completionChoice]{h, []completionChoice{choice}, u}
}

func (c *completionDialect) tokens(tokens []tokenLogprob) *completionLogprobs {
	if !c.logprobs {
		return nil
	}
	out := &completionLogprobs{[]string{}, []float64{}, []map[string]float64{}, []int{}}
	for _, t := range tokens {
		text := tokenText(c.model.TokenBytes(t.id))
		top := make(map[string]float64, c.topLogprobs)
		for _, candidate := range firstN(t.top, c.topLogprobs) {
			other := tokenText(c.model.TokenBytes(candidate.TokenID))
			if _, ok := top[other]; !ok { // parts of characters look alike; the first is the sampled or the likelier one
				top[other] = finite(candidate.Logprob)
			}
		}
		out.Tokens = append(out.Tokens, text)
		out.TokenLogprobs = append(out.TokenLogprobs, t.logprob)
		out.TopLogprobs = append(out.TopLogprobs, top)
		out.TextOffset = append(out.TextOffset, c.offset)
		c.offset += len([]rune(text))
	}
	return out
}

// firstN gives the first n alternatives; engines send the sampled token beside those that were asked for.
func firstN(top []protocol.TopLogprob, n int) []protocol.TopLogprob { return top[:min(n, len(top))] }

// tokenText is a token's text on its own; a part of a character shows as U+FFFD, its bytes tell more.
func tokenText(raw []byte) string { return strings.ToValidUTF8(string(raw), "\uFFFD") }
