package sim

import (
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/sim/calibration"
	pb "remora/proto/vllm"
)

// TestMeasuredEvents takes the simulator through the steps that a real engine was taken through: it publishes the same.
//
// Rules: free-order, block-hash, events-frames, events-stored, events-removed, events-step, events-salt, events-cleared,
// pause-held.
func TestMeasuredEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAirwaves()
		e := start(t, network{}, "e", func(c *Config) {
			publishing(a)(c)
			c.DataParallelSize, c.BlockSize, c.Blocks, c.KVEvents.Topic = calibration.EventRanks, calibration.BlockSize, calibration.EventBlocks, calibration.EventTopic
			c.MaxModelLen, c.MaxSeqs, c.Lease = calibration.MaxModelLen, calibration.MaxSeqs, calibration.Lease
		})
		err := calibration.Events(t.Context(), &calibration.Engine{Conn: e.conn}, func(context.Context) ([]calibration.Message, error) {
			var all []calibration.Message
			for _, frames := range a.heard(pubAt) {
				all = append(all, calibration.Message{Sequence: binary.BigEndian.Uint64(frames[1]), Topic: string(frames[0]), Payload: frames[2]})
			}
			return all, nil
		})
		if err != nil {
			t.Error(err)
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
