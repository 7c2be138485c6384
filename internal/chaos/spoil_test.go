package chaos

import (
	"slices"

	"remora/internal/dynamo/protocol"
)

// spoil breaks a hand-off in one of the ways that an engine does not survive, does not answer, or answers with wrong text.
func (c *conv) spoil(params protocol.Value) protocol.Value {
	keys := []string{"remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids"}
	key := pick(c.world, keys...)
	switch c.rng.IntN(5) {
	case 0:
		return change(params, key, nil)
	case 1:
		blank := protocol.String(" ")
		return change(params, key, &blank)
	case 2:
		flat := protocol.List(protocol.Int(1))
		return change(params, "remote_block_ids", &flat)
	case 3:
		empty := protocol.List(protocol.List())
		return change(params, "remote_block_ids", &empty)
	default: // blocks of more than the prompt: matched from the end, and silently wrong
		ids, _ := params.Get("remote_block_ids")
		more := protocol.List(protocol.List(append(slices.Clone(ids.List[0].List), protocol.Int(1))...))
		return change(params, "remote_block_ids", &more)
	}
}

// change returns params with another value for one key, or without it.
func change(params protocol.Value, key string, value *protocol.Value) protocol.Value {
	var members []protocol.Member
	for _, m := range params.Map {
		switch {
		case m.Key != key:
			members = append(members, m)
		case value != nil:
			members = append(members, protocol.Member{Key: key, Value: *value})
		}
	}
	return protocol.Map(members...)
}
