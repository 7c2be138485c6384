package translate

import (
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
		// Keys keep their order: some grammar back ends generate the members of an object in the order of the schema.
		out.StructuredOutput = &pb.DecodingParameters_Json{Json: string(g.JSON.AppendJSON(nil))}
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
		tag := g.StructuralTag.Str
		if g.StructuralTag.Kind != protocol.KindString {
			tag = string(g.StructuralTag.AppendJSON(nil))
		}
		out.StructuredOutput = &pb.DecodingParameters_StructuralTag{StructuralTag: tag}
	}
	if given > 1 {
		return refuse("guided_decoding takes one of json, regex, choice, grammar and structural_tag, got %d", given)
	}
	return nil
}
