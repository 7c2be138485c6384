package kvevents

import "errors"

// What can be wrong with what an engine sends. They come wrapped with details.
var (
	// ErrBatch: a payload is no batch; nothing of it is known.
	ErrBatch = errors.New("not a batch of KV events")
	// ErrMessage: the frames are not those of an event message or of a replay answer.
	ErrMessage = errors.New("not a KV event message")
)
