package translate

import (
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/dynamo/protocol"
)

// The keys of a hand-off that are between sidecars: no engine gets to see them.
const (
	// stampKey is Remora's own.
	stampKey = "_remora"
	// expandedKey is the Rust sidecar's: the ids of a prompt with the tokens that the engine put into it for raw media.
	expandedKey = "_dynamo_sidecar_multimodal_prompt_token_ids"
)

// The keys of a NIXL hand-off that the decode engine cannot do without. Measured: with one of them missing it crashes, or the
// request hangs and its blocks are lost until a restart.
const (
	keyPrefill   = "do_remote_prefill"
	keyBlocks    = "remote_block_ids"
	keyEngine    = "remote_engine_id"
	keyRequest   = "remote_request_id"
	keyHost      = "remote_host"
	keyPort      = "remote_port"
	keyMode      = "transfer_mode"
	keyContextDP = "dcp_size"
)

// handoff makes the decode engine's transfer parameters from what the prefill worker left.
func (c *converter) handoff() (*structpb.Struct, *Refusal) {
	result := c.req.PrefillResult
	if result == nil {
		return nil, refuseHandoff(protocol.ErrorBackendInvalidArgument, FaultAbsent, "the request has no prefill_result, which a decode worker needs")
	}
	params := result.DisaggregatedParams
	if params.Kind != protocol.KindMap {
		return nil, refuseHandoff(protocol.ErrorBackendInvalidArgument, FaultNotObject, "disaggregated_params must be an object")
	}
	if text, _ := params.Get(stampKey); text.Kind == protocol.KindString {
		c.stamp, _ = ParseStamp(text.Str) // one that can't be read is as good as none: it may be of a later version
	}
	if c.engine.HandoffCheck != HandoffOff {
		if refusal := c.checkHandoff(params); refusal != nil {
			return nil, refusal
		}
	}
	params = without(params, stampKey)
	if c.form != mediaNone {
		params = without(params, expandedKey)
	}
	out, fault := toStruct(params)
	if fault != nil {
		return nil, refuseHandoff(protocol.ErrorBackendInvalidArgument, fault.fault, "disaggregated_params%s", fault.text())
	}
	portAsText(out)
	return out, nil
}

// checkHandoff refuses a hand-off that can't be this request's, and one that its engine would not survive.
func (c *converter) checkHandoff(params protocol.Value) *Refusal {
	if c.stamp != (Stamp{}) && c.stamp.Prompt != promptOf(c.req.TokenIDs, c.items) {
		return malformed(FaultTokens, "it was made for another prompt")
	}
	if _, ok := params.Get(expandedKey); ok && c.form == mediaNone {
		return malformed(FaultTokens, "it was made for a prompt with media")
	}
	if isNIXLPull(params) {
		return c.checkNIXL(params)
	}
	return nil
}

// promptTokens is the length of the prompt as the engine has it; 0: not known, because the engine will put media into it and
// the prefill worker did not say how long it has become.
func (c *converter) promptTokens(params protocol.Value) int {
	if c.form != mediaRaw {
		return len(c.req.TokenIDs)
	}
	expanded, _ := params.Get(expandedKey)
	return len(expanded.List)
}

// without returns an object less one key; v itself is shared and stays as it is.
func without(v protocol.Value, key string) protocol.Value {
	if _, ok := v.Get(key); !ok {
		return v
	}
	members := make([]protocol.Member, 0, len(v.Map))
	for i := range v.Map {
		if v.Map[i].Key != key {
			members = append(members, v.Map[i])
		}
	}
	return protocol.Map(members...)
}

// portAsText keeps a numeric port from arriving as a float: engines before 0.30 write it into a URL as it is, "5600.0".
func portAsText(params *structpb.Struct) {
	port, ok := params.GetFields()[keyPort].GetKind().(*structpb.Value_NumberValue)
	if !ok {
		return
	}
	n := port.NumberValue
	if n >= 0 && n <= maxExact && n == math.Trunc(n) {
		params.Fields[keyPort] = structpb.NewStringValue(strconv.FormatInt(int64(n), 10))
	}
}

// isNIXLPull recognizes the one hand-off whose shape is known: the decode engine is to pull from the prefill engine's NIXL
// side channel. Connectors that agree on a rendezvous beforehand use some of the same key names with other meanings; they are
// told by their own keys and pass as they are, like everything else.
func isNIXLPull(params protocol.Value) bool {
	if wanted, _ := params.Get(keyPrefill); !truthy(wanted) {
		return false
	}
	if mode, _ := params.Get(keyMode); mode.Kind == protocol.KindString && mode.Str != "pull" {
		return false
	}
	for _, foreign := range []string{"transfer_id", "remote_bootstrap_addr"} {
		if v, _ := params.Get(foreign); !v.IsNull() {
			return false
		}
	}
	for _, key := range []string{keyBlocks, keyEngine, keyRequest, keyHost, keyPort} {
		if _, ok := params.Get(key); ok {
			return true
		}
	}
	return false
}

// truthy is the engine's reading of a switch: it does not ask for a boolean.
func truthy(v protocol.Value) bool {
	switch v.Kind {
	case protocol.KindNull:
		return false
	case protocol.KindBool:
		return v.Bool
	case protocol.KindInt:
		return v.Int != 0
	case protocol.KindUint:
		return v.Uint != 0
	case protocol.KindFloat:
		return v.Float != 0
	case protocol.KindString:
		return v.Str != ""
	case protocol.KindBytes:
		return len(v.Bytes) > 0
	case protocol.KindList:
		return len(v.List) > 0
	case protocol.KindMap:
		return len(v.Map) > 0
	default:
		return false
	}
}

// handoffKey names a NIXL hand-off: the prefill engine never uses the pair again. Others have no name.
func handoffKey(params protocol.Value) string {
	engine, _ := params.Get(keyEngine)
	request, _ := params.Get(keyRequest)
	if engine.Kind != protocol.KindString || request.Kind != protocol.KindString {
		return ""
	}
	return engine.Str + "\x00" + request.Str
}

// checkNIXL is the shape check.
func (c *converter) checkNIXL(params protocol.Value) *Refusal {
	if v, _ := params.Get(keyPrefill); v.Kind != protocol.KindBool {
		return malformed(FaultKind, "%s must be a boolean", keyPrefill)
	}
	for _, key := range []string{keyEngine, keyRequest, keyHost} {
		v, ok := params.Get(key)
		switch {
		case !ok:
			return malformed(FaultMissingKey, "%s is missing", key)
		case v.Kind != protocol.KindString:
			return malformed(FaultKind, "%s must be a string", key)
		case strings.TrimSpace(v.Str) == "":
			return malformed(FaultBlank, "%s is blank", key)
		}
	}
	if refusal := checkPort(params); refusal != nil {
		return refusal
	}
	return c.checkBlocks(params)
}

func checkPort(params protocol.Value) *Refusal {
	v, ok := params.Get(keyPort)
	if !ok {
		return malformed(FaultMissingKey, "%s is missing", keyPort)
	}
	port, isNumber := whole(v)
	if v.Kind == protocol.KindString {
		parsed, err := strconv.ParseUint(v.Str, 10, 16) // decimal digits alone: no sign, no blanks
		if err != nil {
			return malformed(FaultPort, "%s %.20q is not a port", keyPort, v.Str)
		}
		port = int64(parsed)
	} else if !isNumber {
		return malformed(FaultKind, "%s must be a whole number or its decimal text", keyPort)
	}
	if port < 1 || port > math.MaxUint16 {
		return malformed(FaultPort, "%s %d is outside 1-65535", keyPort, port)
	}
	return nil
}

// checkBlocks wants a list of lists of block ids, one list a KV cache group. With one group the number of ids must be that of
// the prompt: the engine matches blocks from the end of the list, so with too many it answers with wrong text and says
// nothing, and with too few it dies. Groups of a hybrid model keep fewer blocks than the prompt fills; they are not counted.
func (c *converter) checkBlocks(params protocol.Value) *Refusal {
	v, ok := params.Get(keyBlocks)
	switch {
	case !ok:
		return malformed(FaultMissingKey, "%s is missing", keyBlocks)
	case v.Kind != protocol.KindList:
		return malformed(FaultKind, "%s must be a list", keyBlocks)
	case len(v.List) == 0:
		return malformed(FaultBlocks, "%s is empty", keyBlocks)
	}
	ids := 0
	for i := range v.List {
		group := &v.List[i]
		if group.Kind != protocol.KindList {
			return malformed(FaultBlocks, "%s must be a list of lists, one a KV cache group", keyBlocks)
		}
		for j := range group.List {
			if id, isWhole := whole(group.List[j]); !isWhole || id < 0 || id > math.MaxInt32 {
				return malformed(FaultBlocks, "%s[%d][%d] is not a block id", keyBlocks, i, j)
			}
		}
		ids += len(group.List)
	}
	if ids == 0 {
		return malformed(FaultBlocks, "%s has no block", keyBlocks)
	}
	size, promptTokens := int(c.engine.BlockSize), c.promptTokens(params)
	if c.stamp.BlockSize != 0 { // the prefill engine's own
		size = int(c.stamp.BlockSize)
	}
	if c.engine.HandoffCheck != HandoffStrict || size == 0 || promptTokens == 0 || len(v.List) != 1 || contextParallel(params) {
		return nil
	}
	if want := (promptTokens + size - 1) / size; ids != want {
		return malformed(FaultBlockCount, "%s has %d blocks, a prompt of %d tokens fills %d of %d tokens each",
			keyBlocks, ids, promptTokens, want, size)
	}
	return nil
}

// contextParallel: decode context parallelism stretches a block over several ranks, so the count per block size does not hold.
func contextParallel(params protocol.Value) bool {
	v, _ := params.Get(keyContextDP)
	size, ok := whole(v)
	return ok && size != 1
}

// whole reads an integer, also one that a codec made a float of.
func whole(v protocol.Value) (int64, bool) {
	switch {
	case v.Kind == protocol.KindInt:
		return v.Int, true
	case v.Kind == protocol.KindFloat && v.Float == math.Trunc(v.Float) && math.Abs(v.Float) <= maxExact:
		return int64(v.Float), true
	default:
		return 0, false
	}
}
