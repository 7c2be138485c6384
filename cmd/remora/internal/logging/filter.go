package logging

import (
	"fmt"
	"log/slog"
	"strings"
)

// Filter says from which level on a target's lines are written. The zero Filter writes INFO and above for all.
type Filter struct {
	rest       slog.Level // of targets that no directive names
	directives []directive
}

// directive is the level of all targets that begin with prefix.
type directive struct {
	prefix string
	level  slog.Level
}

// maxDirectives bounds a filter, which is walked once for each logger that is made.
const maxDirectives = 256

// aliases are the targets that operators of the Rust sidecar write in their filters, and ours that do the same work.
var aliases = map[string][]string{
	"dynamo_runtime":        {"remora::requestplane", "remora::discovery", "remora::eventplane", "remora::status"},
	"dynamo_llm":            {"remora::modelcard", "remora::kvevents"},
	"dynamo_backend_common": {"remora::worker"},
	"dynamo_sidecar_common": {"remora::vllm"},
	"dynamo_vllm_sidecar":   {"remora::vllm", "remora::worker", "remora::translate"},
}

// ParseFilter reads a list of directives as DYN_LOG has them, separated by commas: a level alone is for all targets, a
// target alone means all of its lines, target=level that level. Of directives that fit a target the longest counts, of
// equal ones the last. A directive for a span, target[span]=level, is taken and does nothing, because Remora has no spans.
func ParseFilter(text string) (Filter, error) {
	var f Filter
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" || strings.Contains(part, "[") {
			continue
		}
		target, word, hasLevel := strings.Cut(part, "=")
		level, known := parseLevel(word)
		switch {
		case !hasLevel:
			if all, isLevel := parseLevel(target); isLevel {
				f.rest = all
				continue
			}
			level = LevelTrace
		case !known:
			return Filter{}, fmt.Errorf("%q is no level; the levels are off, error, warn, info, debug, trace", word)
		case target == "":
			return Filter{}, fmt.Errorf("the directive %q names no target", part)
		}
		names := aliases[rootOf(target)]
		if names == nil {
			names = []string{target}
		}
		for _, name := range names {
			f.directives = append(f.directives, directive{name, level})
		}
		if len(f.directives) > maxDirectives {
			return Filter{}, fmt.Errorf("more than %d directives", maxDirectives)
		}
	}
	return f, nil
}

// rootOf is the crate in a Rust target: what stands before the first "::".
func rootOf(target string) string {
	root, _, _ := strings.Cut(target, "::")
	return root
}

// Level is the level from which on lines of that target are written.
func (f Filter) Level(target string) slog.Level {
	level, length := f.rest, -1
	for _, d := range f.directives {
		if len(d.prefix) >= length && strings.HasPrefix(target, d.prefix) {
			level, length = d.level, len(d.prefix)
		}
	}
	return level
}
