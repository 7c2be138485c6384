package tinymodel

import (
	"errors"
	"fmt"
	"strings"
)

// ErrRole is returned for a message whose role the chat template does not know.
var ErrRole = errors.New("tinymodel: unknown role")

// Message is one turn of a conversation. Role is system, developer (read as system), user, assistant or tool.
type Message struct {
	Role    string
	Content string
}

// chatTemplate is what tokenizer_config.json says; RenderChat is the same by hand. It stands on one line because the
// readers' settings for blanks around blocks differ.
const chatTemplate = `{{ bos_token }}{% for message in messages %}` +
	`{% set role = 'system' if message['role'] == 'developer' else message['role'] %}` +
	`{% if role not in ['system', 'user', 'assistant', 'tool'] %}{{ raise_exception('unknown role ' + role) }}{% endif %}` +
	`{{ '<|' + role + '|>' }}{% if message['content'] %}{{ message['content'] }}{% endif %}{{ '<|end|>' }}` +
	`{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}`

// RenderChat returns the prompt text of a conversation; Encode makes the ids of it. Like the template it does not escape
// specials inside a message.
func RenderChat(messages []Message, addGenerationPrompt bool) (string, error) {
	var text strings.Builder
	text.WriteString(SpecialText(BOS))
	for i, m := range messages {
		tag, err := roleTag(m.Role)
		if err != nil {
			return "", fmt.Errorf("message %d: %w", i, err)
		}
		text.WriteString(SpecialText(tag))
		text.WriteString(m.Content)
		text.WriteString(SpecialText(End))
	}
	if addGenerationPrompt {
		text.WriteString(SpecialText(Assistant))
	}
	return text.String(), nil
}

// roleTag returns the special that opens a turn.
func roleTag(role string) (uint32, error) {
	switch role {
	case "system", "developer":
		return System, nil
	case "user":
		return User, nil
	case "assistant":
		return Assistant, nil
	case "tool":
		return Tool, nil
	default:
		return 0, fmt.Errorf("%w %q", ErrRole, role)
	}
}
