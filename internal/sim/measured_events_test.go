package sim

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	pb "remora/proto/vllm"
)

// stepper writes down what steps come to, in the form of testdata/kv-events-steps.txt: a line for each request with its counts,
// and one for each message with its events. A block's name is when it was first heard of; what never differs is left out.
type stepper struct {
	t     *testing.T
	e     *engine
	heard func() [][][]byte
	names map[string]string
	text  strings.Builder
}

// step runs a request on rank 0 and writes what was published by its end.
func (s *stepper) step(name string, size int, first, tokens uint32, change func(*pb.GenerateRequest)) {
	s.t.Helper()
	prompt := make([]uint32, size)
	for i := range prompt {
		prompt[i] = 5 + (first+uint32(i)*7)%400
	}
	req := request(name, prompt, tokens)
	req.Stopping.IgnoreEos, req.Kv = true, &pb.KVCacheParameters{}
	if change != nil {
		change(req)
	}
	r := s.e.on(s.t, "0", req)
	if r.err != nil {
		s.t.Fatal(r.err)
	}
	fmt.Fprintf(&s.text, "# %s cached %d out %d\n", name, r.finish().GetNumCachedTokens(), r.finish().GetNumOutputTokens())
	for _, frames := range s.heard() {
		batch := decodeBatch(s.t, frames[2])
		fmt.Fprintf(&s.text, "  %d topic %q rank %v: ", binary.BigEndian.Uint64(frames[1]), frames[0], batch[2])
		for _, event := range batch[1].([]any) {
			s.event(event.(map[string]any))
		}
		s.text.WriteByte('\n')
	}
}

func (s *stepper) name(hash any) string {
	key := fmt.Sprint(hash)
	if _, ok := s.names[key]; !ok {
		s.names[key] = fmt.Sprintf("b%d", len(s.names))
	}
	return s.names[key]
}

func (s *stepper) event(event map[string]any) {
	usual := map[string]string{"block_size": "32", "lora_id": "<nil>", "lora_name": "<nil>", "medium": "GPU", "group_idx": "0", "kv_cache_spec_kind": "full_attention"}
	var keys []string
	for key, value := range event {
		text := fmt.Sprint(value)
		switch key {
		case "block_hashes":
			text = ""
			for _, h := range value.([]any) {
				text += s.name(h) + " "
			}
		case "parent_block_hash":
			if value != nil {
				text = s.name(value)
			}
		case "token_ids":
			text = fmt.Sprint(len(value.([]any)))
		}
		if usual[key] != text {
			keys = append(keys, key+"="+text)
		}
	}
	slices.Sort(keys)
	fmt.Fprint(&s.text, keys)
}

// TestMeasuredSteps: a real engine (vLLM 0.32.0 on CPU, two ranks, 39 usable blocks of 32 tokens) was taken through these steps
// on rank 0, and its messages are in testdata; the simulator says the same, line by line: in which order blocks are evicted,
// what is stored again, where a message ends, and what the cache had.
//
// Rules: free-order, block-hash, events-frames, events-stored, events-removed, events-step, events-salt, events-cleared,
// pause-held.
func TestMeasuredSteps(t *testing.T) {
	want, err := os.ReadFile("testdata/kv-events-steps.txt")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		a := newAirwaves()
		e := start(t, network{}, "e", func(c *Config) {
			publishing(a)(c)
			c.DataParallelSize, c.BlockSize, c.Blocks, c.MaxModelLen, c.MaxSeqs = 2, 32, 40, 512, 8
		})
		s := &stepper{t: t, e: e, heard: func() [][][]byte { return a.heard(pubAt) }, names: map[string]string{}}
		salt := func(r *pb.GenerateRequest) { r.Kv.CacheSalt = "salt-1" }
		pause := func() {
			if _, err := e.ctrl.PauseGeneration(t.Context(), &pb.PauseGenerationRequest{Mode: pb.PauseMode_PAUSE_MODE_WAIT}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
			if got := a.heard(pubAt); len(got) > 0 {
				t.Errorf("published in a pause: %x", got)
			}
			if _, err := e.ctrl.ResumeGeneration(t.Context(), &pb.ResumeGenerationRequest{}); err != nil {
				t.Error(err)
			}
		}
		s.step("70", 70, 1, 2, nil)
		s.step("70 again", 70, 1, 30, nil)
		s.step("salt", 40, 1, 1, salt)
		s.step("salt 100", 100, 1, 1, salt)
		s.step("64", 64, 50, 1, nil)
		s.step("64 again", 64, 50, 1, nil)
		s.step("64 bypass", 64, 50, 1, func(r *pb.GenerateRequest) { r.Kv.BypassPrefixCache = true })
		for i := range uint32(5) {
			s.step(fmt.Sprint("fill", i), 300+int(i)*17, 100+i*31, 3, nil)
		}
		s.step("70 third", 70, 1, 2, nil)
		s.step("512", 500, 77, 12, nil)
		s.step("long answer", 30, 90, 100, nil)
		s.step("prefix logprobs", 70, 1, 2, func(r *pb.GenerateRequest) { r.Response.PromptLogprobs = true })
		pause()
		s.step("after clear", 70, 1, 2, nil)
		s.step("small, no event", 7, 1, 2, nil)
		s.step("held", 70, 200, 1, func(r *pb.GenerateRequest) {
			r.Kv.KvTransferParams = &structpb.Struct{Fields: map[string]*structpb.Value{"do_remote_decode": structpb.NewBoolValue(true)}}
		})
		begin := time.Now()
		pause() // the lease is 12 s
		if took := time.Since(begin); took < 12*time.Second || took > 14*time.Second {
			t.Errorf("the pause came after %v", took)
		}
		s.step("after a clear with held blocks", 70, 1, 2, nil)
		got, lines := strings.Split(s.text.String(), "\n"), strings.Split(string(want), "\n")
		for i, line := range lines {
			if i >= len(got) || got[i] != line {
				t.Fatalf("line %d:\ngot  %s\nwant %s", i+1, strings.Join(got[min(i, len(got)):min(i+1, len(got))], ""), line)
			}
		}
		if len(got) != len(lines) {
			t.Errorf("%d lines, want %d", len(got), len(lines))
		}
	})
}

// TestMeasuredKeep: a pause that keeps a running request and clears the cache takes its blocks; it computes them anew
// afterwards, and tells of them as one store behind the clear.
//
// Rules: pause-keep, events-cleared.
func TestMeasuredKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAirwaves()
		e := start(t, network{}, "e", publishing(a))
		running := e.submit(t.Context(), t, request("r", words(10, 1), 40))
		time.Sleep(125 * time.Millisecond)
		if _, err := e.ctrl.PauseGeneration(t.Context(), &pb.PauseGenerationRequest{Mode: pb.PauseMode_PAUSE_MODE_KEEP}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		before := len(a.heard(pubAt))
		if got := e.Stats(); before == 0 || got.UsedBlocks != 0 || got.Waiting != 1 {
			t.Errorf("%d messages, %+v", before, got)
		}
		if _, err := e.ctrl.ResumeGeneration(t.Context(), &pb.ResumeGenerationRequest{}); err != nil {
			t.Fatal(err)
		}
		if r := readAll(running); r.err != nil || len(r.tokens()) != 40 {
			t.Errorf("%v %v", r.err, r.tokens())
		}
		first := decodeBatch(t, a.heard(pubAt)[0][2])[1].([]any)
		stored := first[1].(map[string]any)
		if first[0].(map[string]any)["type"] != "AllBlocksCleared" || len(first) != 2 || stored["parent_block_hash"] != nil || len(stored["block_hashes"].([]any)) < 5 {
			t.Errorf("%v", first)
		}
		wantBase(t, e)
	})
}
