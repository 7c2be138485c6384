package translate

import (
	"slices"

	"remora/internal/dynamo/protocol"
	pb "remora/proto/vllm"
)

// Engine is what discovery learned about the engine and what the operator chose. Set once; Convert may be called from any
// number of goroutines.
type Engine struct {
	Role       protocol.Role // Encode is refused
	ServedName string        // sent as the model of every request
	ModelID    string
	Aliases    []string

	// Multimodal: the engine takes media. LoRA: it could serve adapters, which this version does not; that chooses the words of
	// the refusal.
	Multimodal bool
	LoRA       bool

	// BlockSize is the KV block size in tokens, the prefill engine's being taken for the same; 0 is unknown and leaves the
	// number of blocks in a hand-off unchecked.
	BlockSize uint32
	// RankStart and RankCount: the absolute data-parallel ranks behind this engine; a count of 0 leaves ranks unchecked.
	RankStart uint32
	RankCount uint32

	HandoffCheck HandoffCheck
}

// HandoffCheck is how closely a decode worker looks at a hand-off.
type HandoffCheck uint8

// The levels of the check. Strict also counts the blocks; Off converts only.
const (
	HandoffStrict HandoffCheck = iota
	HandoffShape
	HandoffOff
)

// Call is a converted request. The caller owns it.
type Call struct {
	Request *pb.GenerateRequest
	// Rank goes into the metadata key x-data-parallel-rank as decimal text; nil lets the engine balance.
	Rank *uint32
	// Response converts the answers of this request.
	Response *Response
	// Prompt identifies the prompt; set for prefill and decode.
	Prompt Prompt
	// Stamp is what a Remora prefill worker wrote into the hand-off; zero where there is none that can be read.
	Stamp Stamp
	// HandoffKey names the hand-off among all, for telling a second use; empty where it has no name.
	HandoffKey string
	// HandoffUsed: the request claims a prefill's blocks, so losing it would leave them held for a whole lease.
	HandoffUsed bool
}

// Shorten makes the request of a decode that was cancelled before it was dispatched end by itself: the engine still pulls the
// blocks, which releases the prefill side, and stops after one token without an Abort.
func Shorten(r *pb.GenerateRequest) {
	if r.GetStopping() == nil {
		r.Stopping = &pb.StoppingCriteria{}
	}
	r.Stopping.MaxNewTokens = 1
	r.Stopping.MinNewTokens = 0
}

// Convert turns a request into an engine call or refuses it. id becomes the engine's request id. The request is only read;
// the call shares its slices, which nobody may change afterwards.
func (e *Engine) Convert(id string, r *protocol.PreprocessedRequest) (*Call, *Refusal) {
	call, refusal := e.convert(id, r)
	if refusal != nil && refusal.Handoff == FaultNone && e.Role == protocol.Decode {
		c := newConverter(e, r)
		_ = c.media() // what can't be read makes another prompt, so its hand-off is not taken for sound
		if params, bad := c.handoff(); bad == nil {
			refusal.Unclaimed, refusal.Stamp = params, c.stamp
			refusal.HandoffKey = handoffKey(r.PrefillResult.DisaggregatedParams)
		}
	}
	return call, refusal
}

func (e *Engine) convert(id string, r *protocol.PreprocessedRequest) (*Call, *Refusal) {
	c := newConverter(e, r)
	switch {
	case c.form != mediaNone && !e.Multimodal:
		return nil, refuse("the request carries media, but model %q takes text only", e.ServedName)
	case e.Role == protocol.Encode:
		return nil, refuse("the encode role is not supported by this version")
	}
	if refusal := c.hydrate(); refusal != nil {
		return nil, refusal
	}
	rank, refusal := e.rank(&r.Routing)
	if refusal != nil {
		return nil, refusal
	}
	request, refusal := c.convert(id)
	if refusal != nil {
		return nil, refusal
	}
	call := &Call{Request: request, Rank: rank, Response: newResponse(e.Role, &c.req, c.form == mediaRaw)}
	switch e.Role {
	case protocol.Prefill:
		call.Prompt = promptOf(r.TokenIDs, request.GetMedia())
	case protocol.Decode:
		call.Prompt = promptOf(r.TokenIDs, request.GetMedia())
		call.Stamp, call.HandoffKey, call.HandoffUsed = c.stamp, handoffKey(r.PrefillResult.DisaggregatedParams), true
	case protocol.Aggregated, protocol.Encode:
	}
	return call, nil
}

// oneToken: the role answers with a hand-off; its engine request is the same one-token request whatever the client asked.
func (e *Engine) oneToken() bool { return e.Role == protocol.Prefill }

// rank picks the absolute data-parallel rank of the role.
func (e *Engine) rank(routing *protocol.Routing) (*uint32, *Refusal) {
	rank := routing.DPRank
	if e.Role == protocol.Prefill && routing.PrefillDPRank != nil {
		rank = routing.PrefillDPRank
	}
	if rank == nil {
		return nil, nil
	}
	if e.RankCount > 0 && (*rank < e.RankStart || *rank-e.RankStart >= e.RankCount) {
		return nil, refuse("data-parallel rank %d is not served here: this worker has ranks %d to %d",
			*rank, e.RankStart, uint64(e.RankStart)+uint64(e.RankCount)-1)
	}
	return rank, nil
}

// isBase: the name means the base model, not an adapter.
func (e *Engine) isBase(name string) bool {
	return name == "" || name == e.ServedName || name == e.ModelID || slices.Contains(e.Aliases, name)
}
