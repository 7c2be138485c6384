package core

import (
	"errors"
	"fmt"
	"time"
)

// Errors of New and Add.
var (
	ErrConfig = errors.New("core: invalid configuration")
	ErrDead   = errors.New("core: engine is dead")
	// ErrDuplicate is for a request whose id is live, or held.
	ErrDuplicate = errors.New("core: request id is in use")
)

// Config fixes an engine for its life. Sizes and times must be set; the simulator around it knows the defaults.
type Config struct {
	BlockSize        int
	Blocks           int // the null block included
	MaxModelLen      int
	MaxSeqs          int
	MaxBatchedTokens int // tokens of one step
	PrefillTokens    int // of these, at most that many for prompts
	Lease            time.Duration
	EngineID         string // as told to decode engines
	Seed             uint64 // the model's weights, so to say: engines of a pair need the same
	Vocab            Vocab
	// HashSeed starts all block hashes: engines with different ones name equal blocks differently.
	HashSeed uint64
	// KVEvents makes the engine tell how its prefix cache changes: see TakeEvents.
	KVEvents bool
	// HeadFirstExpiry models a defect of the real engine: the scan for ended leases stops at the first entry that still runs.
	HeadFirstExpiry bool
	// CrashLateReceive models another one (vLLM 43226): the engine dies of a transfer that ends after its request was aborted.
	CrashLateReceive bool
}

func (c Config) validate() error {
	switch {
	case c.BlockSize < 1 || c.Blocks < 2 || c.MaxModelLen < 2 || c.MaxSeqs < 1 || c.MaxBatchedTokens < 1 || c.PrefillTokens < 1:
		return fmt.Errorf("%w: sizes must be positive", ErrConfig)
	case (c.Blocks-1)*c.BlockSize < c.MaxModelLen:
		return fmt.Errorf("%w: %d usable blocks of %d tokens cannot hold one request of %d tokens", ErrConfig, c.Blocks-1, c.BlockSize, c.MaxModelLen)
	case c.MaxBatchedTokens < c.MaxSeqs: // a real engine refuses it too: the last ones would get nothing while the others run
		return fmt.Errorf("%w: %d tokens of one step are too few for %d requests", ErrConfig, c.MaxBatchedTokens, c.MaxSeqs)
	case c.Lease <= 0:
		return fmt.Errorf("%w: lease must be positive", ErrConfig)
	default:
		return c.Vocab.validate()
	}
}

// Engine is one engine core. It is not safe for concurrent use.
type Engine struct {
	cfg      Config
	pool     *pool
	model    *model
	journal  *journal             // nil: no KV events
	seqs     map[string]*sequence // all live ones, those in recvPending included
	queue    []*sequence          // waiting and remoteWait, next first
	running  []*sequence          // oldest first
	batch    []*sequence          // what the step between Schedule and Apply computes
	holds    []*hold              // oldest first
	notices  []notice             // from decode engines, taken up by the next Schedule
	nextBeat time.Duration
	plan     Plan // what the next Schedule will return
	outs     []Output
	counts   Counters
	paused   Pause
	doomed   bool // the next step is the last one
	dead     bool
}

// Plan is what a step asks of the world outside.
type Plan struct {
	Busy  bool // something is computed: Apply must follow, one step time later
	Reads []Read
	Dones []Done
	Beats []Beat
}

// Read asks for blocks of another engine. It is answered by ReadDone or ReadFailed with the same id, and after a success the
// source is to be told with a Done notification.
type Read struct {
	ID     string // of the local request
	Source Source
	Blocks []int // remote blocks, one for each local block to be filled
}

// Done tells a source that its request's blocks are not needed any more.
type Done struct{ Source Source }

// Beat keeps leases at another engine alive.
type Beat struct {
	Source     Source // one of them, for the address
	RequestIDs []string
}

// New makes an idle engine.
func New(cfg Config) (*Engine, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	e := &Engine{
		cfg:   cfg,
		pool:  newPool(cfg.Blocks, cfg.BlockSize),
		model: newModel(cfg.Vocab, cfg.Seed),
		seqs:  make(map[string]*sequence),
	}
	if cfg.KVEvents {
		e.journal = new(journal)
	}
	return e, nil
}

// Add queues a request. It is legal at any time between steps or within one.
func (e *Engine) Add(req Request) error {
	if e.dead {
		return ErrDead
	}
	if e.seqs[req.ID] != nil || e.holdIndex(req.ID) >= 0 {
		return fmt.Errorf("%w: %s", ErrDuplicate, req.ID)
	}
	s := &sequence{req: req, tokens: append([]uint32(nil), req.Prompt...), cached: -1, remote: req.Transfer.Consume != nil}
	if s.remote {
		s.beating = !req.Transfer.Consume.NoBeats
	}
	e.seqs[req.ID] = s
	e.queue = append(e.queue, s)
	return nil
}

// Cancel ends a live request with the given reason (Aborted, or Stop when its reader has seen enough). An id that is not live
// is ignored; a held hand-off is not live. Blocks are free at once, except while a transfer writes into them.
func (e *Engine) Cancel(id string, reason Reason) {
	s, ok := e.seqs[id]
	if !ok || s.state == recvPending || e.dead {
		return
	}
	switch s.state {
	case running:
		e.running = without(e.running, s)
		e.drop(s)
	case remoteWait:
		e.queue = without(e.queue, s)
		if s.received || s.failed {
			e.drop(s)
		} else {
			s.state, s.beating = recvPending, false
		}
	case waiting:
		e.queue = without(e.queue, s)
		if src := s.req.Transfer.Consume; s.remote { // never fetched: the source must not wait for its lease
			e.doomed = e.doomed || src.Lacking
			e.notify(src)
		}
		e.drop(s)
	case recvPending, ended:
	}
	e.report(s, Output{Reason: reason})
}

// Take returns the results since the last call.
func (e *Engine) Take() []Output {
	outs := e.outs
	e.outs = nil
	return outs
}

// Dead says whether the engine has met something that a real one does not survive.
func (e *Engine) Dead() bool { return e.dead }

// NextDeadline is the time at which Schedule has something to do although nothing else happens. ok is false when there is none.
func (e *Engine) NextDeadline() (at time.Duration, ok bool) {
	if e.dead {
		return 0, false
	}
	for _, h := range e.holds {
		if !ok || h.deadline < at {
			at, ok = h.deadline, true
		}
		if e.cfg.HeadFirstExpiry {
			break
		}
	}
	for _, s := range e.queue {
		if s.beating {
			if !ok || e.nextBeat < at {
				at, ok = e.nextBeat, true
			}
			break
		}
	}
	return at, ok
}

// drop gives the blocks of a request back and forgets it.
func (e *Engine) drop(s *sequence) {
	e.pool.release(s.table)
	s.table, s.state, s.beating = nil, ended, false
	delete(e.seqs, s.req.ID)
}

// report completes an output with what the sequence knows and keeps it for Take.
func (e *Engine) report(s *sequence, out Output) {
	out.ID = s.req.ID
	out.Generated = s.generated()
	out.Cached = max(s.cached, 0)
	if s.req.PromptLogprobs != nil && !s.scoresSent && out.Token != nil {
		out.PromptScores, s.scores, s.scoresSent = s.scores, nil, true
	}
	if out.Reason != Running {
		e.counts.Finished[out.Reason]++
	}
	e.outs = append(e.outs, out)
}

// SetHeadFirstExpiry turns the defect of that name on or off.
func (e *Engine) SetHeadFirstExpiry(on bool) { e.cfg.HeadFirstExpiry = on }

// SetCrashLateReceive turns the defect of that name on or off.
func (e *Engine) SetCrashLateReceive(on bool) { e.cfg.CrashLateReceive = on }

// Kill ends the engine as a fatal failure of its own would.
func (e *Engine) Kill() {
	if !e.dead {
		e.die()
	}
}

// die ends the engine: every open request learns of it, nothing is computed any more.
func (e *Engine) die() {
	e.dead = true
	for _, s := range e.seqs {
		if s.state != recvPending {
			e.report(s, Output{Reason: Fatal})
		}
		e.drop(s)
	}
	e.queue, e.running, e.batch, e.plan, e.journal = nil, nil, nil, Plan{}, nil
}

// notify tells a source that its blocks will not be read.
func (e *Engine) notify(src *Source) {
	e.counts.NotifyOnly++
	e.plan.Dones = append(e.plan.Dones, Done{Source: *src})
}

func without(list []*sequence, s *sequence) []*sequence {
	for i, other := range list {
		if other == s {
			return append(list[:i:i], list[i+1:]...)
		}
	}
	return list
}
