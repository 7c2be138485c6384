package frontdoor

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The limits of a request.
const (
	maxStops      = 4
	maxStopLength = 4096 // bytes of one stop string, of which a stream has to hold back so many
	maxTopLogprob = 20
)

// generation is a checked request, chat or completion alike.
type generation struct {
	model        string
	stream       bool
	includeUsage bool
	prompt       []uint32

	maxTokens, minTokens *uint32
	temperature, topP    *float32
	presence, frequency  *float32
	topK                 *int32
	seed                 *int64
	ignoreEOS            bool
	stops                []string
	logprobs             bool
	topLogprobs          int // alternatives a token
}

// common holds the members that both routes have.
type common struct {
	Model         string         `json:"model"`
	Stream        *bool          `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options"`
	MaxTokens     *int64         `json:"max_tokens"`
	Temperature   *float64       `json:"temperature"`
	TopP          *float64       `json:"top_p"`
	Presence      *float64       `json:"presence_penalty"`
	Frequency     *float64       `json:"frequency_penalty"`
	Seed          *int64         `json:"seed"`
	Stop          jsontext.Value `json:"stop"`
	N             *int64         `json:"n"`

	// Not OpenAI's, but known to vLLM and Dynamo.
	TopK      *int64 `json:"top_k"`
	MinTokens *int64 `json:"min_tokens"`
	IgnoreEOS *bool  `json:"ignore_eos"`

	Others map[string]jsontext.Value `json:",embed"` // see checkOthers
}

type streamOptions struct {
	IncludeUsage *bool `json:"include_usage"`
}

// parse reads one JSON object into v, which has the type that the route wants.
func parse(body []byte, v any) *httpError {
	err := json.Unmarshal(body, v)
	if err == nil {
		return nil
	}
	if semantic, ok := errors.AsType[*json.SemanticError](err); ok {
		param := paramOf(semantic.JSONPointer)
		if param == "" {
			return badRequest("", "the body must be a JSON object")
		}
		return badRequest(param, "%s has the wrong type: got %s", param, kindName(semantic.JSONKind))
	}
	if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return badRequest("", "the body is not valid JSON: %s (byte %d)", syntactic.Err, syntactic.ByteOffset)
	}
	return badRequest("", "the body is not valid JSON")
}

// paramOf spells a JSON pointer as OpenAI spells parameters: messages[0].role.
func paramOf(pointer jsontext.Pointer) string {
	var out strings.Builder
	for token := range pointer.Tokens() {
		switch {
		case strings.Trim(token, "0123456789") == "":
			out.WriteString("[" + token + "]")
		case out.Len() > 0:
			out.WriteString("." + token)
		default:
			out.WriteString(token)
		}
	}
	return out.String()
}

func kindName(kind jsontext.Kind) string {
	switch kind {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number that does not fit"
	case '{':
		return "an object"
	case '[':
		return "an array"
	default:
		return "something else"
	}
}

// check turns the common members into g, or says which one is wrong.
func (c *common) check(g *generation) *httpError {
	if c.Model == "" {
		return badRequest("model", "model is missing")
	}
	if err := checkOthers(c.Others); err != nil {
		return err
	}
	if c.N != nil && *c.N != 1 {
		return badRequest("n", "n must be 1: this server gives one choice a request")
	}
	g.model, g.stream = c.Model, c.Stream != nil && *c.Stream
	if c.StreamOptions != nil {
		if !g.stream {
			return badRequest("stream_options", "stream_options is only allowed when stream is true")
		}
		g.includeUsage = c.StreamOptions.IncludeUsage != nil && *c.StreamOptions.IncludeUsage
	}
	g.ignoreEOS = c.IgnoreEOS != nil && *c.IgnoreEOS
	g.seed = c.Seed
	for _, f := range []struct {
		name      string
		in        *float64
		low, high float64
		out       **float32
	}{
		{"temperature", c.Temperature, 0, 2, &g.temperature},
		{"top_p", c.TopP, 0, 1, &g.topP},
		{"presence_penalty", c.Presence, -2, 2, &g.presence},
		{"frequency_penalty", c.Frequency, -2, 2, &g.frequency},
	} {
		if f.in == nil {
			continue
		}
		if !(*f.in >= f.low && *f.in <= f.high) {
			return badRequest(f.name, "%s must be between %g and %g, got %g", f.name, f.low, f.high, *f.in)
		}
		value := float32(*f.in)
		*f.out = &value
	}
	if c.TopP != nil && *c.TopP == 0 {
		return badRequest("top_p", "top_p must be above 0")
	}
	if c.TopK != nil {
		if *c.TopK < 1 || *c.TopK > maxCount { // engines take -1 for the model's own value, not for "off"
			return badRequest("top_k", "top_k must be at least 1; leave it out to consider all tokens")
		}
		k := int32(*c.TopK)
		g.topK = &k
	}
	var err *httpError
	if g.maxTokens, err = count("max_tokens", c.MaxTokens, 1); err != nil {
		return err
	}
	if g.minTokens, err = count("min_tokens", c.MinTokens, 0); err != nil {
		return err
	}
	if g.minTokens != nil && g.maxTokens != nil && *g.minTokens > *g.maxTokens {
		return badRequest("min_tokens", "min_tokens is above max_tokens")
	}
	g.stops, err = readStops(c.Stop)
	return err
}

// checkOthers refuses the members that are not read here, but for those that change nothing for a model that calls no tools: to
// answer as if they were not there would be another answer than the one that was asked for.
func checkOthers(others map[string]jsontext.Value) *httpError {
	for _, name := range slices.Sorted(maps.Keys(others)) {
		value := others[name]
		switch name {
		case "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
			"reasoning_effort", "verbosity", "tools", "parallel_tool_calls":
			continue
		case "tool_choice":
			if text := string(value); text == `"auto"` || text == `"none"` {
				continue
			}
		}
		if value.Kind() != 'n' {
			return badRequest(name, "%.80s is not served here; the stock frontend may serve it", name)
		}
	}
	return nil
}

// maxCount bounds numbers of tokens; no model comes near it.
const maxCount = 1<<31 - 1

func count(name string, in *int64, least int64) (*uint32, *httpError) {
	if in == nil {
		return nil, nil
	}
	if *in < least || *in > maxCount {
		return nil, badRequest(name, "%s must be between %d and %d, got %d", name, least, maxCount, *in)
	}
	n := uint32(*in)
	return &n, nil
}

// readStops reads null, a string, or up to four strings.
func readStops(raw jsontext.Value) ([]string, *httpError) {
	var stops []string
	switch raw.Kind() {
	case 0, 'n':
		return nil, nil
	case '"':
		var one string
		if err := parse(raw, &one); err != nil {
			return nil, badRequest("stop", "stop cannot be read")
		}
		stops = []string{one}
	case '[':
		if err := json.Unmarshal(raw, &stops); err != nil {
			return nil, badRequest("stop", "stop must be a string or an array of strings")
		}
	default:
		return nil, badRequest("stop", "stop must be a string or an array of strings")
	}
	if len(stops) > maxStops {
		return nil, badRequest("stop", "stop has %d strings; at most %d are allowed", len(stops), maxStops)
	}
	for _, s := range stops {
		if s == "" || len(s) > maxStopLength {
			return nil, badRequest("stop", "a stop string must have 1 to %d bytes", maxStopLength)
		}
	}
	return stops, nil
}
