package decode

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "remora/proto/vllm"
)

const (
	// prefixLen is that of gRPC's frame around a message: one byte of flags and four of length.
	prefixLen = 5
	// keepSlots bounds how many structs stay for the next batch.
	keepSlots = 256
	// keepElements bounds the lists that stay with a struct.
	keepElements = 1024
)

// What can be wrong with a message. The bytes behind it cannot be made sense of, so each is final for the stream.
var (
	ErrCompressed = errors.New("compressed flag set")
	ErrFlag       = errors.New("received unexpected payload format")
	ErrTooLarge   = errors.New("received message larger than max")
	ErrMalformed  = errors.New("failed to unmarshal the received message")
)

// Decoder turns bytes into messages. It belongs to one goroutine at a time. The zero Decoder is ready, with a Limit of 0,
// which only empty messages keep.
type Decoder struct {
	// Limit is the size of the largest message taken, in bytes.
	Limit int

	slots []*slot
	batch []*pb.GenerateResponse
}

// Batch reads all whole messages that data begins with. The rest is the beginning of a message that is not complete yet, as
// part of data. The messages are valid until the next call. With an error, those before the fault are returned still.
func (d *Decoder) Batch(data []byte) (messages []*pb.GenerateResponse, rest []byte, err error) {
	d.trim()
	for len(data) >= prefixLen {
		size := int64(binary.BigEndian.Uint32(data[1:prefixLen]))
		switch {
		case data[0] == 1:
			return d.batch, data, ErrCompressed
		case data[0] > 1:
			return d.batch, data, fmt.Errorf("%w %d", ErrFlag, data[0])
		case size > int64(d.Limit):
			return d.batch, data, fmt.Errorf("%w (%d vs. %d)", ErrTooLarge, size, d.Limit)
		case int64(len(data)-prefixLen) < size:
			return d.batch, data, nil
		}
		end := prefixLen + int(size)
		message, err := d.message(data[prefixLen:end])
		if err != nil {
			return d.batch, data, err
		}
		d.batch = append(d.batch, message)
		data = data[end:]
	}
	return d.batch, data, nil
}

// trim forgets the last batch, and what a large one made.
func (d *Decoder) trim() {
	clear(d.batch)
	d.batch = d.batch[:0]
	if len(d.slots) > keepSlots {
		clear(d.slots[keepSlots:])
		d.slots = d.slots[:keepSlots:keepSlots]
		d.batch = nil
	}
}

// message reads one. Its slot is the one of its place in the batch.
func (d *Decoder) message(data []byte) (*pb.GenerateResponse, error) {
	if len(d.slots) == len(d.batch) {
		d.slots = append(d.slots, newSlot())
	}
	s := d.slots[len(d.batch)]
	if s.read(data) {
		return &s.response, nil
	}
	message := new(pb.GenerateResponse)
	if err := proto.Unmarshal(data, message); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return message, nil
}
