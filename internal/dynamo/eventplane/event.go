package eventplane

// Kind says what an Event reports.
type Kind uint8

// The three kinds of event that routers know.
const (
	// Stored: Blocks are in the cache now, each the continuation of the one before, the first that of Parent.
	Stored Kind = iota
	// Removed: Hashes are not in the cache any more.
	Removed
	// Cleared: nothing is in the rank's cache any more, in any tier.
	Cleared
)

// String is the kind's word on the wire.
func (k Kind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Removed:
		return "removed"
	case Cleared:
		return "cleared"
	}
	return "unknown"
}

// Tier is the kind of memory that blocks lie in. The same block may lie in several.
type Tier uint8

// The tiers that routers know, the fastest first; they count a block found there 1, 0.75, 0.25 and 0.25.
const (
	Device Tier = iota
	HostPinned
	Disk
	External
)

// String is the tier's word on the wire.
func (t Tier) String() string {
	switch t {
	case Device:
		return "device"
	case HostPinned:
		return "host_pinned"
	case Disk:
		return "disk"
	case External:
		return "external"
	}
	return "unknown"
}

// Event is one change of a rank's cache, as the engine saw it. Who hands it to a Publisher gives its slices away.
type Event struct {
	Kind Kind
	Tier Tier // without effect for Cleared
	// SessionID belongs to the request that caused the change; "": unknown, and not written.
	SessionID string

	// Parent is the hash of the block before the first of Blocks. Without one (HasParent false) they begin a prompt.
	Parent    uint64
	HasParent bool
	Blocks    []Block // Stored

	Hashes []uint64 // Removed
}

// Block is one full block of KV cache.
type Block struct {
	// Hash is the engine's name for the block, tokens before it included. Routers only compare it: with Parent, and with the
	// Hashes of Removed.
	Hash uint64
	// TokensHash stands for the block's own tokens, see Hasher.Tokens. Routers compare it with that of a request's tokens.
	TokensHash uint64
	// MM are the hashes of the images and other media in the block; nil: none.
	MM []uint64
}
