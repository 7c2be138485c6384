package load

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"remora/internal/dynamo/protocol"
)

// A frame of the response stream: u64 header length, u64 body length, u64 checksum, header, body.
const (
	prefixSize = 24
	maxFrame   = 64 << 20
)

const sentinel = `"sentinel"`

var errFrame = errors.New("response frame can't be read")

// splitFrame takes the first frame off data; size 0 means that it is not all there.
func splitFrame(data []byte) (header, body []byte, size int, err error) {
	if len(data) < prefixSize {
		return nil, nil, 0, nil
	}
	h, b := binary.BigEndian.Uint64(data), binary.BigEndian.Uint64(data[8:])
	if h > maxFrame || b > maxFrame {
		return nil, nil, 0, fmt.Errorf("%w: parts of %d and %d bytes", errFrame, h, b)
	}
	end := prefixSize + int(h) + int(b)
	if len(data) < end {
		return nil, nil, 0, nil
	}
	middle := prefixSize + int(h)
	return data[prefixSize:middle], data[middle:end], end, nil
}

// subjectNumber finds the number of the request that a handshake is for.
func subjectNumber(header []byte) (int, error) {
	const mark = "b0a70000-0000-4000-9000-"
	at := bytes.Index(header, []byte(mark))
	if at < 0 || len(header) < at+len(mark)+len(digits) {
		return 0, fmt.Errorf("%w: handshake %.200q", errFrame, header)
	}
	n, err := strconv.Atoi(string(header[at+len(mark) : at+len(mark)+len(digits)]))
	if err != nil {
		return 0, fmt.Errorf("%w: handshake %.200q", errFrame, header)
	}
	return n, nil
}

// tokens counts the token ids of an item and gives the last one. An item without any gives 0.
func tokens(codec protocol.Codec, body []byte) (n int, last uint32) {
	const key = "token_ids"
	_, rest, found := bytes.Cut(body, []byte(key))
	if !found {
		return 0, 0
	}
	if codec == protocol.JSON {
		return tokensJSON(rest)
	}
	return tokensMsgPack(rest)
}

// tokensMsgPack reads a short array of ids that take four bytes each, as all stamps do.
func tokensMsgPack(rest []byte) (n int, last uint32) {
	if len(rest) == 0 {
		return 0, 0
	}
	switch lead := rest[0]; {
	case lead>>4 == 0x9:
		n, rest = int(lead&0x0f), rest[1:]
	case lead == 0xdc && len(rest) > 2:
		n, rest = int(binary.BigEndian.Uint16(rest[1:])), rest[3:]
	default:
		return 0, 0
	}
	const size = 5
	if n == 0 || len(rest) < n*size || rest[(n-1)*size] != 0xce {
		return 0, 0
	}
	return n, binary.BigEndian.Uint32(rest[(n-1)*size+1:])
}

func tokensJSON(rest []byte) (n int, last uint32) {
	const open = `":[`
	end := bytes.IndexByte(rest, ']')
	if end <= len(open) || string(rest[:len(open)]) != open {
		return 0, 0
	}
	list := rest[len(open):end]
	id, err := strconv.ParseUint(string(list[bytes.LastIndexByte(list, ',')+1:]), 10, 32)
	if err != nil {
		return 0, 0
	}
	return bytes.Count(list, []byte(",")) + 1, uint32(id)
}
