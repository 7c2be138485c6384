package engine

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
)

// HTTP/2 frame types and flags that are sent.
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameSettings     = 0x4
	framePing         = 0x6
	frameWindowUpdate = 0x8

	flagEndStream  = 0x1
	flagAck        = 0x1
	flagEndHeaders = 0x4
)

// Header blocks, without Huffman coding and without the dynamic table, so that they are the same for every stream.
const (
	// :status 200 and content-type application/grpc.
	blockOK = "\x88\x0f\x10\x10application/grpc"
	// grpc-status 0.
	blockDone = "\x00\x0bgrpc-status\x010"
)

// blockFailed is an answer of trailers only.
func blockFailed(code, message string) string {
	return blockOK + "\x00\x0bgrpc-status" + string(rune(len(code))) + code + "\x00\x0cgrpc-message" + string(rune(len(message))) + message
}

func appendFrame(dst []byte, kind, flags byte, stream uint32, length int) []byte {
	dst = append(dst, byte(length>>16), byte(length>>8), byte(length), kind, flags)
	return binary.BigEndian.AppendUint32(dst, stream)
}

func appendHeaders(dst []byte, stream uint32, flags byte, block string) []byte {
	return append(appendFrame(dst, frameHeaders, flagEndHeaders|flags, stream, len(block)), block...)
}

func appendWindowUpdate(dst []byte, stream, credit uint32) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(dst, frameWindowUpdate, 0, stream, 4), credit)
}

// appendMessage appends a DATA frame with one gRPC message in it.
func appendMessage(dst []byte, stream uint32, msg []byte) []byte {
	dst = appendFrame(dst, frameData, 0, stream, grpcPrefix+len(msg))
	dst = append(dst, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(msg)))
	return append(dst, msg...)
}

const grpcPrefix = 5

// appendPromptInfo appends GenerateResponse{prompt_info {num_prompt_tokens}}.
func appendPromptInfo(dst []byte, prompt uint32) []byte {
	dst = append(dst, 0x0a, byte(1+protowire.SizeVarint(uint64(prompt))), 0x08)
	return protowire.AppendVarint(dst, uint64(prompt))
}

// tokenSize is the length of what appendToken appends.
const tokenSize = 10

// appendToken appends GenerateResponse{outputs {num_tokens: 1, token_ids: [id]}}; id is a Stamp.
func appendToken(dst []byte, id uint32) []byte {
	return appendOutputs(dst, id, 0)
}

func appendOutputs(dst []byte, id uint32, more byte) []byte {
	return append(dst, 0x12, 8+more, 0x18, 1, 0x22, 4, byte(id)|0x80, byte(id>>7)|0x80, byte(id>>14)|0x80, byte(id>>21))
}

// appendLastToken is appendToken with finish_info {num_output_tokens, finish_reason: LENGTH}.
func appendLastToken(dst []byte, id, total uint32) []byte {
	finish := 1 + protowire.SizeVarint(uint64(total)) + 2
	dst = appendOutputs(dst, id, byte(2+finish))
	return appendFinish(dst, total, 1, finish)
}

// appendAborted appends GenerateResponse{outputs {finish_info {num_output_tokens, finish_reason: ABORTED}}}.
func appendAborted(dst []byte, total uint32) []byte {
	finish := 1 + protowire.SizeVarint(uint64(total)) + 2
	return appendFinish(append(dst, 0x12, byte(2+finish)), total, 3, finish)
}

func appendFinish(dst []byte, total uint32, reason byte, size int) []byte {
	dst = append(dst, 0x42, byte(size), 0x08)
	dst = protowire.AppendVarint(dst, uint64(total))
	return append(dst, 0x10, reason)
}
