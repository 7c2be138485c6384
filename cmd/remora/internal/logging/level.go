package logging

import (
	"log/slog"
	"math"
	"strings"
)

// The levels that Dynamo has and slog has not.
const (
	LevelTrace = slog.LevelDebug - 4
	LevelOff   = slog.Level(math.MaxInt)
)

// parseLevel reads a level's name in any case, or its number from 0 (off) to 5 (trace).
func parseLevel(text string) (slog.Level, bool) {
	switch strings.ToLower(text) {
	case "off", "0":
		return LevelOff, true
	case "error", "1":
		return slog.LevelError, true
	case "warn", "2":
		return slog.LevelWarn, true
	case "info", "3":
		return slog.LevelInfo, true
	case "debug", "4":
		return slog.LevelDebug, true
	case "trace", "5":
		return LevelTrace, true
	default:
		return 0, false
	}
}

// levelName is the word of a line: levels in between take the name of the one below.
func levelName(level slog.Level) string {
	switch {
	case level < slog.LevelDebug:
		return "TRACE"
	case level < slog.LevelInfo:
		return "DEBUG"
	case level < slog.LevelWarn:
		return "INFO"
	case level < slog.LevelError:
		return "WARN"
	default:
		return "ERROR"
	}
}
