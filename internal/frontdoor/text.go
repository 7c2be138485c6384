package frontdoor

import (
	"math"
	"net/http"
	"slices"
	"strings"

	"remora/internal/dynamo/protocol"
)

// delta is what one or more items add to an answer.
type delta struct {
	text   string
	tokens []tokenLogprob // only where the client asked for them
	finish string         // OpenAI's finish_reason; empty while the answer goes on
}

func (d delta) empty() bool { return d.text == "" && d.finish == "" }

// tokenLogprob is one visible token with its log probability.
type tokenLogprob struct {
	id      uint32
	logprob float64
	top     []protocol.TopLogprob
}

// usage counts an answer's tokens.
type usage struct {
	prompt, completion uint32
	cached             *uint32 // nil where the worker did not say
}

// assembler turns a worker's items into the text of one answer, as the stock frontend does: it detokenizes, hides the ids
// that end an answer, and matches stop strings, all of them only in items that carry no text of their own.
type assembler struct {
	model       Model
	detokenizer Detokenizer
	stops       stopMatcher
	hidden      []uint32
	minTokens   uint32
	logprobs    bool

	pending []tokenLogprob // tokens whose text is still held back
	usage   usage
}

func newAssembler(g *generation, r *protocol.PreprocessedRequest, model Model) *assembler {
	a := &assembler{
		model: model, detokenizer: model.NewDetokenizer(),
		stops: stopMatcher{stops: r.StopConditions.Stop}, hidden: r.StopConditions.StopTokenIDsHidden,
		logprobs: g.logprobs, usage: usage{prompt: uint32(len(g.prompt))},
	}
	if g.minTokens != nil {
		a.minTokens = *g.minTokens
	}
	return a
}

// add takes the next item. cut says that the answer ended here although the worker has not said so; it must be told.
func (a *assembler) add(out *protocol.EngineOutput) (d delta, cut bool, err *httpError) {
	var text strings.Builder
	if out.Text != nil {
		a.usage.completion += uint32(len(out.TokenIDs))
		text.WriteString(strings.ToValidUTF8(*out.Text, "\uFFFD"))
	} else {
		cut = a.tokens(out, &text)
	}
	finish, err := finishOf(out)
	if err != nil {
		return delta{}, false, err
	}
	if cut {
		cut = finish == "" // the worker stops by itself
		finish = "stop"
	} else if finish != "" {
		a.end(&text)
	}
	if out.Usage != nil && !cut {
		a.usage = usage{out.Usage.PromptTokens, out.Usage.CompletionTokens, out.Usage.CachedTokens}
	}
	d = delta{text: text.String(), finish: finish}
	if !d.empty() {
		d.tokens, a.pending = a.pending, nil
	}
	return d, cut, nil
}

// tokens appends the text of an item's tokens, up to a stop.
func (a *assembler) tokens(out *protocol.EngineOutput, text *strings.Builder) (stopped bool) {
	for i, id := range out.TokenIDs {
		a.usage.completion++
		mayStop := a.usage.completion > a.minTokens
		if mayStop && slices.Contains(a.hidden, id) {
			a.end(text)
			return true
		}
		a.note(out, i)
		piece := a.detokenizer.Push(id)
		if !mayStop {
			text.WriteString(piece)
			continue
		}
		piece, matched := a.stops.push(piece)
		text.WriteString(piece)
		if matched {
			return true
		}
	}
	return false
}

// end appends what is still held back. A stop string that the last bytes complete no longer cuts anything off but itself.
func (a *assembler) end(text *strings.Builder) {
	piece, matched := a.stops.push(a.detokenizer.Flush())
	text.WriteString(piece)
	if !matched {
		text.WriteString(a.stops.flush())
	}
}

// note keeps the log probability of token i of an item, if it has one.
func (a *assembler) note(out *protocol.EngineOutput, i int) {
	if !a.logprobs || i >= len(out.LogProbs) {
		return
	}
	t := tokenLogprob{id: out.TokenIDs[i], logprob: finite(out.LogProbs[i])}
	if i < len(out.TopLogprobs) {
		t.top = out.TopLogprobs[i]
	}
	a.pending = append(a.pending, t)
}

// finite replaces what JSON cannot carry by OpenAI's word for "very unlikely".
func finite(logprob float64) float64 {
	if math.IsNaN(logprob) || math.IsInf(logprob, 0) {
		return -9999
	}
	return logprob
}

// finishOf gives OpenAI's word for an item's finish reason.
func finishOf(out *protocol.EngineOutput) (string, *httpError) {
	switch out.FinishReason {
	case protocol.FinishNone:
		return "", nil
	case protocol.FinishEOS, protocol.FinishStop, protocol.FinishCancelled:
		return "stop", nil
	case protocol.FinishLength:
		return "length", nil
	case protocol.FinishContentFilter:
		return "content_filter", nil
	case protocol.FinishError:
		return "", statusError(http.StatusInternalServerError, plainText(http.StatusInternalServerError))
	default:
		return "", statusError(http.StatusInternalServerError, plainText(http.StatusInternalServerError))
	}
}
