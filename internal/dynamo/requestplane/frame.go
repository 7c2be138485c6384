package requestplane

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// DefaultMaxMessage bounds a whole request frame, on both sides.
const DefaultMaxMessage = 32 << 20

// frame is a request frame: u16 length and path, u16 length and headers, u32 length and payload, big-endian.
type frame struct {
	path    []byte
	headers []byte // JSON object of strings
	payload []byte // a two-part message
}

const frameOverhead = 2 + 2 + 4

// readFrame reads one frame, the payload into memory if that is large enough. What it takes beyond that grows with what has
// arrived, never with what was announced. io.EOF means that the peer closed between frames; after any other error the place in
// the stream is lost.
func readFrame(r io.Reader, limit int, memory []byte) (f frame, err error) {
	var prefix [4]byte
	if _, err = io.ReadFull(r, prefix[:2]); err != nil {
		return f, err
	}
	left := limit - frameOverhead
	if f.path, err = readPart(r, uint64(binary.BigEndian.Uint16(prefix[:2])), &left, nil); err != nil {
		return f, fmt.Errorf("path: %w", err)
	}
	if _, err = io.ReadFull(r, prefix[:2]); err != nil {
		return f, fmt.Errorf("headers length: %w", noEOF(err))
	}
	if f.headers, err = readPart(r, uint64(binary.BigEndian.Uint16(prefix[:2])), &left, nil); err != nil {
		return f, fmt.Errorf("headers: %w", err)
	}
	if _, err = io.ReadFull(r, prefix[:4]); err != nil {
		return f, fmt.Errorf("payload length: %w", noEOF(err))
	}
	if f.payload, err = readPart(r, uint64(binary.BigEndian.Uint32(prefix[:4])), &left, memory); err != nil {
		return f, fmt.Errorf("payload: %w", err)
	}
	return f, nil
}

// encodeFrame returns one frame whose payload consists of a control header and a body.
func encodeFrame(path string, headers, control, body []byte) ([]byte, error) {
	payload := twoPartPrefix + len(control) + len(body)
	switch {
	case len(path) > math.MaxUint16:
		return nil, fmt.Errorf("path of %d bytes is too long", len(path))
	case len(headers) > math.MaxUint16:
		return nil, fmt.Errorf("headers of %d bytes are too long", len(headers))
	case payload > math.MaxUint32:
		return nil, fmt.Errorf("payload of %d bytes is too long", payload)
	}
	dst := make([]byte, 0, frameOverhead+len(path)+len(headers)+payload)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(path)))
	dst = append(dst, path...)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(headers)))
	dst = append(dst, headers...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(payload))
	return appendTwoPart(dst, control, body), nil
}

// appendAck appends an acknowledgement: u32 length and text. The empty text accepts.
func appendAck(dst []byte, text string) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(text)))
	return append(dst, text...)
}

// readAck reads one acknowledgement of at most limit bytes.
func readAck(r io.Reader, limit int) (string, error) {
	var prefix [4]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return "", err
	}
	text, err := readPart(r, uint64(binary.BigEndian.Uint32(prefix[:])), &limit, nil)
	return string(text), err
}

// The two-part message: u64 header length, u64 body length, u64 checksum (0: none), header, body.
const twoPartPrefix = 24

func appendTwoPart(dst, header, body []byte) []byte {
	dst = appendTwoPartPrefix(dst, len(header), len(body))
	dst = append(dst, header...)
	return append(dst, body...)
}

func appendTwoPartPrefix(dst []byte, header, body int) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(header))
	dst = binary.BigEndian.AppendUint64(dst, uint64(body))
	return binary.BigEndian.AppendUint64(dst, 0)
}

// splitTwoPart takes a two-part message apart that fills payload exactly. The checksum is ignored, as release builds do.
func splitTwoPart(payload []byte) (header, body []byte, err error) {
	if len(payload) < twoPartPrefix {
		return nil, nil, fmt.Errorf("message of %d bytes is too short", len(payload))
	}
	rest := payload[twoPartPrefix:]
	h, b := binary.BigEndian.Uint64(payload), binary.BigEndian.Uint64(payload[8:])
	if h > uint64(len(rest)) || b != uint64(len(rest))-h {
		return nil, nil, fmt.Errorf("parts of %d and %d bytes do not fill %d", h, b, len(rest))
	}
	return rest[:h:h], rest[h:], nil
}

// readTwoPart reads a two-part message off a stream. io.EOF means that the peer closed between messages.
func readTwoPart(r io.Reader, limit int) (header, body []byte, err error) {
	var prefix [twoPartPrefix]byte
	if _, err = io.ReadFull(r, prefix[:]); err != nil {
		return nil, nil, err
	}
	if header, err = readPart(r, binary.BigEndian.Uint64(prefix[:]), &limit, nil); err != nil {
		return nil, nil, fmt.Errorf("header part: %w", err)
	}
	if body, err = readPart(r, binary.BigEndian.Uint64(prefix[8:]), &limit, nil); err != nil {
		return nil, nil, fmt.Errorf("body part: %w", err)
	}
	return header, body, nil
}

// readPart reads n bytes, into memory as far as that goes, and takes them from *left.
func readPart(r io.Reader, n uint64, left *int, memory []byte) ([]byte, error) {
	if *left < 0 || n > uint64(*left) {
		return nil, fmt.Errorf("%w: %d bytes announced, at most %d allowed", ErrFraming, n, max(*left, 0))
	}
	*left -= int(n)
	const first = 4 << 10
	buf := memory[:min(int(n), cap(memory))]
	if len(buf) < min(int(n), first) {
		buf = make([]byte, min(int(n), first))
	}
	for have := 0; ; {
		got, err := io.ReadFull(r, buf[have:])
		if err != nil {
			return nil, noEOF(err)
		}
		if have += got; have == int(n) {
			return buf, nil
		}
		grown := make([]byte, min(int(n), 2*len(buf)))
		copy(grown, buf)
		buf = grown
	}
}

// noEOF is for places where the stream may not end.
func noEOF(err error) error {
	if err == io.EOF { //nolint:errorlint // readers return it bare
		return io.ErrUnexpectedEOF
	}
	return err
}
