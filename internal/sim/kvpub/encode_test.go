package kvpub

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"remora/internal/sim/core"
)

// TestBytes holds batches to bytes that were put together by hand from the field lists, which 0.32.0 confirmed for the map form.
//
// Rules: events-frames, events-forms, events-hash.
func TestBytes(t *testing.T) {
	const hash = 0x9f3c0a11d4e27b05
	stored := core.Event{Kind: core.Stored, Hashes: []uint64{hash}, Tokens: []uint32{7, 8, 9, 10}}
	for name, tt := range map[string]struct {
		form    Form
		seconds float64
		event   core.Event
		want    string
	}{
		"stored": {Form{}, 2.5, stored, `93 cb 40 04 00 00 00 00 00 00 91 8b a4 74 79 70 65 ab 42 6c 6f 63 6b 53 74 6f 72 65 64
			ac 62 6c 6f 63 6b 5f 68 61 73 68 65 73 91 cf 9f 3c 0a 11 d4 e2 7b 05
			b1 70 61 72 65 6e 74 5f 62 6c 6f 63 6b 5f 68 61 73 68 c0 a9 74 6f 6b 65 6e 5f 69 64 73 94 07 08 09 0a
			aa 62 6c 6f 63 6b 5f 73 69 7a 65 04 a7 6c 6f 72 61 5f 69 64 c0 a6 6d 65 64 69 75 6d a3 47 50 55
			a9 6c 6f 72 61 5f 6e 61 6d 65 c0 aa 65 78 74 72 61 5f 6b 65 79 73 91 c0 a9 67 72 6f 75 70 5f 69 64 78 00
			b2 6b 76 5f 63 61 63 68 65 5f 73 70 65 63 5f 6b 69 6e 64 ae 66 75 6c 6c 5f 61 74 74 65 6e 74 69 6f 6e 00`},
		"removed": {Form{}, 3, core.Event{Kind: core.Removed, Hashes: []uint64{hash}}, `93 cb 40 08 00 00 00 00 00 00 91 84
			a4 74 79 70 65 ac 42 6c 6f 63 6b 52 65 6d 6f 76 65 64 ac 62 6c 6f 63 6b 5f 68 61 73 68 65 73 91 cf 9f 3c 0a 11 d4 e2 7b 05
			a6 6d 65 64 69 75 6d a3 47 50 55 a9 67 72 6f 75 70 5f 69 64 78 00 00`},
		"cleared": {Form{}, 4, core.Event{Kind: core.Cleared},
			`93 cb 40 10 00 00 00 00 00 00 91 81 a4 74 79 70 65 b0 41 6c 6c 42 6c 6f 63 6b 73 43 6c 65 61 72 65 64 00`},
		"stored in an array": {Form{Arrays: true}, 2.5, stored, `93 cb 40 04 00 00 00 00 00 00 91 98 ab 42 6c 6f 63 6b 53 74 6f 72 65 64
			91 cf 9f 3c 0a 11 d4 e2 7b 05 c0 94 07 08 09 0a 04 c0 a3 47 50 55 c0 00`},
		"removed in an array": {Form{Arrays: true}, 3, core.Event{Kind: core.Removed, Hashes: []uint64{hash}},
			`93 cb 40 08 00 00 00 00 00 00 91 93 ac 42 6c 6f 63 6b 52 65 6d 6f 76 65 64 91 cf 9f 3c 0a 11 d4 e2 7b 05 a3 47 50 55 00`},
		"cleared in an array": {Form{Arrays: true}, 4, core.Event{Kind: core.Cleared},
			`93 cb 40 10 00 00 00 00 00 00 91 91 b0 41 6c 6c 42 6c 6f 63 6b 73 43 6c 65 61 72 65 64 00`},
	} {
		got := tt.form.batch(tt.seconds, []core.Event{tt.event}, 4, 0)
		if want := strings.Join(strings.Fields(tt.want), ""); hex.EncodeToString(got) != want {
			t.Errorf("%s:\ngot  %x\nwant %s", name, got, want)
		}
	}
}

// Rules: events-media, events-salt.
func TestMediaInExtraKeys(t *testing.T) {
	got := Form{}.batch(2, []core.Event{{
		Kind: core.Stored, Hashes: []uint64{7, 8, 9}, Tokens: []uint32{1, 2, 3}, Salt: "s",
		Media: [][]core.MediaKey{{{ID: "x", Offset: 0}}, nil, {{ID: "x", Offset: -2}, {ID: "y", Offset: 0}}},
	}}, 1, 0)
	decoded, _, err := msgp.ReadIntfBytes(got)
	if err != nil {
		t.Fatal(err)
	}
	keys := decoded.([]any)[1].([]any)[0].(map[string]any)["extra_keys"]
	if want := "[[[x 0] s] <nil> [[x -2] [y 0]]]"; fmt.Sprint(keys) != want {
		t.Errorf("%v, want %s", keys, want)
	}
}

// Rules: events-salt, events-hash.
func TestParentSaltAndBytes(t *testing.T) {
	parent := uint64(5)
	got, rest, err := msgp.ReadIntfBytes(Form{Bytes: true}.batch(1, []core.Event{
		{Kind: core.Stored, Hashes: []uint64{7, 8}, Tokens: []uint32{1, 2}, Salt: "s"},
		{Kind: core.Stored, Hashes: []uint64{9}, Parent: &parent, Tokens: []uint32{3}},
	}, 1, 70000))
	if err != nil || len(rest) > 0 {
		t.Fatal(err, rest)
	}
	batch := got.([]any)
	events := batch[1].([]any)
	first, second := events[0].(map[string]any), events[1].(map[string]any)
	if keys := first["extra_keys"].([]any); len(keys) != 2 || keys[0].([]any)[0] != "s" || keys[1] != nil {
		t.Errorf("%v", keys)
	}
	hashes := first["block_hashes"].([]any)
	if h := hashes[1].([]byte); len(h) != 32 || h[31] != 8 || h[30] != 0 {
		t.Errorf("%x", h)
	}
	if h := second["parent_block_hash"].([]byte); len(h) != 32 || h[31] != 5 {
		t.Errorf("%x", h)
	}
	if first["parent_block_hash"] != nil || second["extra_keys"].([]any)[0] != nil {
		t.Errorf("%v %v", first, second)
	}
	if rank, _ := batch[2].(uint64); rank != 70000 {
		t.Errorf("%T %v", batch[2], batch[2])
	}
}
