package eventplane

import (
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tape keeps copies of what is published.
type tape struct{ messages [][][]byte }

func (s *tape) Publish(frames ...[]byte) int {
	message := make([][]byte, 0, len(frames))
	for _, f := range frames {
		message = append(message, slices.Clone(f))
	}
	s.messages = append(s.messages, message)
	return 0
}

// TestRecordedMessage writes a message of the stock prefill sidecar again, byte for byte.
func TestRecordedMessage(t *testing.T) {
	recorded, err := os.ReadFile("testdata/kv-events-zmq.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(recorded)) {
		if frame, ok := strings.CutPrefix(line, "frame"); ok {
			want = append(want, strings.TrimSpace(frame[2:]))
		}
	}
	socket := &tape{}
	p := NewPublisher(Config{
		WorkerID: 7542304613624184315, PublisherID: 5077718644518531, Socket: socket,
		Now: func() time.Time { return time.UnixMilli(1796041474433) },
	})
	p.Publish(Event{Kind: Cleared}) // the recording shows the second message
	p.Publish(Event{Kind: Stored, Blocks: []Block{
		{Hash: 13571093297563996965, TokensHash: 12723463354491582301},
		{Hash: 16178694514113001155, TokensHash: 9953241357762816753},
		{Hash: 10477263515315484283, TokensHash: 8081116223921365772},
		{Hash: 4289466136249867255, TokensHash: 12901591046175799387},
	}})
	if len(socket.messages) != 2 {
		t.Fatalf("%d messages", len(socket.messages))
	}
	var got []string
	for _, frame := range socket.messages[1] {
		got = append(got, hex.EncodeToString(frame))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestLoadMessage compares with a message that was composed by hand from the format.
func TestLoadMessage(t *testing.T) {
	const want = "01000000a4" +
		"85ac7075626c69736865725f696405a873657175656e636500ac7075626c69736865645f6174cf000001a0c4506c00" +
		"a5746f706963aa6b765f6d657472696373a77061796c6f6164c45a" +
		"85a9776f726b65725f6964cf0001a2b3c4d5e6f7a764705f72616e6b00" +
		"b46163746976655f6465636f64655f626c6f636b73c0b56163746976655f70726566696c6c5f746f6b656e73c0" +
		"ae6b765f757365645f626c6f636b732a"
	socket := &tape{}
	p := NewLoadPublisher(LoadConfig{
		WorkerID: 0x1a2b3c4d5e6f7, PublisherID: 5, Socket: socket, Now: func() time.Time { return time.UnixMilli(0x1a0c4506c00) },
	})
	p.Publish(0, 42)
	if got := hex.EncodeToString(socket.messages[0][3]); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := string(socket.messages[0][0]); got != "kv_metrics" {
		t.Errorf("topic %q", got)
	}
}

// TestWords compares the forms that no recording has with such that were written by hand; the router's reader of package
// eventplanetest reads them, too.
func TestWords(t *testing.T) {
	s := source{worker: 1, rank: 2}
	head := func(fields, tier string) string {
		return fields + text("worker_id") + "01" + text("storage_tier") + text(tier) + text("residency_domain") + text("worker")
	}
	for _, tc := range []struct {
		name  string
		event numbered
		want  string
	}{
		{
			"cleared", numbered{Event{Kind: Cleared}, 3},
			head("84", "device") + text("event") + "83" + text("event_id") + "03" + text("data") + text("cleared") + text("dp_rank") + "02",
		},
		{
			"removed", numbered{Event{Kind: Removed, Tier: HostPinned, SessionID: "s", Hashes: []uint64{5, 1 << 40}}, 4},
			head("85", "host_pinned") + text("session_id") + text("s") + text("event") + "83" + text("event_id") + "04" +
				text("data") + "81" + text("removed") + "81" + text("block_hashes") + "9205cf0000010000000000" + text("dp_rank") + "02",
		},
		{
			"stored", numbered{Event{Kind: Stored, Tier: External, HasParent: true, Parent: 0, Blocks: []Block{{6, 7, []uint64{8}}}}, 5},
			head("84", "external") + text("event") + "83" + text("event_id") + "05" + text("data") + "81" + text("stored") +
				"83" + text("parent_hash") + "00" + text("start_position") + "c0" + text("blocks") + "91" +
				"83" + text("block_hash") + "06" + text("tokens_hash") + "07" + text("mm_extra_info") + "81" + text("mm_objects") +
				"9182" + text("mm_hash") + "08" + text("offsets") + "90" + text("dp_rank") + "02",
		},
	} {
		if got := hex.EncodeToString(s.appendEvent(nil, &tc.event)); got != tc.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tc.name, got, tc.want)
		}
	}
}

// text is a short MessagePack string in hex.
func text(s string) string { return hex.EncodeToString(append([]byte{0xa0 | byte(len(s))}, s...)) }
