package requestplane

import (
	"encoding/binary"

	"remora/internal/dynamo/protocol"
)

// A response is a line of frames: AppendPrologue, any number of AppendItem or AppendPlainItem, AppendFinal and AppendSentinel;
// or, of a request that is refused, AppendErrorPrologue and AppendSentinel. A worker that has many things to say at once appends
// them to one buffer and sends them in one write of its ResponseStream, which does not look at them.

// sentinel ends a response.
const sentinel = `"sentinel"`

// AppendPrologue appends the frame that announces a response.
func AppendPrologue(dst []byte) []byte {
	return appendHeaderFrame(dst, func(dst []byte) []byte { return protocol.AppendPrologue(dst, nil) })
}

// AppendErrorPrologue appends the frame that refuses a request instead.
func AppendErrorPrologue(dst []byte, refusal *protocol.Error) []byte {
	return appendHeaderFrame(dst, func(dst []byte) []byte { return protocol.AppendPrologue(dst, refusal) })
}

// AppendItem appends the frame of one item.
func AppendItem(dst []byte, codec protocol.Codec, item *protocol.Item) []byte {
	return appendBodyFrame(dst, func(dst []byte) []byte { return protocol.AppendItem(dst, codec, item) })
}

// AppendPlainItem appends the frame of an item that is one document in the codec, whatever it says.
func AppendPlainItem(dst []byte, codec protocol.Codec, data []byte) []byte {
	return appendBodyFrame(dst, func(dst []byte) []byte { return protocol.AppendPlainItem(dst, codec, data) })
}

// AppendFinal appends the frame that says that the items are complete.
func AppendFinal(dst []byte, codec protocol.Codec) []byte {
	return appendBodyFrame(dst, func(dst []byte) []byte { return protocol.AppendFinal(dst, codec) })
}

// AppendSentinel appends the last frame of a response.
func AppendSentinel(dst []byte) []byte {
	return appendHeaderFrame(dst, func(dst []byte) []byte { return append(dst, sentinel...) })
}

func appendHeaderFrame(dst []byte, header func([]byte) []byte) []byte {
	start := len(dst)
	dst = header(appendTwoPartPrefix(dst, 0, 0))
	binary.BigEndian.PutUint64(dst[start:], uint64(len(dst)-start-twoPartPrefix))
	return dst
}

func appendBodyFrame(dst []byte, body func([]byte) []byte) []byte {
	start := len(dst)
	dst = body(appendTwoPartPrefix(dst, 0, 0))
	binary.BigEndian.PutUint64(dst[start+8:], uint64(len(dst)-start-twoPartPrefix))
	return dst
}
