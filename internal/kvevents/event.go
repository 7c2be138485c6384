package kvevents

// Batch is what an engine published in one message: the changes of its KV cache in one step. It belongs to the Decoder that
// made it and is good until the next call of Decode; what is to stay has to be copied.
type Batch struct {
	// Seq counts the batches of one publisher from 0 on; it begins again at 0 when the engine restarts.
	Seq uint64
	// Timestamp is when the engine made the batch, in seconds since 1970; 0 if it did not say.
	Timestamp float64
	// Rank is the data parallel rank that the batch names; meaningful if HasRank.
	Rank    int64
	HasRank bool
	// Events are in the engine's order.
	Events []Event
	// Skipped counts events that were left out because they were not understood: an unknown kind, a missing or odd field.
	// SkippedWhy says why the first of them was.
	Skipped    int
	SkippedWhy string
}

// Kind says what an Event tells.
type Kind uint8

// The kinds of event.
const (
	// Stored: from now on the cache holds the blocks Hashes, consecutive blocks of one prompt.
	Stored Kind = iota + 1
	// Removed: the cache does not hold the blocks Hashes any more.
	Removed
	// Cleared: the cache is empty.
	Cleared
)

// String is the engine's name for the kind.
func (k Kind) String() string {
	switch k {
	case Stored:
		return "BlockStored"
	case Removed:
		return "BlockRemoved"
	case Cleared:
		return "AllBlocksCleared"
	default:
		return "unknown"
	}
}

// Event is one change. Texts that the engine left out or sent as nil are empty.
type Event struct {
	Kind Kind
	// Hashes are the engine's names for the blocks, in order. A hash that comes as bytes is taken by its last eight, in network
	// order, which is what vLLM does itself when it sends integers.
	Hashes []uint64
	// Medium is where the blocks are: "GPU", "CPU" and so on.
	Medium string
	// Group is the cache group of a hybrid model; meaningful if HasGroup.
	Group    int64
	HasGroup bool
	// Locality is "LOCAL" or "REMOTE".
	Locality string
	// Owned says that the engine named an owner of the blocks, whatever its form: a tier outside this engine holds them.
	Owned bool

	// What follows belongs to Stored alone.

	// Parent is the block before the first one; meaningful if HasParent, otherwise the first block begins a prompt.
	Parent    uint64
	HasParent bool
	// Tokens are the blocks' token ids, BlockSize for each; some may be left over at the end.
	Tokens []uint32
	// NextTokens is as long as Tokens if the engine sent pairs (for EAGLE's speculative decoding, each token and the one after
	// it), else empty.
	NextTokens []uint32
	// BlockSize is how many tokens a block has.
	BlockSize uint64
	// LoRAID is the adapter's number; meaningful if HasLoRAID. Deprecated by vLLM in favour of LoRAName.
	LoRAID    int64
	HasLoRAID bool
	// LoRAName is the adapter's name.
	LoRAName string
	// ExtraKeys has up to one element for each block: what beside the tokens tells it from others. Blocks beyond its end have
	// none.
	ExtraKeys [][]ExtraKey
	// SpecKind is the kind of cache of the group, for instance "full_attention".
	SpecKind string
	// SlidingWindow is the group's window in tokens; meaningful if HasSlidingWindow.
	SlidingWindow    int64
	HasSlidingWindow bool
	// SessionID is the client's session.
	SessionID string
}

// ExtraKey is one part of what tells a block from others with the same tokens.
type ExtraKey struct {
	// Text is a cache salt, an adapter's name, or the hash of an image or other medium.
	Text string
	// Offset is where the medium begins in the prompt; meaningful if HasOffset.
	Offset    int64
	HasOffset bool
	// Opaque marks a key of another form (a number, bytes, a list); the rest is empty then.
	Opaque bool
}
