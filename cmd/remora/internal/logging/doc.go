// Package logging owns how Remora's log lines look and which of them are written: a slog handler with the two forms that
// Dynamo's operators know (readable and JSONL), and the filter of DYN_LOG with its levels per target.
//
// A logger gets its target from the attribute TargetKey, given once with With: log.With(logging.TargetKey, "remora::worker").
// From then on Enabled answers for that target, so that a caller who asks builds no argument of a line nobody wants.
//
// The package starts no goroutine and holds no global state. Lines are written whole, one Write each, under one lock per
// logger family; what Write returns is ignored, as there is nowhere left to report it. Cancellation does not concern it.
package logging
