package routing

import "errors"

// ErrOtherRanks says that an engine publishes the KV events of other ranks than the one before it, of which routers know.
var ErrOtherRanks = errors.New("it publishes the KV events of other ranks")
