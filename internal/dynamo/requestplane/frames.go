package requestplane

import "remora/internal/dynamo/protocol"

// A worker that has many things to say at once lines the frames of a response up in one buffer and sends them in one write:
// AppendPrologue or AppendErrorPrologue first, then any number of AppendItem, then AppendFinal and AppendSentinel (an error
// prologue is followed by the sentinel alone). WriteFrames sends what is not the end, EndFrames the end.

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

// AppendFinal appends the frame that says that the items are complete.
func AppendFinal(dst []byte, codec protocol.Codec) []byte {
	return appendBodyFrame(dst, func(dst []byte) []byte { return protocol.AppendFinal(dst, codec) })
}

// AppendSentinel appends the last frame of a response.
func AppendSentinel(dst []byte) []byte {
	return appendHeaderFrame(dst, func(dst []byte) []byte { return append(dst, sentinel...) })
}

// WriteFrames sends frames as they are, the prologue among them. It blocks while the consumer does not read; Close unblocks it.
func (s *ResponseStream) WriteFrames(frames []byte) error {
	_, err := s.writeFrames(frames, true)
	return err
}

// TryWriteFrames is to WriteFrames what TryWrite is to Write. It keeps no reference to frames.
func (s *ResponseStream) TryWriteFrames(frames []byte) (done bool, err error) {
	return s.writeFrames(frames, false)
}

// EndFrames is WriteFrames for the frames up to the sentinel. The connection is closed when the consumer has closed its side,
// at the latest after the dialer's Linger; Done tells.
func (s *ResponseStream) EndFrames(frames []byte) error {
	_, err := s.end(func() (bool, error) { return s.sendBytes(frames, true) })
	return err
}

// TryEndFrames is to EndFrames what TryWrite is to Write.
func (s *ResponseStream) TryEndFrames(frames []byte) (done bool, err error) {
	return s.end(func() (bool, error) { return s.sendBytes(frames, false) })
}

func (s *ResponseStream) writeFrames(frames []byte, wait bool) (done bool, err error) {
	if s.ended {
		return false, ErrEnded
	}
	s.opened = true
	return s.sendBytes(frames, wait)
}
