package frontdoor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"remora/internal/dynamo/protocol"
)

// card is what counts here of a model deployment card.
type card struct {
	name     string
	role     protocol.Role
	needs    [][]protocol.Role // alternatives; of one of them every role must be alive
	routes   []string          // flags of model_type
	maxModel uint32            // context length in tokens; 0 where not said
}

// routes that a card may offer.
const (
	routeChat        = "Chat"
	routeCompletions = "Completions"
)

// readCard reads a card as the stock frontend does, as far as it goes. An adapter's card is not ours to serve.
func readCard(raw []byte) (card, error) {
	var doc struct {
		DisplayName   string     `json:"display_name"`
		ModelType     string     `json:"model_type"`
		ModelInput    string     `json:"model_input"`
		WorkerType    *string    `json:"worker_type"`
		Needs         [][]string `json:"needs"`
		Architectural uint32     `json:"architectural_max_context_length"`
		RuntimeConfig struct {
			ContextLength *uint32 `json:"context_length"`
		} `json:"runtime_config"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return card{}, fmt.Errorf("read the card: %w", err)
	}
	if doc.DisplayName == "" {
		return card{}, fmt.Errorf("card without display_name")
	}
	if doc.ModelInput != "Tokens" {
		return card{}, fmt.Errorf("card of %q wants %q as input; only Tokens can be served", doc.DisplayName, doc.ModelInput)
	}
	c := card{name: doc.DisplayName, maxModel: doc.Architectural}
	if doc.RuntimeConfig.ContextLength != nil {
		c.maxModel = *doc.RuntimeConfig.ContextLength
	}
	for flag := range strings.SplitSeq(doc.ModelType, "|") {
		c.routes = append(c.routes, strings.TrimSpace(flag))
	}
	var err error
	switch {
	case doc.WorkerType != nil:
		c.role, err = parseRole(*doc.WorkerType)
	case slices.Contains(c.routes, "Prefill"): // a worker from before worker types
		c.role = protocol.Prefill
	}
	if err != nil {
		return card{}, err
	}
	for _, alternative := range doc.Needs {
		roles := make([]protocol.Role, 0, len(alternative))
		for _, word := range alternative {
			role, err := parseRole(word)
			if err != nil {
				return card{}, err
			}
			roles = append(roles, role)
		}
		c.needs = append(c.needs, roles)
	}
	return c, nil
}

func parseRole(word string) (protocol.Role, error) {
	for _, role := range allRoles() {
		if word == role.String() {
			return role, nil
		}
	}
	return 0, fmt.Errorf("unknown worker type %q", word)
}

func allRoles() []protocol.Role {
	return []protocol.Role{protocol.Aggregated, protocol.Prefill, protocol.Decode, protocol.Encode}
}
