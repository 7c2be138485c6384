package worker

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// logBook keeps log lines, as "LEVEL message key=value ...".
type logBook struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

// watchLog puts a logBook in the service's place for logs; before the first request.
func (r *rig) watchLog() *logBook {
	book := new(logBook)
	r.svc.log = slog.New(bookWriter{book: book})
	return book
}

// above gives the lines of a higher level than the one named.
func (b *logBook) above(level string) []string {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return []string{err.Error()}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for _, line := range b.lines {
		word, _, _ := strings.Cut(line, " ")
		var its slog.Level
		if err := its.UnmarshalText([]byte(word)); err != nil || its > least {
			out = append(out, line)
		}
	}
	return out
}

// bookWriter is the slog.Handler of a logBook.
type bookWriter struct {
	book   *logBook
	fields string // of With
}

// Enabled implements slog.Handler.
func (bookWriter) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (w bookWriter) Handle(_ context.Context, record slog.Record) error {
	line := record.Level.String() + " " + record.Message + w.fields
	record.Attrs(func(a slog.Attr) bool {
		line += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		return true
	})
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	w.book.lines = append(w.book.lines, line)
	return nil
}

// WithAttrs implements slog.Handler.
func (w bookWriter) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		w.fields += fmt.Sprintf(" %s=%v", a.Key, a.Value)
	}
	return w
}

// WithGroup implements slog.Handler; nobody here opens groups.
func (w bookWriter) WithGroup(string) slog.Handler { return w }
