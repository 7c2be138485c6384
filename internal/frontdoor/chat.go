package frontdoor

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// chatRequest is what is read of a body for /v1/chat/completions.
type chatRequest struct {
	common

	Messages            []chatMessage `json:"messages"`
	MaxCompletionTokens *int64        `json:"max_completion_tokens"`
	Logprobs            *bool         `json:"logprobs"`
	TopLogprobs         *int64        `json:"top_logprobs"`
	ResponseFormat      *struct {
		Type string `json:"type"`
	} `json:"response_format"`
}

type chatMessage struct {
	Role    string         `json:"role"`
	Content jsontext.Value `json:"content"`
}

// readChat checks a chat request and makes its prompt.
func readChat(body []byte, model Model) (*generation, *httpError) {
	var r chatRequest
	if err := parse(body, &r); err != nil {
		return nil, err
	}
	if r.MaxCompletionTokens != nil { // the newer name wins
		if _, err := count("max_completion_tokens", r.MaxCompletionTokens, 1); err != nil {
			return nil, err
		}
		r.MaxTokens = r.MaxCompletionTokens
	}
	g := new(generation)
	if err := r.check(g); err != nil {
		return nil, err
	}
	g.logprobs = r.Logprobs != nil && *r.Logprobs
	if r.TopLogprobs != nil {
		if *r.TopLogprobs < 0 || *r.TopLogprobs > maxTopLogprob {
			return nil, badRequest("top_logprobs", "top_logprobs must be between 0 and %d", maxTopLogprob)
		}
		if !g.logprobs && *r.TopLogprobs > 0 {
			return nil, badRequest("top_logprobs", "top_logprobs needs logprobs to be true")
		}
		g.topLogprobs = int(*r.TopLogprobs)
	}
	if r.ResponseFormat != nil && r.ResponseFormat.Type != "text" {
		return nil, badRequest("response_format", "only the response format text is served here")
	}
	messages, err := readMessages(r.Messages)
	if err != nil {
		return nil, err
	}
	prompt, renderErr := model.RenderChat(messages)
	if renderErr != nil {
		return nil, badRequest("messages", "the chat template does not take these messages: %s", renderErr)
	}
	g.prompt = prompt
	return g, nil
}

func readMessages(in []chatMessage) ([]Message, *httpError) {
	if len(in) == 0 {
		return nil, badRequest("messages", "messages must have at least one message")
	}
	roles := []string{"system", "developer", "user", "assistant", "tool"}
	out := make([]Message, len(in))
	for i, m := range in {
		at := "messages[" + itoa(i) + "]"
		if !slices.Contains(roles, m.Role) {
			return nil, badRequest(at+".role", "%s.role must be one of %s", at, strings.Join(roles, ", "))
		}
		text, err := readContent(at+".content", m.Content, m.Role == "assistant")
		if err != nil {
			return nil, err
		}
		out[i] = Message{Role: m.Role, Content: text}
	}
	return out, nil
}

// readContent reads a string, or an array of text parts, which are joined by line ends as the stock frontend joins them. An
// assistant's may be absent: its turn was a tool call.
func readContent(param string, raw jsontext.Value, optional bool) (string, *httpError) {
	switch raw.Kind() {
	case 0, 'n':
		if optional {
			return "", nil
		}
		return "", badRequest(param, "%s is missing", param)
	case '"':
		var text string
		err := parse(raw, &text)
		return text, err
	case '[':
		var parts []struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		if err := json.Unmarshal(raw, &parts); err != nil {
			return "", badRequest(param, "%s must be a string or an array of text parts", param)
		}
		texts := make([]string, len(parts))
		for i, part := range parts {
			switch {
			case part.Type != "text":
				return "", badRequest(param, "%s: only parts of type text are served here, not %.40q; media need the stock frontend", param, part.Type)
			case part.Text == nil:
				return "", badRequest(param, "%s: a part of type text has no text", param)
			}
			texts[i] = *part.Text
		}
		return strings.Join(texts, "\n"), nil
	default:
		return "", badRequest(param, "%s must be a string or an array of text parts", param)
	}
}
