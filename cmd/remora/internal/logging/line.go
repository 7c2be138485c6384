package logging

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// timeFormat is that of the Rust sidecar: UTC with microseconds.
const timeFormat = "2006-01-02T15:04:05.000000Z"

// appendHead begins a line. A JSONL line stays open: fields and the brace follow.
func (s *sink) appendHead(line []byte, at time.Time, level slog.Level, target, message string) []byte {
	if s.format == JSONL {
		line = append(line, `{"time":"`...)
		line = at.UTC().AppendFormat(line, timeFormat)
		line = append(line, `","level":"`...)
		line = append(line, levelName(level)...)
		line = append(line, `","target":`...)
		line = appendJSON(line, target)
		line = append(line, `,"message":`...)
		return appendJSON(line, message)
	}
	line = at.UTC().AppendFormat(line, timeFormat)
	name := levelName(level)
	line = append(line, "      "[:6-len(name)]...)
	line = append(line, name...)
	line = append(line, ' ')
	line = append(line, target...)
	line = append(line, ": "...)
	return appendOneLine(line, message)
}

// appendAttr writes one field, a group as one field for each of its members with the group's name before a dot.
func (s *sink) appendAttr(line []byte, group string, a slog.Attr) []byte {
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, member := range value.Group() {
			line = s.appendAttr(line, group, member)
		}
		return line
	}
	if a.Equal(slog.Attr{}) {
		return line
	}
	key := group + a.Key
	if s.format == JSONL {
		switch key {
		case "time", "level", TargetKey, "message":
			key += "_" // the line has these already, and a second one would hide the first from many readers
		}
		line = append(line, ',')
		line = appendJSON(line, key)
		line = append(line, ':')
		return appendJSONValue(line, value)
	}
	line = append(line, ' ')
	line = append(line, key...)
	line = append(line, '=')
	return appendReadable(line, value)
}

// appendJSONValue keeps numbers and booleans as they are and says everything else as text.
func appendJSONValue(line []byte, value slog.Value) []byte {
	switch value.Kind() { //nolint:exhaustive // the others are text
	case slog.KindBool:
		return strconv.AppendBool(line, value.Bool())
	case slog.KindInt64:
		return strconv.AppendInt(line, value.Int64(), 10)
	case slog.KindUint64:
		return strconv.AppendUint(line, value.Uint64(), 10)
	case slog.KindFloat64:
		if encoded, err := json.Marshal(value.Float64()); err == nil {
			return append(line, encoded...)
		}
	}
	return appendJSON(line, text(value))
}

func appendReadable(line []byte, value slog.Value) []byte {
	said := text(value)
	if value.Kind() == slog.KindString || value.Kind() == slog.KindAny {
		if said == "" || strings.ContainsFunc(said, needsQuotes) {
			return strconv.AppendQuote(line, said)
		}
	}
	return append(line, said...)
}

// text is a value in words; slog's own String with the zone and form of our times.
func text(value slog.Value) string {
	switch value.Kind() {
	case slog.KindTime:
		return value.Time().UTC().Format(timeFormat)
	case slog.KindAny:
		return fmt.Sprint(value.Any())
	default:
		return value.String()
	}
}

func needsQuotes(r rune) bool {
	return r == '"' || r == '=' || r == '\\' || r == utf8.RuneError || unicode.IsSpace(r) || !unicode.IsPrint(r)
}

// appendJSON writes a JSON string. Bytes that are not UTF-8 become the replacement character, which is all that the error
// would say.
func appendJSON(line []byte, said string) []byte {
	line, _ = jsontext.AppendQuote(line, said)
	return line
}

// appendOneLine writes a message as it is, or quoted if it would break the line or confuse a terminal.
func appendOneLine(line []byte, message string) []byte {
	for _, r := range message {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return strconv.AppendQuote(line, message)
		}
	}
	return append(line, message...)
}
