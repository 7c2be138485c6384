package zmq

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// A frame is one byte of flags, a length of one byte or (flagLong) of eight in network order, and the body. The frames of a
// message but its last carry flagMore; a command is a frame of its own and never stands between the frames of a message.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
	flagUnknown = ^byte(flagMore | flagLong | flagCommand)
)

// maxCommand bounds commands: the longest are READY with its properties and SUBSCRIBE with its topic.
const maxCommand = 4 << 10

// Limits bound what a peer may send in one message. A zero field means its default.
type Limits struct {
	// Bytes is the sum over all frames, 64 MiB by default: a batch of an engine that stores its whole cache at once is a few MiB.
	Bytes int
	// Frames is the number of frames, 16 by default; the protocols at hand use two to five.
	Frames int
}

func (l Limits) withDefaults() Limits {
	if l.Bytes <= 0 {
		l.Bytes = 64 << 20
	}
	if l.Frames <= 0 {
		l.Frames = 16
	}
	return l
}

// appendFrame appends one frame to a buffer.
func appendFrame(dst []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		dst = append(dst, flags|flagLong)
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(body)))
	} else {
		dst = append(dst, flags, byte(len(body)))
	}
	return append(dst, body...)
}

// appendMessage appends a message of at least one frame.
func appendMessage(dst []byte, frames [][]byte) []byte {
	for i, frame := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		dst = appendFrame(dst, flags, frame)
	}
	return dst
}

// appendCommand appends a command: its name behind a length byte, then its data.
func appendCommand(dst []byte, name string, data []byte) []byte {
	body := make([]byte, 0, 1+len(name)+len(data))
	body = append(body, byte(len(name)))
	body = append(body, name...)
	body = append(body, data...)
	return appendFrame(dst, flagCommand, body)
}

// item is what stands between two frame borders: a command (name not empty) or a whole message.
type item struct {
	name   string   // of a command
	data   []byte   // of a command
	frames [][]byte // of a message
}

// reader cuts a stream into commands and messages.
type reader struct {
	from   *bufio.Reader
	limits Limits
	buf    []byte   // bodies of the last item, one after the other
	ends   []int    // of each body in buf
	frames [][]byte // what next returned
}

// bigBuffer is the size above which a buffer is not kept for the next message.
const bigBuffer = 1 << 20

// next reads one item, which is good until the next call. io.EOF is the end of the stream between two items.
func (r *reader) next() (item, error) {
	if cap(r.buf) > bigBuffer {
		r.buf = nil
	}
	r.buf, r.ends = r.buf[:0], r.ends[:0]
	for {
		flags, length, err := r.header()
		if err != nil {
			if errors.Is(err, io.EOF) && len(r.ends) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return item{}, err
		}
		switch {
		case flags&flagUnknown != 0:
			return item{}, fmt.Errorf("%w: reserved frame flags %#x", ErrProtocol, flags)
		case flags&flagCommand != 0 && flags&flagMore != 0:
			return item{}, fmt.Errorf("%w: a command of several frames", ErrProtocol)
		case flags&flagCommand != 0 && len(r.ends) > 0:
			return item{}, fmt.Errorf("%w: a command inside a message", ErrProtocol)
		case flags&flagCommand != 0 && length > maxCommand:
			return item{}, fmt.Errorf("%w: a command of %d bytes; at most %d are taken", ErrTooLarge, length, maxCommand)
		case length > uint64(r.limits.Bytes-len(r.buf)):
			return item{}, fmt.Errorf("%w: %d bytes after %d; at most %d are taken", ErrTooLarge, length, len(r.buf), r.limits.Bytes)
		case len(r.ends) == r.limits.Frames:
			return item{}, fmt.Errorf("%w: more than %d frames", ErrTooLarge, r.limits.Frames)
		}
		if err = r.body(int(length)); err != nil {
			return item{}, err
		}
		if flags&flagCommand != 0 {
			return parseCommand(r.buf)
		}
		r.ends = append(r.ends, len(r.buf))
		if flags&flagMore == 0 {
			return item{frames: r.cut()}, nil
		}
	}
}

func (r *reader) header() (flags byte, length uint64, err error) {
	if flags, err = r.from.ReadByte(); err != nil {
		return 0, 0, err
	}
	size := 1
	if flags&flagLong != 0 {
		size = 8
	}
	var field [8]byte
	if _, err = io.ReadFull(r.from, field[8-size:]); err != nil {
		return 0, 0, unexpected(err)
	}
	return flags, binary.BigEndian.Uint64(field[:]), nil
}

// body appends the next n bytes of the stream to buf, which grows in steps as they arrive.
func (r *reader) body(n int) error {
	const step = 64 << 10
	for n > 0 {
		part := min(n, step)
		at := len(r.buf)
		r.buf = slices.Grow(r.buf, part)[:at+part]
		if _, err := io.ReadFull(r.from, r.buf[at:]); err != nil {
			return unexpected(err)
		}
		n -= part
	}
	return nil
}

// cut returns the frames of buf.
func (r *reader) cut() [][]byte {
	r.frames = r.frames[:0]
	start := 0
	for _, end := range r.ends {
		r.frames = append(r.frames, r.buf[start:end:end])
		start = end
	}
	return r.frames
}

func parseCommand(body []byte) (item, error) {
	name, data, ok := cutShort(body)
	if !ok || len(name) == 0 {
		return item{}, fmt.Errorf("%w: a command without a name", ErrProtocol)
	}
	return item{name: string(name), data: data}, nil
}

// unexpected turns the end of the stream into an error where it must not be.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
