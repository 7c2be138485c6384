package chaos

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"remora/internal/sim/core"
	"remora/internal/vllm"
	pb "remora/proto/vllm"
)

// blockSize of all engines, in tokens.
const blockSize = 4

// engine is one vLLM process: the real core, stepped as its loop does, and a model of the gRPC front end before it.
type engine struct {
	*run

	name   string
	step   time.Duration
	life   int // counts the processes
	up     bool
	lost   bool // EngineCore has died; the front end still answers
	core   *core.Engine
	live   []*stream // that the front end knows, oldest first
	byID   map[string]*stream
	busy   bool
	wakeup *event
	alarm  *event
	ledger *ledger
	mirror *mirror
	hung   int           // READs that never end
	frozen time.Duration // until then the process does nothing, though its connections stand
	// poisoned: blocks that were not the prompt's any more were read, in a way that no worker can prevent. Stays for the
	// whole schedule.
	poisoned bool
}

func newEngine(r *run, name string, step time.Duration) *engine {
	e := &engine{run: r, name: name, step: step}
	e.start()
	return e
}

// coreConfig is what engines have in common; those of a pair need one seed.
func coreConfig(id string) core.Config {
	v := core.Vocab{Size: 300, EOS: 299}
	for word := uint32(256); word < 296; word++ {
		v.Words = append(v.Words, word)
	}
	return core.Config{
		BlockSize: blockSize, Blocks: 80, MaxModelLen: 64, MaxSeqs: 4, MaxBatchedTokens: 64, PrefillTokens: 64, Lease: time.Minute,
		EngineID: id, Seed: 7, Vocab: v, KVEvents: true,
	}
}

// start begins a process, with an empty pool and an id of its own.
func (e *engine) start() {
	e.life++
	cfg := coreConfig(fmt.Sprintf("%s#%d", e.name, e.life))
	cfg.Blocks, cfg.MaxSeqs, cfg.PrefillTokens = e.plan.blocks, e.plan.seqs, e.plan.prefill
	cfg.Lease, cfg.HeadFirstExpiry = e.plan.lease, e.plan.headScan
	c, err := core.New(cfg)
	if err != nil {
		panic(err) // a mistake in this package
	}
	e.core, e.up, e.lost, e.busy, e.hung = c, true, false, false, 0
	e.live, e.byID = nil, make(map[string]*stream)
	e.mirror = &mirror{blocks: make(map[uint64]int)}
	e.ledger = &ledger{engine: e, id: cfg.EngineID, headScan: cfg.HeadFirstExpiry, lease: cfg.Lease}
	e.logf(e.name, "starts as %s", cfg.EngineID)
}

// running: the core of this process works.
func (e *engine) running() bool { return e.up && !e.lost }

// restart kills the process and begins another one later.
func (e *engine) restart(after time.Duration) {
	e.logf(e.name, "process is killed")
	life := e.life
	e.fall()
	e.up = false
	for _, s := range slices.Clone(e.live) {
		s.finish(vllm.Status{RPC: "GenerateStream", Code: codes.Unavailable, Message: "connection reset by peer", Transport: true})
	}
	e.after(after, func() {
		if e.life == life {
			e.start()
		}
	})
}

// die loses EngineCore; the front end goes on and says so.
func (e *engine) die() {
	if !e.running() {
		return
	}
	e.logf(e.name, "engine core dies")
	e.fall()
	e.lost = true
	for _, s := range slices.Clone(e.live) {
		s.finish(engineDead())
	}
}

func engineDead() vllm.Status {
	return vllm.Status{RPC: "GenerateStream", Code: codes.Internal, Message: "engine-core error: engine core reported fatal failure"}
}

// fall forgets what only the core knows, and checks a second later that no stream hangs (C9).
func (e *engine) fall() {
	e.wakeup.off()
	e.alarm.off()
	e.wakeup, e.alarm = nil, nil
	e.ledger.lose()
	for _, l := range e.legs {
		for _, s := range l.streams {
			if s.e == e && s.life == e.life && s.unsettled() {
				s.lostEngine = true
			}
		}
	}
	open := slices.DeleteFunc(slices.Clone(e.live), func(s *stream) bool { return s.owner == nil })
	e.after(time.Second+slowAnswer, func() {
		for _, s := range open {
			if !s.ended {
				e.violatef("C9", "%s is open a second after its engine was lost", s.id)
			}
		}
	})
}

// freeze stops the process for a while.
func (e *engine) freeze(span time.Duration) {
	e.logf(e.name, "freezes for %v", span)
	e.frozen = e.now + span
	for _, l := range e.legs {
		for _, s := range l.streams {
			s.frozen = s.frozen || s.e == e && s.unsettled()
		}
	}
}

// later is something that the process itself does, so not while it is frozen.
func (e *engine) later(d time.Duration, do func()) { e.after(d, func() { e.awake(do) }) }

func (e *engine) awake(do func()) {
	if e.now < e.frozen {
		e.at(e.frozen, func() { e.awake(do) })
		return
	}
	do()
}

// wake has an idle engine look at what has come.
func (e *engine) wake() {
	if e.busy || e.wakeup != nil || !e.running() {
		return
	}
	e.wakeup = e.after(e.between(0, 300*time.Microsecond), e.turn)
}

// turn is one step.
func (e *engine) turn() {
	e.wakeup.off()
	e.alarm.off()
	e.wakeup, e.alarm = nil, nil
	if e.now < e.frozen {
		e.wakeup = e.at(e.frozen, e.turn)
		return
	}
	e.ledger.settle(e.now)
	step := e.core.Schedule(e.now)
	e.ledger.compare(e.core.Stats())
	e.carry(step)
	e.deliver()
	switch {
	case !e.running():
	case step.Busy:
		e.busy = true
		life := e.life
		e.later(e.step, func() {
			if life != e.life || !e.running() {
				return
			}
			e.core.Apply(e.now)
			e.listen()
			e.deliver()
			e.busy = false
			if e.running() {
				e.turn()
			}
		})
	default:
		e.listen()
		if at, ok := e.core.NextDeadline(); ok {
			e.alarm = e.at(at, e.turn)
		}
	}
}

// deliver hands results to their streams. A lost core gives them in no order, so they are put into one.
func (e *engine) deliver() {
	for outs := e.core.Take(); len(outs) > 0; outs = e.core.Take() {
		if e.core.Dead() {
			slices.SortStableFunc(outs, func(a, b core.Output) int { return strings.Compare(a.ID, b.ID) })
		}
		for i := range outs {
			out := &outs[i]
			if out.HandOff != nil {
				e.ledger.hold(out.HandOff, e.byID[out.ID])
			}
			if s := e.byID[out.ID]; s != nil {
				s.result(out)
			}
		}
	}
	if e.core.Dead() && !e.lost {
		e.violatef("C9", "engine core %s met something that it does not survive", e.name)
		e.die()
	}
}

// cancel tells the core that a request has no reader any more.
func (e *engine) cancel(s *stream) {
	if !e.running() {
		return
	}
	if s.reading {
		s.endedInRead = true
	}
	e.core.Cancel(s.internal, core.Aborted)
	e.deliver()
	e.wake()
}

// abort is Control.Abort: it ends every live request that bears the id. answered hears of it unless the engine is silent or
// gone.
func (e *engine) abort(id string, answered func(known bool)) {
	way := e.hop()
	if e.plan.aborts == abortLate {
		way = e.between(0, abortTimeout-time.Second)
	}
	e.later(way, func() {
		if !e.up {
			return // the call fails after its timeout, as far as anybody waits
		}
		if e.plan.aborts == abortUnknown {
			e.after(e.hop(), func() { answered(false) })
			return
		}
		hit := 0
		for _, s := range slices.Clone(e.live) {
			if s.external == id && s.registered {
				hit++
				e.cancel(s)
			}
		}
		e.logf(e.name, "Abort(%s) meets %d", id, hit)
		if e.plan.aborts != abortSilent {
			e.after(e.hop(), func() { answered(true) })
		}
	})
}

// request reads what the front end hands to the core.
func (s *stream) request() core.Request {
	req := core.Request{
		ID: s.internal, Prompt: s.req.GetTokenIds().GetIds(), MaxTokens: int(s.req.GetStopping().GetMaxNewTokens()),
		MinTokens: int(s.req.GetStopping().GetMinNewTokens()),
	}
	if params := s.req.GetKv().GetKvTransferParams(); params != nil {
		req.Transfer = core.ParseTransfer(params.AsMap())
	}
	return req
}

// message makes the engine's message of a result.
func message(out *core.Output) (*pb.GenerateResponse, error) {
	seq := &pb.SequenceOutput{}
	if out.Token != nil {
		seq.NumTokens, seq.TokenIds = 1, []uint32{out.Token.ID}
	}
	if out.Reason != core.Running {
		cached := uint32(out.Cached)
		seq.FinishInfo = &pb.FinishInfo{NumOutputTokens: uint32(out.Generated), NumCachedTokens: &cached, FinishReason: pb.FinishInfo_ABORTED}
		switch out.Reason {
		case core.Length:
			seq.FinishInfo.FinishReason = pb.FinishInfo_LENGTH
		case core.Stop:
			seq.FinishInfo.FinishReason = pb.FinishInfo_STOP
		case core.Running, core.Aborted, core.Failed, core.Fatal:
		}
	}
	if out.HandOff != nil {
		params, err := toStruct(out.HandOff)
		if err != nil {
			return nil, err
		}
		seq.FinishInfo.KvTransferParams = params
	}
	return &pb.GenerateResponse{Outputs: seq}, nil
}
