package main

import (
	"fmt"
	"slices"
	"strings"
)

// toolCallParsers are the tool-call parsers of the frontends of Dynamo 1.6.1. The tests beside the Rust sidecar, which refuses
// the others as well, hold the list to its own.
func toolCallParsers() []string {
	return strings.Fields(`deepseek-v4 deepseek_v3 deepseek_v3_1 deepseek_v3_2 deepseek_v4 deepseek_v41 deepseekv4 default gemma-4 gemma4
		glm45 glm47 harmony hermes inkling jamba kimi-k3 kimi_k2 kimi_k25 kimi_k3 llama3_json minimax-m3 minimax-m3-nom minimax_m2
		minimax_m3 minimax_m3_nom mistral muse muse_glimmer nemotron_deci nemotron_nano phi4 pythonic qwen25 qwen3 qwen3_coder`)
}

// checkToolCallParser refuses a name that no frontend knows: it would leave tool calls in the text, without a word. A
// reasoning parser is not checked: frontends say when they do not know one, and take their basic one.
func checkToolCallParser(name string) error {
	known := toolCallParsers()
	if name == "" || slices.Contains(known, name) {
		return nil
	}
	return refusal(fmt.Sprintf("--dyn-tool-call-parser %q is not supported: set one of %s", name, strings.Join(known, ", ")))
}
