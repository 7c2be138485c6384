package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"remora/internal/sim/core"
	"remora/internal/sim/kvpub"
	"remora/internal/tinymodel"
)

// Errors of New and Run.
var (
	// ErrConfig is wrapped by New for values that make no engine.
	ErrConfig = errors.New("sim: invalid configuration")
	// ErrEngineDead is returned by Run some time after the engine met something that a real one does not survive.
	ErrEngineDead = errors.New("sim: engine core died")
	// ErrRestart is returned by Run after Restart: the caller is to make another engine that serves at the same addresses.
	ErrRestart = errors.New("sim: restart")
	// ErrUsed is returned by a second Run.
	ErrUsed = errors.New("sim: server has already run")
)

// Config describes one simulated engine. The zero value of each field stands for the default that its comment names.
type Config struct {
	// Model is the path of the model folder, told as model_id. Engines of a prefill and decode pair need the same text.
	// Required.
	Model string
	// ServedName is the name that requests may use. Default: Model.
	ServedName string
	// Aliases are further names that requests may use.
	Aliases []string

	BlockSize        int // tokens of a KV block; default 16
	Blocks           int // KV blocks, the null block included; default 1024
	MaxModelLen      int // prompt and answer together; default 8192, or what the blocks hold if that is less
	MaxSeqs          int // requests that run at the same time; default 64
	MaxBatchedTokens int // tokens of one step, at least one for each of MaxSeqs; default 2048, or more where the others need it
	// PrefillTokensPerStep limits how many of a step's tokens are prompt tokens. Default: MaxBatchedTokens.
	PrefillTokensPerStep int
	// DataParallelSize is the number of data-parallel ranks, DataParallelSizeLocal of those that are here, each with blocks of its
	// own, and DataParallelStartRank the first of these. Defaults: 1, all from the first on, 0.
	DataParallelSize, DataParallelStartRank, DataParallelSizeLocal int
	// StepTime is how long a step takes, so how often a running request gets a token. Default 10 ms.
	StepTime time.Duration
	// Lease is how long a finished prefill's blocks are held for a reader. Default 30 s.
	Lease time.Duration
	// HandshakeTimeout bounds the first contact with another engine. Default 5 s.
	HandshakeTimeout time.Duration
	// DeathLinger is how long a dead engine's servers go on answering before Run gives up. Default 30 s.
	DeathLinger time.Duration
	// Seed stands for the model's weights: engines with different seeds say different things. Default 0.
	Seed uint64
	// Multimodal: requests may bring media, which change what the engine says.
	Multimodal bool
	// HashSeed is where block hashes begin, as PYTHONHASHSEED says for a real engine: equal blocks of engines, and of ranks, with
	// one seed have one name. Default: each rank draws its own.
	HashSeed uint64
	// KVEvents says whether and where changes of the prefix cache are published. Default: nowhere.
	KVEvents kvpub.Config
	// EventsHost is the address at which wildcard event endpoints listen. Default 127.0.0.1.
	EventsHost string
	// EventsNetwork opens the sockets for events. Default: ZeroMQ's.
	EventsNetwork kvpub.Network
	// EngineVersion is told as engine_version. Default "0.32.0".
	EngineVersion string
	// EngineID names this engine in hand-offs; with several ranks each adds _dp and its local number. Default: a random UUID.
	EngineID string
	// SideChannelHost is what hand-offs name as remote_host. Default: the address of the side channel's listener.
	SideChannelHost string
	// SideChannelPort is what hand-offs of rank 0 name as remote_port; those of other ranks add their number. Default: the port
	// of the side channel's listener.
	SideChannelPort int
	// Faults are those that are on from the start. Server.SetFault turns them on and off later.
	Faults []Fault
	// ReadDelay is how long ReadSlow makes a transfer wait. Default 2 s.
	ReadDelay time.Duration

	// Dial connects to another engine's side channel. Default: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Log takes the engine's log. Default: discarded.
	Log *slog.Logger
}

// Largest sizes that are still a simulator: 2^26 slots are half a gigabyte.
const (
	maxBlockSize = 1 << 12
	maxSlots     = 1 << 26
	maxRanks     = 1 << 16 // of all engines together
)

func (c Config) withDefaults() (Config, error) {
	if c.Model == "" {
		return c, fmt.Errorf("%w: no model", ErrConfig)
	}
	for _, n := range []int{
		c.BlockSize, c.Blocks, c.MaxModelLen, c.MaxSeqs, c.MaxBatchedTokens, c.PrefillTokensPerStep, c.SideChannelPort,
		c.DataParallelSize, c.DataParallelStartRank, c.DataParallelSizeLocal,
	} {
		if n < 0 {
			return c, fmt.Errorf("%w: sizes must not be negative", ErrConfig)
		}
	}
	for _, d := range []time.Duration{c.StepTime, c.Lease, c.HandshakeTimeout, c.DeathLinger, c.ReadDelay} {
		if d < 0 {
			return c, fmt.Errorf("%w: times must not be negative", ErrConfig)
		}
	}
	for _, f := range c.Faults {
		if _, err := ParseFault(string(f)); err != nil {
			return c, fmt.Errorf("%w: %w", ErrConfig, err)
		}
	}
	setDefault(&c.ServedName, c.Model)
	setDefault(&c.BlockSize, 16)
	setDefault(&c.Blocks, 1024)
	setDefault(&c.DataParallelSize, 1)
	_, c.DataParallelSizeLocal = c.LocalRanks()
	if c.DataParallelSize > maxRanks || c.DataParallelSizeLocal < 1 || c.DataParallelSizeLocal > c.DataParallelSize-c.DataParallelStartRank {
		return c, fmt.Errorf("%w: %d local data-parallel ranks from rank %d on do not fit in %d", ErrConfig,
			c.DataParallelSizeLocal, c.DataParallelStartRank, c.DataParallelSize)
	}
	if c.BlockSize > maxBlockSize || c.Blocks < 2 || c.Blocks > maxSlots/c.BlockSize/c.DataParallelSizeLocal {
		return c, fmt.Errorf("%w: %d blocks of %d tokens on each of %d ranks", ErrConfig, c.Blocks, c.BlockSize, c.DataParallelSizeLocal)
	}
	setDefault(&c.MaxModelLen, min(tinymodel.MaxContext, (c.Blocks-1)*c.BlockSize))
	setDefault(&c.MaxSeqs, 64)
	setDefault(&c.MaxBatchedTokens, max(2048, c.MaxSeqs, c.PrefillTokensPerStep))
	setDefault(&c.PrefillTokensPerStep, c.MaxBatchedTokens)
	setDefault(&c.StepTime, 10*time.Millisecond)
	setDefault(&c.Lease, 30*time.Second)
	setDefault(&c.HandshakeTimeout, 5*time.Second)
	setDefault(&c.DeathLinger, 30*time.Second)
	setDefault(&c.ReadDelay, 2*time.Second)
	setDefault(&c.EngineVersion, "0.32.0")
	setDefault(&c.EngineID, newUUID())
	setDefault(&c.EventsHost, "127.0.0.1")
	if c.EventsNetwork == nil {
		c.EventsNetwork = kvpub.ZeroMQ{}
	}
	events, err := c.KVEvents.WithDefaults()
	if err != nil {
		return c, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	c.KVEvents = events
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	return c, nil
}

// LocalRanks are the first local data-parallel rank and the number of local ones, defaults filled in. Whether they make sense
// is for New to say.
func (c Config) LocalRanks() (first, count int) {
	setDefault(&c.DataParallelSize, 1)
	setDefault(&c.DataParallelSizeLocal, c.DataParallelSize-c.DataParallelStartRank)
	return c.DataParallelStartRank, c.DataParallelSizeLocal
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c Config) core() core.Config {
	return core.Config{
		BlockSize:        c.BlockSize,
		Blocks:           c.Blocks,
		MaxModelLen:      c.MaxModelLen,
		MaxSeqs:          c.MaxSeqs,
		MaxBatchedTokens: c.MaxBatchedTokens,
		PrefillTokens:    c.PrefillTokensPerStep,
		Lease:            c.Lease,
		EngineID:         c.EngineID,
		Seed:             c.Seed,
		Vocab:            vocab(),
		HashSeed:         c.HashSeed,
		KVEvents:         c.KVEvents.Enable,
	}
}

// vocab makes text of the built-in model's tokens that read like words: a space and at least three letters.
func vocab() core.Vocab {
	v := core.Vocab{Size: tinymodel.VocabSize, EOS: tinymodel.EOS}
	for id := range uint32(tinymodel.VocabSize) {
		if word := tinymodel.TokenBytes(id); len(word) > 3 && word[0] == ' ' && isLetters(word[1:]) {
			v.Words = append(v.Words, id)
		}
	}
	return v
}

func isLetters(b []byte) bool {
	for _, c := range b {
		if c|0x20 < 'a' || c|0x20 > 'z' {
			return false
		}
	}
	return true
}
