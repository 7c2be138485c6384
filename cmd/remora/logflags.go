package main

import (
	"remora/cmd/remora/internal/flags"
	"remora/cmd/remora/internal/logging"
)

// logSettings are the variables of logging before they are put together.
type logSettings struct {
	filter logging.Filter
	format logging.Format
	jsonl  bool // DYN_LOGGING_JSONL, the older switch
}

// variables is the part of a command's table that binds the settings.
func (l *logSettings) variables() []flags.Variable {
	return []flags.Variable{
		{Name: "DYN_LOG", Default: "info", Help: "Which log lines are written: a level for all targets, target=level for some, separated by commas. " +
			"The levels are off, error, warn, info, debug and trace; our targets are remora::worker, remora::vllm, remora::requestplane and so on.",
			Value: flags.Func(func(text string) (err error) {
				l.filter, err = logging.ParseFilter(text)
				return err //nolint:wrapcheck // the engine of flags names the variable
			})},
		{Name: "DYN_LOGGING_CONSOLE_FORMAT", Help: "The form of log lines. Without it, DYN_LOGGING_JSONL decides.", Value: flags.OneOf(&l.format,
			flags.Choice[logging.Format]{Word: "readable", Value: logging.Readable}, flags.Choice[logging.Format]{Word: "jsonl", Value: logging.JSONL})},
		{Name: "DYN_LOGGING_JSONL", Default: "false", Help: "Whether log lines are JSON. The older form of DYN_LOGGING_CONSOLE_FORMAT, which beats it.", Value: flags.Truthy(&l.jsonl)},
	}
}

// options puts the settings together.
func (l *logSettings) options(from flags.Sources) logging.Options {
	format := l.format
	if from["DYN_LOGGING_CONSOLE_FORMAT"] == 0 && l.jsonl {
		format = logging.JSONL
	}
	return logging.Options{Format: format, Filter: l.filter}
}
