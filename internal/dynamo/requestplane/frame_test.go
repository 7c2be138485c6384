package requestplane

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// meter counts how large the buffers are that a reader offers.
type meter struct {
	r       io.Reader
	largest int
}

func (m *meter) Read(p []byte) (int, error) {
	m.largest = max(m.largest, len(p))
	return m.r.Read(p)
}

// TestAnnouncedLengthsCostNothing: a reader's memory grows with what has arrived.
func TestAnnouncedLengthsCostNothing(t *testing.T) {
	for name, sent := range map[string]string{
		"path":    "\xff\xffabc",
		"headers": "\x00\x01p\xff\xffabc",
		"payload": "\x00\x01p\x00\x00\x01\xff\xff\x00abc",
	} {
		m := &meter{r: strings.NewReader(sent)}
		if _, err := readFrame(m, DefaultMaxMessage, nil); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
		if m.largest > 4<<10 {
			t.Errorf("%s: %d bytes were made ready for three", name, m.largest)
		}
	}
	m := &meter{r: strings.NewReader("\x00\x01p\x00\x00\x01\xff\xff\x00" + strings.Repeat("x", 1<<20))}
	if _, err := readFrame(m, DefaultMaxMessage, nil); !errors.Is(err, io.ErrUnexpectedEOF) || m.largest > 2<<20 {
		t.Errorf("%v, %d bytes were made ready for a million", err, m.largest)
	}
}

func TestFrameLimits(t *testing.T) {
	whole, err := encodeFrame("p", []byte("{}"), []byte("c"), []byte("body"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readFrame(bytes.NewReader(whole), len(whole), nil); err != nil {
		t.Errorf("a frame of exactly the limit: %v", err)
	}
	for limit := range whole {
		if _, err := readFrame(bytes.NewReader(whole), limit, nil); !errors.Is(err, ErrFraming) {
			t.Errorf("limit %d below %d: %v", limit, len(whole), err)
		}
	}
	for n := 1; n < len(whole); n++ {
		if _, err := readFrame(bytes.NewReader(whole[:n]), 1<<20, nil); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes of %d: %v", n, len(whole), err)
		}
	}
	if _, err := readFrame(bytes.NewReader(nil), 1<<20, nil); err != io.EOF { //nolint:errorlint // bare on purpose
		t.Errorf("no frame: %v", err)
	}
	if _, err := encodeFrame(strings.Repeat("p", 1<<16), nil, nil, nil); err == nil {
		t.Error("a path that its length cannot say")
	}
}

func TestTwoPartThatDoesNotFit(t *testing.T) {
	good := appendTwoPart(nil, []byte("head"), []byte("body"))
	if header, body, err := splitTwoPart(good); err != nil || string(header) != "head" || string(body) != "body" {
		t.Errorf("%q %q %v", header, body, err)
	}
	for name, payload := range map[string][]byte{
		"empty":         {},
		"short prefix":  good[:23],
		"short body":    good[:len(good)-1],
		"a byte more":   append(bytes.Clone(good), 0),
		"giant header":  appendTwoPartPrefix(nil, -1, 1),
		"overflow":      append(appendTwoPartPrefix(nil, -1, 5), "body"...),
		"giant body":    appendTwoPartPrefix(nil, 0, -1),
		"body is short": append(appendTwoPartPrefix(nil, 4, 1), "head"...),
	} {
		if _, _, err := splitTwoPart(payload); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, _, err := readTwoPart(bytes.NewReader(appendTwoPartPrefix(nil, -1, -1)), 100); !errors.Is(err, ErrFraming) {
		t.Errorf("lengths of 2^64: %v", err)
	}
}

func TestRefusalTexts(t *testing.T) {
	for _, c := range []struct {
		refusal *Refusal
		want    string
	}{
		{Overloaded(), "Server overloaded: worker at capacity"},
		{Unavailable("draining"), "Server unavailable: draining"},
		{Unavailable("unknown endpoint a/b"), "Server unavailable: unknown endpoint a/b"},
	} {
		if got := c.refusal.Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
		var back *Refusal
		if err := ackError(c.want); !errors.As(err, &back) || *back != *c.refusal {
			t.Errorf("%q reads as %v", c.want, err)
		}
	}
	if got := Unavailable(strings.Repeat("é", maxAckText)).Error(); len(got) > maxAckText || strings.Contains(got, "\uFFFD") {
		t.Errorf("a long reason gives %d bytes", len(got))
	}
	if err := ackError("no"); !errors.Is(err, ErrUnknownAck) {
		t.Errorf("an unknown text reads as %v", err)
	}
}

// Memory that is given is used as far as it goes, whatever its length says.
func TestReadFrameMemory(t *testing.T) {
	whole, err := encodeFrame("p", nil, []byte("{}"), bytes.Repeat([]byte("x"), 10_000))
	if err != nil {
		t.Fatal(err)
	}
	for _, room := range []int{0, 1, 5_000, 10_026, 20_000} {
		memory := make([]byte, 0, room)
		f, err := readFrame(bytes.NewReader(whole), len(whole), memory)
		if err != nil {
			t.Fatal(err)
		}
		if want := whole[len(whole)-len(f.payload):]; len(f.payload) != 10_026 || !bytes.Equal(f.payload, want) {
			t.Errorf("with room for %d bytes: read %d", room, len(f.payload))
		}
		if used := room > 0 && &f.payload[0] == &memory[:1][0]; used != (room >= 10_026) {
			t.Errorf("with room for %d bytes: used: %v", room, used)
		}
	}
}
