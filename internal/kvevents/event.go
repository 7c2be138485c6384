package kvevents

// Batch is what an engine published in one message: the changes of its KV cache in one step.
type Batch struct {
	// Seq counts the batches of one publisher from 0 on; it begins again at 0 when the engine restarts.
	Seq uint64
	// Timestamp is when the engine made the batch, in seconds since 1970.
	Timestamp float64
	// Rank is the data parallel rank that the batch names; meaningful if HasRank, since older engines may leave it out.
	Rank    int64
	HasRank bool
	// Events are in the engine's order. They hold copies of their own, and may be kept.
	Events []Event
	// Skipped counts events that were left out because they were not understood: an unknown kind, a missing or odd field.
	// SkippedWhy says why the first of them was.
	Skipped    int
	SkippedWhy string
}

// Event is one of *BlockStored, *BlockRemoved and AllBlocksCleared.
type Event interface{ event() }

// BlockStored tells of consecutive blocks of one prompt that the cache holds from now on.
//
// Texts that the engine left out or sent as nil are empty.
type BlockStored struct {
	// Hashes are the engine's names for the blocks, in order. An engine that sends hashes as bytes is taken by the last eight,
	// in network order, which is what it sends itself when it sends integers.
	Hashes []uint64
	// Parent is the block before the first one; meaningful if HasParent, otherwise the first block begins a prompt.
	Parent    uint64
	HasParent bool
	// Tokens are the blocks' token ids, BlockSize for each; there may be some left over at the end.
	Tokens []uint32
	// NextTokens is as long as Tokens if the engine sent pairs (for speculative decoding with EAGLE, each token and the one
	// after it), else nil.
	NextTokens []uint32
	// BlockSize is how many tokens a block has.
	BlockSize uint64
	// LoRAID is the adapter's number; meaningful if HasLoRAID. Deprecated by vLLM in favour of the name.
	LoRAID    int64
	HasLoRAID bool
	// LoRAName is the adapter's name.
	LoRAName string
	// Medium is where the blocks are: "GPU", "CPU" and so on.
	Medium string
	// ExtraKeys has an element for each block, or fewer: what beside the tokens tells this block from others. Nil if there are
	// none at all.
	ExtraKeys [][]ExtraKey
	// Group is the cache group of a hybrid model; meaningful if HasGroup.
	Group    int64
	HasGroup bool
	// SpecKind is the kind of cache of the group, for instance "full_attention".
	SpecKind string
	// SlidingWindow is the group's window in tokens; meaningful if HasSlidingWindow.
	SlidingWindow    int64
	HasSlidingWindow bool
	// Locality is "LOCAL" or "REMOTE".
	Locality string
	// Owned says that the engine named an owner of the blocks, whatever its form: a tier outside this engine holds them.
	Owned bool
	// SessionID is the client's session.
	SessionID string
}

// ExtraKey is one part of what tells a block from others with the same tokens.
type ExtraKey struct {
	// Text is a cache salt, an adapter's name, or the hash of a medium (64 hexadecimal digits).
	Text string
	// Offset is where the medium begins in the prompt; meaningful if HasOffset.
	Offset    int64
	HasOffset bool
	// Opaque marks a key of another form (a number, bytes, a list); Text is empty then.
	Opaque bool
}

// BlockRemoved tells of blocks that the cache does not hold any more.
type BlockRemoved struct {
	// Hashes are the blocks' names, as they were stored.
	Hashes []uint64
	// Medium, Group, Locality and Owned are as in BlockStored.
	Medium   string
	Group    int64
	HasGroup bool
	Locality string
	Owned    bool
}

// AllBlocksCleared tells that the cache is empty.
type AllBlocksCleared struct{}

func (*BlockStored) event()     {}
func (*BlockRemoved) event()    {}
func (AllBlocksCleared) event() {}
