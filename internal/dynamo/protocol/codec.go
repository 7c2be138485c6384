package protocol

// String returns the word of the control header's payload_codec.
func (c Codec) String() string {
	switch c {
	case JSON:
		return "json"
	case MsgPack:
		return "msgpack"
	default:
		return "unknown"
	}
}

// ParseCodec reads the word of the control header's payload_codec. An absent word means JSON; that is the caller's to know.
func ParseCodec(word string) (codec Codec, ok bool) {
	switch word {
	case "json":
		return JSON, true
	case "msgpack":
		return MsgPack, true
	default:
		return JSON, false
	}
}
