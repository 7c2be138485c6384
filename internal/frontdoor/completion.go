package frontdoor

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

func itoa(i int) string { return strconv.Itoa(i) }

// completionRequest is what is read of a body for /v1/completions.
type completionRequest struct {
	common

	Prompt   jsontext.Value `json:"prompt"`
	Logprobs *int64         `json:"logprobs"`
	Echo     *bool          `json:"echo"`
	BestOf   *int64         `json:"best_of"`
	Suffix   *string        `json:"suffix"`
}

// readCompletion checks a completion request and makes its prompt.
func readCompletion(body []byte, model Model) (*generation, *httpError) {
	var r completionRequest
	if err := parse(body, &r); err != nil {
		return nil, err
	}
	g := new(generation)
	if err := r.check(g); err != nil {
		return nil, err
	}
	switch {
	case r.Echo != nil && *r.Echo:
		return nil, badRequest("echo", "echo is not served here")
	case r.BestOf != nil && *r.BestOf != 1:
		return nil, badRequest("best_of", "best_of must be 1: this server gives one choice a request")
	case r.Suffix != nil && *r.Suffix != "":
		return nil, badRequest("suffix", "suffix is not served here")
	case r.Logprobs != nil && (*r.Logprobs < 0 || *r.Logprobs > maxTopLogprob):
		return nil, badRequest("logprobs", "logprobs must be between 0 and %d", maxTopLogprob)
	case r.Logprobs != nil:
		g.logprobs, g.topLogprobs = true, int(*r.Logprobs)
	}
	prompt, err := readPrompt(r.Prompt, model, true)
	if err != nil {
		return nil, err
	}
	if len(prompt) == 0 {
		return nil, badRequest("prompt", "prompt must not be empty")
	}
	g.prompt = prompt
	return g, nil
}

// readPrompt reads a string or an array of token ids, or an array that holds exactly one of either.
func readPrompt(raw jsontext.Value, model Model, outer bool) ([]uint32, *httpError) {
	const shape = "prompt must be a string or an array of token ids"
	switch raw.Kind() {
	case 0, 'n':
		return nil, badRequest("prompt", "prompt is missing")
	case '"':
		var text string
		if err := parse(raw, &text); err != nil {
			return nil, badRequest("prompt", shape)
		}
		return model.Encode(text), nil
	case '[':
	default:
		return nil, badRequest("prompt", shape)
	}
	// Token ids first: a prompt may have very many.
	var ids []uint32
	if err := json.Unmarshal(raw, &ids); err == nil {
		if bytes.IndexByte(raw, 'n') >= 0 { // a null, read as 0
			return nil, badRequest("prompt", shape)
		}
		for _, id := range ids {
			if int64(id) >= int64(model.VocabSize()) {
				return nil, badRequest("prompt", "prompt has the token id %d; the model's vocabulary has %d", id, model.VocabSize())
			}
		}
		return ids, nil
	}
	var prompts []jsontext.Value
	if err := json.Unmarshal(raw, &prompts); err != nil || !outer {
		return nil, badRequest("prompt", shape)
	}
	if kind := prompts[0].Kind(); kind != '"' && kind != '[' {
		return nil, badRequest("prompt", shape)
	}
	if len(prompts) > 1 {
		return nil, badRequest("prompt", "prompt has %d prompts; this server takes one a request", len(prompts))
	}
	return readPrompt(prompts[0], model, false)
}
