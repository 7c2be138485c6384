package requestplane

import (
	"bytes"
	"testing"
)

func FuzzFrame(f *testing.F) {
	for _, m := range recordings(f) {
		if m.kind == "REQ" {
			f.Add(m.bytes)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		got, err := readFrame(in, 1<<16, nil)
		if err != nil {
			return
		}
		header, body, err := splitTwoPart(got.payload)
		if err != nil {
			return
		}
		again, err := encodeFrame(string(got.path), got.headers, header, body)
		if err != nil {
			t.Fatal(err)
		}
		read := b[:len(b)-in.Len()]
		checksum := len(read) - len(got.payload) + 16 // ours is always zero
		copy(again[checksum:checksum+8], read[checksum:checksum+8])
		if !bytes.Equal(again, read) {
			t.Fatalf("%x became %x", read, again)
		}
	})
}

func FuzzTwoPart(f *testing.F) {
	for _, m := range recordings(f) {
		if m.kind == "FRAME" {
			f.Add(m.bytes)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		header, body, err := readTwoPart(in, 1<<16)
		if err != nil {
			return
		}
		h, d, err := splitTwoPart(b[:len(b)-in.Len()])
		if err != nil || !bytes.Equal(h, header) || !bytes.Equal(d, body) {
			t.Fatalf("stream and slice differ: %v", err)
		}
	})
}

// FuzzControl: whatever the header says, a control header that can be answered names somebody to answer.
func FuzzControl(f *testing.F) {
	f.Add(controlWith(f, ``, ``))
	f.Add(controlWith(f, `{"id"`, `{"metadata":{"k":"v"},"id"`))
	f.Add(controlWith(f, `"id":"r"`, `"id":7`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, malformed, refusal := parseControl(b)
		if refusal != nil {
			return
		}
		if _, err := parseAddress(c.Connection.Address); err != nil || c.Connection.Subject == "" {
			t.Fatalf("%+v: %v", c.Connection, err)
		}
		if malformed != nil {
			return
		}
		if _, malformed, refusal := parseControl(encodeControl(&c)); refusal != nil {
			t.Fatalf("written again: %v %v", malformed, refusal)
		}
	})
}

func FuzzHeaders(f *testing.F) {
	f.Add([]byte(`{"request-id":"r","x-frontend-send-ts-ns":"1"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHeaders(b)
		if err != nil {
			return
		}
		if again, err := parseHeaders(encodeHeaders("p", &h)); err != nil || again != h {
			t.Fatalf("%v: %+v became %+v", err, h, again)
		}
	})
}
