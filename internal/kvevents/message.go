package kvevents

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/zeebo/xxh3"
)

// message is a batch as it travels.
type message struct {
	seq     uint64
	payload []byte
	digest  uint64 // of payload, which holds a timestamp: two batches of the same digest are the same batch
}

// endSeq in place of a sequence number, with an empty payload, ends the answer to a replay request.
const endSeq = math.MaxUint64

// parseLive reads what an engine publishes: topic, sequence number (eight bytes in network order), batch.
func parseLive(frames [][]byte) (message, error) {
	if len(frames) != 3 {
		return message{}, fmt.Errorf("%w: %d frames instead of topic, sequence number and batch", ErrMessage, len(frames))
	}
	return parseNumbered(frames[1], frames[2])
}

// parseReplayed reads one message of a replay answer: an empty frame, then the topic (vLLM 0.26 and later; missing before), the
// sequence number and the batch. end reports the last one, which has no batch.
func parseReplayed(frames [][]byte) (m message, end bool, err error) {
	if len(frames) < 3 || len(frames) > 4 || len(frames[0]) != 0 {
		return message{}, false, fmt.Errorf("%w: %d frames are no replay answer", ErrMessage, len(frames))
	}
	seq, payload := frames[len(frames)-2], frames[len(frames)-1]
	if len(payload) == 0 && len(seq) == 8 && binary.BigEndian.Uint64(seq) == endSeq {
		return message{}, true, nil
	}
	m, err = parseNumbered(seq, payload)
	return m, false, err
}

func parseNumbered(seq, payload []byte) (message, error) {
	if len(seq) != 8 {
		return message{}, fmt.Errorf("%w: a sequence number of %d bytes", ErrMessage, len(seq))
	}
	number := binary.BigEndian.Uint64(seq)
	if number == endSeq {
		return message{}, fmt.Errorf("%w: the end marker's number on a batch", ErrMessage)
	}
	return message{number, payload, xxh3.Hash(payload)}, nil
}

// replayRequest asks for everything from a sequence number on.
func replayRequest(from uint64) [][]byte {
	return [][]byte{{}, binary.BigEndian.AppendUint64(nil, from)}
}
