package translate

import (
	"unicode/utf8"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

// guide sets the structured output of a request. The engine parses schemas and grammars itself and refuses bad ones.
func guide(out *pb.DecodingParameters, g *protocol.GuidedDecoding) *Refusal {
	switch {
	case g.Backend != nil:
		return refuse("guided_decoding.backend is not supported: the engine chooses")
	case g.WhitespacePattern != nil:
		return refuse("guided_decoding.whitespace_pattern is not supported")
	}
	given := 0
	if !g.JSON.IsNull() {
		given++
		text, fault := appendJSON(nil, g.JSON)
		if fault != nil {
			return refuse("guided_decoding.json%s", fault.text())
		}
		out.StructuredOutput = &pb.DecodingParameters_Json{Json: string(text)}
	}
	if g.Regex != nil {
		given++
		out.StructuredOutput = &pb.DecodingParameters_Regex{Regex: *g.Regex}
	}
	if g.Choice != nil {
		given++
		out.StructuredOutput = &pb.DecodingParameters_Choice{Choice: &pb.StringChoices{Choices: g.Choice}}
	}
	if g.Grammar != nil {
		given++
		out.StructuredOutput = &pb.DecodingParameters_Grammar{Grammar: *g.Grammar}
	}
	if !g.StructuralTag.IsNull() {
		given++
		tag, refusal := structuralTag(g.StructuralTag)
		if refusal != nil {
			return refusal
		}
		out.StructuredOutput = &pb.DecodingParameters_StructuralTag{StructuralTag: tag}
	}
	if given > 1 {
		return refuse("guided_decoding takes one of json, regex, choice, grammar and structural_tag, got %d", given)
	}
	return validTexts(g)
}

func structuralTag(v protocol.Value) (string, *Refusal) {
	if v.Kind == protocol.KindString {
		return v.Str, nil
	}
	text, fault := appendJSON(nil, v)
	if fault != nil {
		return "", refuse("guided_decoding.structural_tag%s", fault.text())
	}
	return string(text), nil
}

// validTexts keeps what protobuf could not encode from failing later, as if the engine were at fault.
func validTexts(g *protocol.GuidedDecoding) *Refusal {
	texts := append([]string{orZero(g.Regex), orZero(g.Grammar), g.StructuralTag.Str}, g.Choice...)
	for _, text := range texts {
		if !utf8.ValidString(text) {
			return refuse("guided_decoding holds a text that is not valid UTF-8")
		}
	}
	return nil
}
