package logging

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestFilterLevels(t *testing.T) {
	for _, c := range []struct {
		filter, target string
		want           slog.Level
	}{
		{"", "remora", slog.LevelInfo},
		{"debug", "remora::worker", slog.LevelDebug},
		{"WARN", "remora::worker", slog.LevelWarn},
		{"off", "remora", LevelOff},
		{"0", "remora", LevelOff},
		{"5", "remora", LevelTrace},
		{"info,remora::worker=debug", "remora::worker", slog.LevelDebug},
		{"info,remora::worker=debug", "remora::vllm", slog.LevelInfo},
		{"remora=debug,remora::worker=error", "remora::worker", slog.LevelError},
		{"remora::worker=error,remora=debug", "remora::worker", slog.LevelError},
		{"remora=debug,remora=error", "remora::worker", slog.LevelError},
		{"error,remora::worker", "remora::worker", LevelTrace},
		{" error , remora::vllm = debug ", "remora::worker", slog.LevelError},
		{"off,remora::vllm=trace", "remora::vllm", LevelTrace},
		{"info,h2::proto=warn,hyper=off", "remora", slog.LevelInfo},
		{"info,dynamo_runtime=debug", "remora::requestplane", slog.LevelDebug},
		{"info,dynamo_runtime::transports=debug", "remora::discovery", slog.LevelDebug},
		{"info,dynamo_runtime=debug", "remora::worker", slog.LevelInfo},
		{"error,remora[span{field=1}]=debug", "remora", slog.LevelError},
		{",,", "remora", slog.LevelInfo},
	} {
		f, err := ParseFilter(strings.ReplaceAll(c.filter, " = ", "="))
		if err != nil {
			t.Errorf("%q: %v", c.filter, err)
			continue
		}
		if got := f.Level(c.target); got != c.want {
			t.Errorf("%q, %s: got %v, want %v", c.filter, c.target, got, c.want)
		}
	}
}

func TestFilterRefused(t *testing.T) {
	for _, text := range []string{"remora=loud", "remora=", "=debug", "a=b=c", strings.Repeat("a=info,", maxDirectives+1)} {
		if _, err := ParseFilter(text); err == nil {
			t.Errorf("%.40q is taken", text)
		}
	}
}

func FuzzParseFilter(f *testing.F) {
	for _, seed := range []string{"info,mycrate=debug", "off", "a::b=trace,c", "[x]=1", "=,=", "dynamo_runtime"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		filter, err := ParseFilter(text)
		if err == nil {
			filter.Level(text)
			if len(filter.directives) > maxDirectives {
				t.Fatal("unbounded")
			}
		}
	})
}

// lineOf logs one record with fixed time through a fresh logger.
func lineOf(t *testing.T, format Format, record func(slog.Handler) slog.Handler, level slog.Level, message string, attrs ...slog.Attr) string {
	t.Helper()
	var out bytes.Buffer
	h := New(&out, Options{Format: format, Filter: Filter{rest: LevelTrace}}).Handler()
	if record != nil {
		h = record(h)
	}
	r := slog.NewRecord(time.Date(2026, 1, 2, 3, 4, 5, 6_000, time.FixedZone("x", 3600)), level, message, 0)
	r.AddAttrs(attrs...)
	if err := h.Handle(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func target(h slog.Handler) slog.Handler {
	return h.WithAttrs([]slog.Attr{slog.String(TargetKey, "remora::vllm"), slog.Int("slot", 1)})
}

func grouped(h slog.Handler) slog.Handler {
	return h.WithGroup("a").WithAttrs([]slog.Attr{slog.String(TargetKey, "x")}).WithGroup("")
}

func TestLines(t *testing.T) {
	attrs := []slog.Attr{
		slog.String("plain", "word"), slog.String("spaced", "two words"), slog.String("empty", ""), slog.Duration("took", 1500*time.Millisecond),
		slog.Any("error", errors.New("it \"broke\"\n")), slog.Bool("ok", true), slog.Uint64("big", math.MaxUint64), slog.Float64("nan", math.NaN()),
		slog.Group("g", slog.Int("n", -1)), {}, slog.Time("at", time.Unix(0, 0)),
	}
	for name, c := range map[string]struct {
		format Format
		change func(slog.Handler) slog.Handler
		level  slog.Level
		attrs  []slog.Attr
		said   string
		want   string
	}{
		"readable":      {format: Readable, change: target, level: slog.LevelInfo, attrs: attrs, said: "engine <ready>", want: `2026-01-02T02:04:05.000006Z  INFO remora::vllm: engine <ready> slot=1 plain=word spaced="two words" empty="" took=1.5s error="it \"broke\"\n" ok=true big=18446744073709551615 nan=NaN g.n=-1 at=1970-01-01T00:00:00.000000Z` + "\n"},
		"jsonl":         {format: JSONL, change: target, level: slog.LevelWarn, attrs: attrs, said: "engine <ready>", want: `{"time":"2026-01-02T02:04:05.000006Z","level":"WARN","target":"remora::vllm","message":"engine <ready>","slot":1,"plain":"word","spaced":"two words","empty":"","took":"1.5s","error":"it \"broke\"\n","ok":true,"big":18446744073709551615,"nan":"NaN","g.n":-1,"at":"1970-01-01T00:00:00.000000Z"}` + "\n"},
		"injected line": {format: Readable, level: slog.LevelError, said: "a\n2026 INFO b", want: `2026-01-02T02:04:05.000006Z ERROR remora: "a\n2026 INFO b"` + "\n"},
		"trace":         {format: Readable, level: LevelTrace, said: "x", want: "2026-01-02T02:04:05.000006Z TRACE remora: x\n"},
		"debug":         {format: Readable, level: slog.LevelDebug + 1, said: "x", want: "2026-01-02T02:04:05.000006Z DEBUG remora: x\n"},
		"group":         {format: Readable, change: grouped, level: slog.LevelInfo, attrs: []slog.Attr{slog.Int("n", 1)}, said: "x", want: "2026-01-02T02:04:05.000006Z  INFO remora: x a.target=x a.n=1\n"},
		"reserved keys": {format: JSONL, level: slog.LevelInfo, attrs: []slog.Attr{slog.String("time", "t"), slog.String("message", "m\xff")}, said: "x", want: `{"time":"2026-01-02T02:04:05.000006Z","level":"INFO","target":"remora","message":"x","time_":"t","message_":"m` + "\ufffd" + `"}` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := lineOf(t, c.format, c.change, c.level, c.said, c.attrs...)
			if got != c.want {
				t.Fatalf("got  %swant %s", got, c.want)
			}
			if c.format == JSONL && !json.Valid([]byte(got)) {
				t.Fatal("not JSON")
			}
		})
	}
}

// watched is a log argument that tells whether it was built.
type watched struct{ built *bool }

func (w watched) LogValue() slog.Value {
	*w.built = true
	return slog.StringValue("built")
}

func TestLevelOffBuildsNothing(t *testing.T) {
	filter, err := ParseFilter("off,remora::vllm=debug")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	log := New(&out, Options{Filter: filter})
	built := false
	log.Error("quiet", "arg", watched{&built})
	if built || out.Len() > 0 || log.Enabled(t.Context(), slog.LevelError) {
		t.Fatalf("a line was made although logging is off: %s", &out)
	}
	child := log.With(TargetKey, "remora::vllm")
	child.Debug("heard", "arg", watched{&built})
	if !built || !strings.Contains(out.String(), "remora::vllm: heard arg=built") {
		t.Fatalf("got %q", &out)
	}
	if log.Enabled(t.Context(), slog.LevelError) {
		t.Fatal("a child changed its parent")
	}
}

func TestLinesStayWhole(t *testing.T) {
	var out bytes.Buffer
	log := New(&out, Options{})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			child := log.With("from", "child")
			for range 50 {
				child.Info("line")
			}
		})
	}
	group.Wait()
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 400 {
		t.Fatalf("%d lines", len(lines))
	}
	for _, l := range lines {
		if !strings.HasSuffix(l, "  INFO remora: line from=child") {
			t.Fatalf("torn: %q", l)
		}
	}
}
