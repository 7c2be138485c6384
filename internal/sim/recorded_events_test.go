package sim

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	pb "remora/proto/vllm"
)

func unmarshal(raw []byte, into proto.Message) error { return proto.Unmarshal(raw, into) }

// recordedEvents are the messages that a real engine published, step by step. What its pool had cached before
// the first step is not known, other than that it was full.
type recordedEvents struct {
	Live    []recordedMessage
	Cleared []recordedMessage `json:"all_blocks_cleared"`
}

type recordedMessage struct {
	Step   string
	Frames []string `json:"frames_hex"`
}

// TestRecordedEvents repeats the recorded steps on a pool that is full of cached blocks, as the real one was. The messages are the same: the events of each in their order, their keys and values. What a model made up is
// only counted: hashes by what they refer to, and generated tokens.
//
// Rules: events-frames, events-forms, events-stored, events-removed, events-step, events-cleared, events-salt.
func TestRecordedEvents(t *testing.T) {
	var rec recordedEvents
	load(t, "kv-events.json", &rec)
	synctest.Test(t, func(t *testing.T) {
		a := newAirwaves()
		e := start(t, network{}, "e", func(c *Config) {
			publishing(a)(c)
			c.KVEvents.Topic = ""
			c.BlockSize, c.Blocks, c.MaxModelLen = 32, 12, 200
		})
		run := func(req *pb.GenerateRequest) {
			t.Helper()
			req.Stopping.IgnoreEos = true
			if r := e.generate(t, req); r.err != nil {
				t.Fatal(r.err)
			}
		}
		for i, n := range []int{96, 96, 160} { // all blocks are cached, as those of the real engine were
			run(request("before", counting(n, 300+uint32(i)), 1))
		}
		wantBase(t, e)
		before := len(a.heard(pubAt))

		run(request("70", counting(70, 100), 2))
		run(request("70 again", counting(70, 100), 30))
		salted := request("salted", counting(40, 100), 1)
		salted.Kv = &pb.KVCacheParameters{CacheSalt: "salt-1"}
		run(salted)
		run(prefillRequest(t, "prefill", counting(70, 200)))
		run(request("hit", counting(70, 200), 1))
		compareMessages(t, rec.Live, a.heard(pubAt), before)

		time.Sleep(13 * time.Second) // nobody fetches the prefill
		for i := range 3 {           // the recording's numbers go on, and no block is cached any more
			run(request("between", counting(32, 400+uint32(i)), 1))
		}
		a.heard(pubAt)
		if _, err := e.ctrl.PauseGeneration(t.Context(), &pb.PauseGenerationRequest{Mode: pb.PauseMode_PAUSE_MODE_WAIT, ClearCache: new(true)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := a.heard(pubAt); len(got) != 0 {
			t.Errorf("published at once: %x", got)
		}
		if _, err := e.ctrl.ResumeGeneration(t.Context(), &pb.ResumeGenerationRequest{}); err != nil {
			t.Fatal(err)
		}
		run(request("after", recordedTokens(t, rec.Cleared[0]), 1))
		compareMessages(t, rec.Cleared, a.heard(pubAt), 0)
	})
}

// counting is a prompt as the recording has them: first, first+1 and so on.
func counting(n int, first uint32) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = (first + uint32(i)) % 500
	}
	return ids
}

// recordedTokens are the tokens of the last event of a message.
func recordedTokens(t *testing.T, m recordedMessage) []uint32 {
	t.Helper()
	events := recordedBatch(t, m)[1].([]any)
	var ids []uint32
	for _, v := range events[len(events)-1].(map[string]any)["token_ids"].([]any) {
		ids = append(ids, uint32(number(v)))
	}
	return ids
}

func recordedBatch(t *testing.T, m recordedMessage) []any {
	t.Helper()
	payload, err := hex.DecodeString(m.Frames[2])
	if err != nil {
		t.Fatal(err)
	}
	return decodeBatch(t, payload)
}

// number reads what msgp makes of a MessagePack integer.
func number(v any) uint64 {
	switch v := v.(type) {
	case int64:
		return uint64(v)
	case uint64:
		return v
	default:
		panic(fmt.Sprintf("%T is no integer", v))
	}
}

func compareMessages(t *testing.T, want []recordedMessage, got [][][]byte, numbered int) {
	t.Helper()
	var recorded, published []string
	recordedNames, publishedNames := names{}, names{}
	for i, m := range want {
		sequence, err := hex.DecodeString(m.Frames[1])
		if err != nil {
			t.Fatal(err)
		}
		first, err := hex.DecodeString(want[0].Frames[1])
		if err != nil {
			t.Fatal(err)
		}
		step := binary.BigEndian.Uint64(sequence) - binary.BigEndian.Uint64(first)
		recorded = append(recorded, fmt.Sprintf("%d frames, topic %q, +%d: ", len(m.Frames), m.Frames[0], step)+recordedNames.describe(recordedBatch(t, m)))
		if i < len(got) {
			frames := got[i]
			step := binary.BigEndian.Uint64(frames[1]) - binary.BigEndian.Uint64(got[0][1])
			published = append(published, fmt.Sprintf("%d frames, topic %q, +%d: ", len(frames), frames[0], step)+publishedNames.describe(decodeBatch(t, frames[2])))
		}
	}
	if numbered > 0 && binary.BigEndian.Uint64(got[0][1]) != uint64(numbered) {
		t.Errorf("the first number is %x after %d messages", got[0][1], numbered)
	}
	if len(got) != len(want) {
		t.Errorf("%d messages, want %d", len(got), len(want))
	}
	for i := range recorded {
		if i < len(published) && published[i] != recorded[i] {
			t.Errorf("%s:\ngot  %s\nwant %s", want[i].Step, published[i], recorded[i])
		}
	}
}

// names replaces hashes by when they were first stored.
type names map[uint64]string

func (n names) describe(batch []any) string {
	text := ""
	for _, v := range batch[1].([]any) {
		event := v.(map[string]any)
		keys := make([]string, 0, len(event))
		for key, value := range event {
			switch key {
			case "block_hashes":
				var list []string
				for _, h := range value.([]any) {
					if _, known := n[number(h)]; !known && event["type"] == "BlockStored" {
						n[number(h)] = fmt.Sprintf("block %d", len(n))
					}
					list = append(list, n[number(h)]) // empty: removed, and stored before the recording began
				}
				value = list
			case "parent_block_hash":
				if value != nil {
					value = n[number(value)]
				}
			case "token_ids":
				value = known(value.([]any))
			}
			keys = append(keys, fmt.Sprintf("%s=%v", key, value))
		}
		slices.Sort(keys)
		text += fmt.Sprintf("%v; ", keys)
	}
	return fmt.Sprintf("%srank %v", text, batch[2])
}

// known cuts a list where it stops counting: there the model has gone on by itself.
func known(ids []any) string {
	n := 1
	for n < len(ids) && number(ids[n]) == number(ids[n-1])+1 {
		n++
	}
	if len(ids) > 90 { // the one prompt that does not count
		n = len(ids)
	}
	return fmt.Sprintf("%v and %d more", ids[:n], len(ids)-n)
}
