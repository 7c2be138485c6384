package logging

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// TargetKey is the attribute that names a logger's target.
const TargetKey = "target"

// rootTarget is the target of a logger that was given none.
const rootTarget = "remora"

// Format is the form of the lines.
type Format uint8

// The two forms.
const (
	Readable Format = iota
	JSONL
)

// Options says what is written and how. The zero Options write readable lines from INFO on.
type Options struct {
	Format Format
	Filter Filter
}

// New returns a logger that writes to out, one Write per line.
func New(out io.Writer, options Options) *slog.Logger {
	return slog.New(&handler{
		sink:   &sink{out: out, format: options.Format},
		filter: options.Filter,
		target: rootTarget,
		level:  options.Filter.Level(rootTarget),
	})
}

// sink is shared by all loggers that descend from one New.
type sink struct {
	format Format // set once
	mu     sync.Mutex
	out    io.Writer // guarded by mu
}

// handler is immutable; With and WithGroup return changed copies.
type handler struct {
	sink   *sink
	filter Filter
	target string
	level  slog.Level // of target
	group  string     // prefix of keys, ends with a dot if not empty
	fields []byte     // the attributes of With, already in the form of the lines
}

func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	child := *h
	child.fields = slices.Clip(h.fields)
	for _, a := range attrs {
		if a.Key == TargetKey && h.group == "" {
			child.target = a.Value.Resolve().String()
			child.level = h.filter.Level(child.target)
			continue
		}
		child.fields = child.sink.appendAttr(child.fields, h.group, a)
	}
	return &child
}

func (h *handler) WithGroup(name string) slog.Handler {
	child := *h
	if name != "" {
		child.group += name + "."
	}
	return &child
}

func (h *handler) Handle(_ context.Context, record slog.Record) error {
	at := record.Time
	if at.IsZero() {
		at = time.Now()
	}
	line := h.sink.appendHead(make([]byte, 0, 256), at, record.Level, h.target, record.Message)
	line = append(line, h.fields...)
	record.Attrs(func(a slog.Attr) bool {
		line = h.sink.appendAttr(line, h.group, a)
		return true
	})
	if h.sink.format == JSONL {
		line = append(line, '}')
	}
	line = append(line, '\n')
	h.sink.mu.Lock()
	defer h.sink.mu.Unlock()
	_, err := h.sink.out.Write(line)
	return err //nolint:wrapcheck // slog drops it
}
