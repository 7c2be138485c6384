package zmq

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func readerOf(data []byte, limits Limits) *reader {
	return &reader{from: bufio.NewReader(bytes.NewReader(data)), limits: limits.withDefaults()}
}

func TestFrames(t *testing.T) {
	if got, want := string(appendMessage(nil, raws("a", "", strings.Repeat("x", 256)))),
		"\x01\x01a"+"\x01\x00"+"\x02\x00\x00\x00\x00\x00\x00\x01\x00"+strings.Repeat("x", 256); got != want {
		t.Errorf("message %q", got)
	}
	if got, want := string(appendCommand(nil, "PONG", []byte("ctx"))), "\x04\x08\x04PONGctx"; got != want {
		t.Errorf("command %q", got)
	}
	if got := appendReady(nil, typePub); string(got) != "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB" {
		t.Errorf("READY %q", got)
	}

	var stream []byte
	stream = appendMessage(stream, raws("one"))
	stream = appendCommand(stream, "SUBSCRIBE", []byte("kv"))
	stream = appendMessage(stream, raws("", strings.Repeat("y", 3<<20), "end"))
	for name, from := range map[string]io.Reader{"whole": bytes.NewReader(stream), "halves": iotest.HalfReader(bytes.NewReader(stream))} {
		r := &reader{from: bufio.NewReader(from), limits: Limits{}.withDefaults()}
		first, err := r.next()
		if err != nil {
			t.Fatal(name, err)
		}
		wantFrames(t, first.frames, "one")
		second, err := r.next()
		if err != nil || second.name != "SUBSCRIBE" || string(second.data) != "kv" || second.frames != nil {
			t.Errorf("%s: %+v, %v", name, second, err)
		}
		third, err := r.next()
		if err != nil {
			t.Fatal(name, err)
		}
		wantFrames(t, third.frames, "", strings.Repeat("y", 3<<20), "end")
		if _, err = r.next(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: at the end: %v", name, err)
		}
	}
}

func TestBadFrames(t *testing.T) {
	limits := Limits{Bytes: 1000, Frames: 3}
	huge := "\x02\x3f\xff\xff\xff\xff\xff\xff\xff"
	for name, test := range map[string]struct {
		data string
		want error
	}{
		"reserved flags":            {"\x08\x00", ErrProtocol},
		"command of several frames": {"\x05\x02\x01A", ErrProtocol},
		"command inside a message":  {"\x01\x01a\x04\x02\x01A", ErrProtocol},
		"nameless command":          {"\x04\x00", ErrProtocol},
		"empty name":                {"\x04\x01\x00", ErrProtocol},
		"name beyond the command":   {"\x04\x02\x05A", ErrProtocol},
		"long command":              {"\x06\x00\x00\x00\x00\x00\x00\x10\x01", ErrTooLarge},
		"huge":                      {huge, ErrTooLarge},
		"negative":                  {"\x02\xff\xff\xff\xff\xff\xff\xff\xff", ErrTooLarge},
		"huge after others":         {"\x01\x01a" + huge, ErrTooLarge},
		"sum of frames":             {"\x01\xff" + strings.Repeat("x", 255) + "\x02\x00\x00\x00\x00\x00\x00\x02\xea", ErrTooLarge},
		"too many frames":           {"\x01\x00\x01\x00\x01\x00\x00\x00", ErrTooLarge},
		"cut in the header":         {"\x02\x00\x00", io.ErrUnexpectedEOF},
		"cut before the length":     {"\x00", io.ErrUnexpectedEOF},
		"cut in the body":           {"\x00\x05abc", io.ErrUnexpectedEOF},
		"cut between frames":        {"\x01\x01a", io.ErrUnexpectedEOF},
	} {
		if got, err := readerOf([]byte(test.data), limits).next(); !errors.Is(err, test.want) {
			t.Errorf("%s: %+v, %v; want %v", name, got, err, test.want)
		}
	}
}

// TestClaims lets a peer claim much and send little.
func TestClaims(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		r := readerOf([]byte("\x02\x00\x00\x00\x00\x03\xff\xff\xffabc"), Limits{})
		if _, err := r.next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 100*(200<<10) {
		t.Errorf("100 claims of 64 MiB with three bytes took %d bytes", grown)
	}
}

func TestGreeting(t *testing.T) {
	good := greeting()
	if minor, err := parseGreeting(good); minor != 1 || err != nil || len(good) != greetingSize {
		t.Errorf("our own: %d, %v", minor, err)
	}
	with := func(at int, value string) []byte {
		out := bytes.Clone(good)
		copy(out[at:], value)
		return out
	}
	for name, test := range map[string]struct {
		greeting []byte
		minor    byte
		want     string
	}{
		"3.0":             {with(11, "\x00"), 0, ""},
		"3.1":             {with(11, "\x01"), 1, ""},
		"4.0":             {with(10, "\x04\x00"), 1, ""},
		"2.0":             {with(10, "\x01"), 0, "older than 3"},
		"PLAIN":           {with(12, "PLAIN"), 0, `"PLAIN"`},
		"CURVE as server": {with(12, "CURVE"), 0, `"CURVE"`},
		"padding":         {with(1, "whatever"), 1, ""},
		"HTTP":            {with(0, "GET / HTTP/1.1\r\nHost: localhost\r\n"), 0, "no ZMTP greeting"},
		"no signature":    {with(9, "\x00"), 0, "no ZMTP greeting"},
	} {
		minor, err := parseGreeting(test.greeting)
		if minor != test.minor || (err == nil) != (test.want == "") || err != nil && (!errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %d, %v", name, minor, err)
		}
	}
	for name, test := range map[string]struct{ data, want string }{
		"plain":          {"\x0bSocket-Type\x00\x00\x00\x03SUB", "SUB"},
		"lower case":     {"\x0bsocket-type\x00\x00\x00\x03SUB", "SUB"},
		"with identity":  {"\x08Identity\x00\x00\x00\x02id\x0bSocket-Type\x00\x00\x00\x03SUB\x01X\x00\x00\x00\x00", "SUB"},
		"none":           {"", ""},
		"cut name":       {"\x0bSocket", "error"},
		"cut length":     {"\x01X\x00\x00\x00", "error"},
		"cut value":      {"\x01X\x00\x00\x00\x02a", "error"},
		"absurd length":  {"\x01X\xff\xff\xff\xffa", "error"},
		"trailing bytes": {"\x0bSocket-Type\x00\x00\x00\x03SUB\x05", "error"},
	} {
		got, err := parseReady([]byte(test.data))
		if (err != nil) != (test.want == "error") || err == nil && got != test.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for reason, data := range map[string]string{"go away": "\x07go away", "no reason given": "\x09short", "?": "\x01\xff"} {
		if got := errorReason([]byte(data)); got != reason {
			t.Errorf("%q: %q", data, got)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add(appendMessage(nil, raws("a", "", strings.Repeat("x", 300))))
	f.Add(append(appendCommand(nil, "SUBSCRIBE", []byte("kv")), 0, 0))
	f.Add(appendReady(nil, typeSub))
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x01\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		limits := Limits{Bytes: 1 << 12, Frames: 4}
		r := readerOf(data, limits)
		for {
			got, err := r.next()
			if err != nil {
				return
			}
			var again []byte
			if got.name != "" {
				again = appendCommand(nil, got.name, got.data)
				_, _ = parseReady(got.data)
			} else {
				again = appendMessage(nil, got.frames)
				if len(got.frames) == 0 || len(got.frames) > limits.Frames {
					t.Fatalf("%d frames", len(got.frames))
				}
			}
			copied := item{name: got.name, data: bytes.Clone(got.data)}
			want := texts(got.frames)
			second, err := readerOf(again, limits).next()
			if err != nil || second.name != copied.name || !bytes.Equal(second.data, copied.data) || !slices.Equal(texts(second.frames), want) {
				t.Fatalf("reads back as %+v, %v", second, err)
			}
		}
	})
}
