package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// errSchema is for schemas from which no instance is made.
var errSchema = errors.New("unsupported JSON schema")

// Bounds of an instance: deep enough for any sensible schema, and an end for a recursive one.
const (
	maxSchemaDepth = 24
	maxInstance    = 16 << 10
)

// instance writes the smallest JSON text that a schema allows, as far as the simulator understands it: type, required,
// properties, enum, const, the first of anyOf and oneOf, references within the document, and lower bounds. That is what
// structured output is replaced by here: one fixed answer for each schema.
func instance(schema any) (string, error) {
	w := &instanceWriter{root: schema}
	if err := w.value(schema, 0); err != nil {
		return "", err
	}
	return w.text.String(), nil
}

type instanceWriter struct {
	root any
	text strings.Builder
}

func (w *instanceWriter) value(schema any, depth int) error {
	if depth > maxSchemaDepth || w.text.Len() > maxInstance {
		return fmt.Errorf("%w: nested too deeply or too large", errSchema)
	}
	s, ok := schema.(map[string]any)
	if !ok {
		if schema == false {
			return fmt.Errorf("%w: nothing is allowed", errSchema)
		}
		w.text.WriteString("{}") // true allows anything
		return nil
	}
	if fixed, ok := s["const"]; ok {
		return w.literal(fixed)
	}
	if list, ok := s["enum"].([]any); ok && len(list) > 0 {
		return w.literal(list[0])
	}
	if ref, ok := s["$ref"].(string); ok {
		target, err := w.resolve(ref)
		if err != nil {
			return err
		}
		return w.value(target, depth+1)
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		if list, ok := s[key].([]any); ok && len(list) > 0 {
			if key == "allOf" && len(list) > 1 {
				return fmt.Errorf("%w: allOf", errSchema)
			}
			return w.value(list[0], depth+1)
		}
	}
	return w.typed(s, depth)
}

// typed writes a value of the schema's type, of the first one if there are several.
func (w *instanceWriter) typed(s map[string]any, depth int) error {
	kind := s["type"]
	if list, ok := kind.([]any); ok && len(list) > 0 {
		kind = list[0]
	}
	switch kind {
	case nil, "object":
		return w.object(s, depth)
	case "array":
		return w.array(s, depth)
	case "string":
		if _, ok := s["pattern"]; ok {
			return fmt.Errorf("%w: pattern", errSchema)
		}
		least := bound(s, "minLength", 0)
		if least > maxInstance {
			return fmt.Errorf("%w: minLength", errSchema)
		}
		word := strings.Repeat("like", int(least)/4+1)
		if most := bound(s, "maxLength", len(word)); int(most) < len(word) {
			word = word[:max(0, int(most))]
		}
		return w.literal(word)
	case "integer", "number":
		w.text.WriteString(strconv.FormatFloat(bound(s, "minimum", 7), 'f', -1, 64))
	case "boolean":
		w.text.WriteString("true")
	case "null":
		w.text.WriteString("null")
	default:
		return fmt.Errorf("%w: type %v", errSchema, kind)
	}
	return nil
}

// object writes the required members in their order.
func (w *instanceWriter) object(s map[string]any, depth int) error {
	required, _ := s["required"].([]any)
	properties, _ := s["properties"].(map[string]any)
	w.text.WriteByte('{')
	for i, item := range required {
		name, ok := item.(string)
		if !ok {
			return fmt.Errorf("%w: required", errSchema)
		}
		if i > 0 {
			w.text.WriteString(", ")
		}
		if err := w.literal(name); err != nil {
			return err
		}
		w.text.WriteString(": ")
		member, ok := properties[name]
		if !ok {
			member = true
		}
		if err := w.value(member, depth+1); err != nil {
			return err
		}
	}
	w.text.WriteByte('}')
	return nil
}

func (w *instanceWriter) array(s map[string]any, depth int) error {
	w.text.WriteByte('[')
	for i := range int(min(bound(s, "minItems", 0), maxInstance)) {
		if i > 0 {
			w.text.WriteString(", ")
		}
		items, ok := s["items"]
		if !ok {
			items = true
		}
		if err := w.value(items, depth+1); err != nil {
			return err
		}
	}
	w.text.WriteByte(']')
	return nil
}

func (w *instanceWriter) literal(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%w: %w", errSchema, err)
	}
	w.text.Write(raw)
	return nil
}

// resolve follows a reference of the form #/a/b.
func (w *instanceWriter) resolve(ref string) (any, error) {
	path, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil, fmt.Errorf("%w: reference %q", errSchema, ref)
	}
	at := w.root
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if part == "" {
			continue
		}
		m, isObject := at.(map[string]any)
		if at, ok = m[unescape.Replace(part)]; !ok || !isObject {
			return nil, fmt.Errorf("%w: reference %q", errSchema, ref)
		}
	}
	return at, nil
}

// bound reads a numeric limit, def if there is none.
func bound(s map[string]any, key string, def int) float64 {
	if n, ok := s[key].(float64); ok {
		return n
	}
	return float64(def)
}
