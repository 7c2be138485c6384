package kvevents

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// recorded is a message of a real engine: vLLM 0.32.0.
type recorded struct {
	Step   string
	Frames []string `json:"frames_hex"`
	// Payload is [timestamp, events, rank].
	Payload []json.RawMessage
}

func (r recorded) frames(t testing.TB) [][]byte {
	t.Helper()
	out := make([][]byte, len(r.Frames))
	for i, text := range r.Frames {
		var err error
		if out[i], err = hex.DecodeString(text); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func recordings(t testing.TB) []recorded {
	t.Helper()
	data, err := os.ReadFile("testdata/kv-events.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Live    []recorded
		Cleared []recorded `json:"all_blocks_cleared"`
	}
	if err = json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	return append(file.Live, file.Cleared...)
}

// plain is an event as the recording's own decoding shows it.
type plain struct {
	Type      string      `json:"type"`
	Hashes    []uint64    `json:"block_hashes"`
	Parent    *uint64     `json:"parent_block_hash"`
	Tokens    []uint32    `json:"token_ids"`
	BlockSize uint64      `json:"block_size"`
	Medium    string      `json:"medium"`
	LoRAName  string      `json:"lora_name"`
	Extra     [][]string  `json:"extra_keys"`
	Group     json.Number `json:"group_idx"`
	Kind      string      `json:"kv_cache_spec_kind"`
}

func TestRecordings(t *testing.T) {
	var d Decoder
	all := recordings(t)
	for i, r := range all {
		m, err := parseLive(r.frames(t))
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := strconv.ParseUint(r.Frames[1], 16, 64); m.seq != want {
			t.Errorf("%s: sequence number %d, want %d", r.Step, m.seq, want)
		}
		got, err := d.Decode(m.seq, m.payload)
		if err != nil {
			t.Fatal(err)
		}
		var events []plain
		if err = json.Unmarshal(r.Payload[1], &events); err != nil {
			t.Fatal(err)
		}
		if len(got.Events) != len(events) || got.Skipped != 0 || !got.HasRank || got.Rank != 0 || got.Timestamp < 1.7e9 {
			t.Fatalf("%s: %+v", r.Step, got)
		}
		for j, e := range got.Events {
			if diff := cmp.Diff(events[j], plainOf(e)); diff != "" {
				t.Errorf("message %d, event %d (%s): %s", i, j, r.Step, diff)
			}
		}
	}
	if len(all) < 7 {
		t.Errorf("%d recordings", len(all))
	}
}

func plainOf(e Event) plain {
	out := plain{
		Type: e.Kind.String(), Hashes: e.Hashes, Tokens: e.Tokens, BlockSize: e.BlockSize, Medium: e.Medium,
		LoRAName: e.LoRAName, Kind: e.SpecKind,
	}
	if e.HasParent {
		out.Parent = &e.Parent
	}
	if e.HasGroup {
		out.Group = json.Number(strconv.FormatInt(e.Group, 10))
	}
	for _, keys := range e.ExtraKeys {
		var own []string
		for _, key := range keys {
			own = append(own, key.Text)
		}
		out.Extra = append(out.Extra, own)
	}
	if e.Kind == Stored && len(out.Extra) == 0 {
		out.Extra = make([][]string, len(e.Hashes)) // the recorded engine writes nil for each block without keys
	}
	return out
}
