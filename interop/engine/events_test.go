package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"testing"

	"remora/internal/sim/calibration"
	"remora/internal/zmq"
	"remora/interop/harness"
	"remora/interop/tinyllama"
	pb "remora/proto/vllm"
)

// TestEvents takes a real engine with two data-parallel ranks through the steps that the simulator is held to: it publishes the
// recorded messages, and tells the endpoints of both ranks with the rank added to the port.
func TestEvents(t *testing.T) {
	folder := filepath.Join(t.TempDir(), harness.RealModel)
	if err := tinyllama.Write(folder, 7); err != nil {
		t.Fatal(err)
	}
	e := newSmallEngine(t, "events", folder)
	harness.FreePort(t) // the ports of rank 1 come behind those of rank 0
	events := harness.FreePort(t)
	harness.FreePort(t)
	replay := harness.FreePort(t)
	harness.FreePort(t)
	e.run(t, []string{"ENGINE_RANKS=" + strconv.Itoa(calibration.EventRanks)},
		"--num-gpu-blocks-override", strconv.Itoa(calibration.EventBlocks), "--kv-transfer-config", shortLease(),
		"--kv-events-config", fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d","topic":%q}`,
			events, replay, calibration.EventTopic))
	e.waitReady(t)
	client := e.client(t)

	sources, err := pb.NewControlClient(client.Conn).GetKvEventSources(t.Context(), &pb.GetKvEventSourcesRequest{})
	if err != nil || len(sources.GetSources()) != calibration.EventRanks {
		t.Fatalf("%v, %v", sources, err)
	}
	for rank, s := range sources.GetSources() {
		if want := fmt.Sprintf("tcp://*:%d", events+rank); s.GetEndpoint() != want || s.GetDataParallelRank() != uint32(rank) {
			t.Errorf("rank %d is told as %v, want %s", rank, s, want)
		}
		if want := fmt.Sprintf("tcp://*:%d", replay+rank); s.GetReplayEndpoint() != want {
			t.Errorf("rank %d is replayed at %s, want %s", rank, s.GetReplayEndpoint(), want)
		}
	}
	at, err := zmq.ParseEndpoint(fmt.Sprintf("tcp://127.0.0.1:%d", replay))
	if err != nil {
		t.Fatal(err)
	}
	next := uint64(0)
	if err := calibration.Events(t.Context(), client, func(ctx context.Context) ([]calibration.Message, error) {
		all, err := replayed(ctx, at, next)
		next += uint64(len(all))
		return all, err
	}); err != nil {
		t.Error(err)
	}
}

// replayed asks a replay socket for the messages from a number on.
func replayed(ctx context.Context, at zmq.Endpoint, from uint64) ([]calibration.Message, error) {
	conn, err := zmq.DialDealer(ctx, at, zmq.Limits{})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.Send(ctx, nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return nil, err
	}
	var all []calibration.Message
	for {
		frames, err := conn.Receive(ctx)
		if err != nil {
			return nil, err
		}
		if len(frames) != 4 || len(frames[2]) != 8 {
			return nil, fmt.Errorf("%w: frames %q", calibration.ErrEvents, frames)
		}
		m := calibration.Message{Sequence: binary.BigEndian.Uint64(frames[2]), Topic: string(frames[1]), Payload: append([]byte(nil), frames[3]...)}
		if m.Sequence == math.MaxUint64 {
			if m.Topic != "" {
				return nil, fmt.Errorf("%w: the end marker has the topic %q", calibration.ErrEvents, m.Topic)
			}
			return all, nil
		}
		all = append(all, m)
	}
}
