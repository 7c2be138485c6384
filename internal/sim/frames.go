package sim

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// The side channel speaks frames: a length of four bytes, big endian, that counts what follows; one byte of kind; the body.
// A reader says how long a frame it is ready to take. A decode engine opens the connection, says hello once, and then sends
// reads, heartbeats and completions one after the other; only hello and read are answered.
const (
	kindHello   = 'H' // hello, answered by welcome
	kindWelcome = 'W' // welcome
	kindRead    = 'R' // readRequest, answered by data or refusal
	kindData    = 'D' // slots of the blocks in the order asked for, little endian
	kindRefusal = 'E' // refusal
	kindBeat    = 'B' // beatNote
	kindDone    = 'F' // doneNote
)

const (
	frameHead = 5
	// maxControlFrame bounds everything but data: a read of 65536 blocks fits.
	maxControlFrame = 1 << 20
)

var (
	errFrame = errors.New("sim: malformed side channel frame")
	// errPeer is what the other engine refuses.
	errPeer = errors.New("sim: refused by the other engine")
)

type hello struct {
	EngineID string `json:"engine_id"` // whom the caller wants to speak to
	Compat   string `json:"compat"`
}

type welcome struct {
	EngineID string `json:"engine_id"` // who is there
	Compat   string `json:"compat"`
}

type readRequest struct {
	RequestID string `json:"request_id"`
	Blocks    []int  `json:"blocks"`
}

type refusal struct {
	Message string `json:"message"`
}

type beatNote struct {
	RequestIDs []string `json:"request_ids"`
}

type doneNote struct {
	RequestID string `json:"request_id"`
}

// writeFrame writes one frame with one call.
func writeFrame(w io.Writer, kind byte, body []byte) error {
	frame := make([]byte, frameHead, frameHead+len(body))
	binary.BigEndian.PutUint32(frame, uint32(len(body)+1))
	frame[4] = kind
	if _, err := w.Write(append(frame, body...)); err != nil {
		return fmt.Errorf("sim: side channel: %w", err)
	}
	return nil
}

func writeJSON(w io.Writer, kind byte, body any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("sim: side channel: %w", err)
	}
	if len(raw) >= maxControlFrame {
		return fmt.Errorf("%w: %d bytes to send", errFrame, len(raw))
	}
	return writeFrame(w, kind, raw)
}

// readFrame reads one frame of at most limit bytes of body.
func readFrame(r io.Reader, limit int) (kind byte, body []byte, err error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, fmt.Errorf("sim: side channel: %w", err)
	}
	n := binary.BigEndian.Uint32(head[:4])
	if n < 1 || uint64(n)-1 > uint64(limit) {
		return 0, nil, fmt.Errorf("%w: length %d", errFrame, n)
	}
	body = make([]byte, n-1)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, fmt.Errorf("sim: side channel: %w", err)
	}
	return head[4], body, nil
}

// decode reads a body of JSON.
func decode[T any](body []byte) (T, error) {
	var v T
	if err := json.Unmarshal(body, &v); err != nil {
		return v, fmt.Errorf("%w: %w", errFrame, err)
	}
	return v, nil
}

func encodeBlocks(blocks [][]uint64) []byte {
	var raw []byte
	for _, slots := range blocks {
		for _, v := range slots {
			raw = binary.LittleEndian.AppendUint64(raw, v)
		}
	}
	return raw
}

// decodeBlocks cuts data into count blocks.
func decodeBlocks(raw []byte, count, blockSize int) ([][]uint64, error) {
	if len(raw) != count*blockSize*8 {
		return nil, fmt.Errorf("%w: %d bytes for %d blocks of %d", errFrame, len(raw), count, blockSize)
	}
	blocks := make([][]uint64, count)
	for i := range blocks {
		slots := make([]uint64, blockSize)
		for k := range slots {
			slots[k] = binary.LittleEndian.Uint64(raw)
			raw = raw[8:]
		}
		blocks[i] = slots
	}
	return blocks, nil
}
