package modelcard

import (
	"strings"

	"remora/internal/dynamo/protocol"
)

// EndpointTypes is the set of APIs that a model is offered through; it decides which HTTP routes the frontend opens.
type EndpointTypes uint8

// The types, in the order in which cards list them.
const (
	Chat EndpointTypes = 1 << iota
	Completions
	Embedding
	TensorBased
	Images
	Audios
	Videos
)

// cardNames are the words of the card, lowest bit first.
var cardNames = [...]string{"Chat", "Completions", "Embedding", "TensorBased", "Images", "Audios", "Videos"}

// String gives the card's model_type.
func (t EndpointTypes) String() string {
	var words []string
	for bit, word := range cardNames {
		if t&(1<<bit) != 0 {
			words = append(words, word)
		}
	}
	return strings.Join(words, " | ")
}

// servedTypes are the types that a worker of this role answers for.
func servedTypes(role protocol.Role, types EndpointTypes) EndpointTypes {
	switch role {
	case protocol.Aggregated, protocol.Decode:
		return types
	case protocol.Prefill, protocol.Encode:
		return 0
	}
	return 0
}

// modelType is the card's model_type.
func modelType(role protocol.Role, types EndpointTypes) string {
	if role == protocol.Prefill {
		return "Prefill"
	}
	return servedTypes(role, types).String()
}

// needs lists the alternatives of worker types without which this worker cannot serve a request.
func needs(role protocol.Role, routeToEncoder bool) [][]string {
	switch role {
	case protocol.Prefill:
		return [][]string{{"decode"}}
	case protocol.Decode:
		return [][]string{{"prefill"}}
	case protocol.Encode:
		return [][]string{{"prefill", "decode"}, {"aggregated"}}
	case protocol.Aggregated:
		if routeToEncoder {
			return [][]string{{"encode"}}
		}
	}
	return [][]string{}
}
