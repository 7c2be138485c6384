package core

import (
	"math"
	"strconv"
)

// Transfer is what a request says about KV hand-off, as the engine understands it. The zero value is none; both at once are
// possible.
type Transfer struct {
	Produce bool    // hold the blocks at the end and hand them off
	Consume *Source // fetch the prompt's KV from there
}

// Source names KV in another engine.
type Source struct {
	EngineID  string
	RequestID string // the other engine's internal id
	Host      string
	Port      string // as text: only a first contact looks at it
	Blocks    []int
	Defect    Defect
	NoBeats   bool // no heartbeats are sent for it
	Lacking   bool // a key is absent that the engine looks up when the request is cancelled before it is scheduled
}

// Defect classes a malformed hand-off by what the real engine does with it.
type Defect int

const (
	// Sound hand-offs are fetched.
	Sound Defect = iota
	// NoBlocks kills the engine at the first scheduling, unless nothing has to be fetched: then it is ignored.
	NoBlocks
	// BadBlocks kills the engine when the transfer starts.
	BadBlocks
	// MissingKey is never fetched and never answered; its blocks are lost.
	MissingKey
)

// ParseTransfer reads kv_transfer_params. It refuses nothing, as the engine does: what is wrong shows later.
// Values are those of a decoded JSON object: nil, bool, float64, string, []any and map[string]any.
func ParseTransfer(params map[string]any) Transfer {
	var t Transfer
	t.Produce = truthy(params["do_remote_decode"])
	if !truthy(params["do_remote_prefill"]) {
		return t
	}
	src := &Source{
		EngineID:  text(params["remote_engine_id"]),
		RequestID: text(params["remote_request_id"]),
		Host:      text(params["remote_host"]),
		Port:      text(params["remote_port"]),
	}
	src.NoBeats = params["tp_size"] == nil
	src.Blocks, src.Defect = blockList(params["remote_block_ids"])
	_, listed := params["remote_block_ids"]
	src.Lacking = !listed
	for _, key := range []string{"remote_engine_id", "remote_request_id", "remote_host", "remote_port"} {
		value, ok := params[key]
		src.NoBeats = src.NoBeats || value == nil
		src.Lacking = src.Lacking || !ok
		if !ok && src.Defect != NoBlocks {
			src.Defect = MissingKey
		}
	}
	t.Consume = src
	return t
}

// blockList reads a list with one inner list of block numbers.
func blockList(v any) ([]int, Defect) {
	if !truthy(v) {
		return nil, NoBlocks
	}
	outer, ok := v.([]any)
	if !ok || len(outer) != 1 {
		return nil, BadBlocks
	}
	inner, ok := outer[0].([]any)
	if !ok {
		return nil, BadBlocks
	}
	ids := make([]int, 0, len(inner))
	for _, item := range inner {
		n, isNumber := item.(float64)
		if !isNumber || n != math.Trunc(n) || math.Abs(n) > math.MaxInt32 {
			return nil, BadBlocks
		}
		ids = append(ids, int(n))
	}
	return ids, Sound
}

// truthy is Python's notion of it: the engine reads its flags that way.
func truthy(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case float64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	default:
		return true
	}
}

// text reads an id, a host or a port; numbers become their shortest decimal form, everything else is as good as absent.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<31 {
			return strconv.Itoa(int(v))
		}
	}
	return ""
}

// HandOff is what a finished prefill tells the decode engine.
type HandOff struct {
	EngineID  string
	RequestID string
	Blocks    []int
	NumTokens int  // tokens with valid KV
	Cached    *int // prefix hit of the prefill; nil when it generated more than one token (measured on 0.32.0)
}

// Params is the hand-off in the shape of kv_transfer_params, with the address at which decode engines reach this one. Values
// are nil, bool, float64, string and []any.
func (h *HandOff) Params(host string, port int) map[string]any {
	ids := make([]any, len(h.Blocks))
	for i, id := range h.Blocks {
		ids[i] = float64(id)
	}
	params := map[string]any{
		"do_remote_prefill":         true,
		"do_remote_decode":          false,
		"remote_block_ids":          []any{ids},
		"remote_engine_id":          h.EngineID,
		"remote_request_id":         h.RequestID,
		"remote_host":               host,
		"remote_port":               float64(port),
		"tp_size":                   1.0,
		"dcp_size":                  1.0,
		"pp_size":                   1.0,
		"remote_num_tokens":         float64(h.NumTokens),
		"remote_blocks_expiry_time": nil,
		"transfer_mode":             "pull",
	}
	if h.Cached != nil {
		params["remote_prefill_cached_tokens"] = float64(*h.Cached)
	}
	return params
}
