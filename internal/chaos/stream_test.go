package chaos

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/sim/core"
	"remora/internal/vllm"
	pb "remora/proto/vllm"
)

// slowAnswer bounds what the fault "answers-slow" adds to each message, which is longer than the shortest drain deadlines.
const slowAnswer = 35 * time.Second

// sink hears what comes of a stream, as vllm.Sink does, one message at a time.
type sink interface {
	onHeaders()
	onMessage(m *pb.GenerateResponse)
	onEnd(status vllm.Status)
}

// stream is one GenerateStream, both ends of it.
type stream struct {
	e        *engine
	life     int // the process that it was opened to
	owner    *leg
	sink     sink
	req      *pb.GenerateRequest
	external string
	internal string // the engine's own id
	id       string // for the trace

	// The worker's end.
	closed bool // dropped
	ended  bool // onEnd was called

	// The way.
	arrived time.Duration // of the request at the engine
	lag     time.Duration // that the answers of this stream have
	last    time.Duration // arrival of the last thing that was sent back

	// The engine's end.
	handled    bool // the front end has it
	registered bool // so has the core; from then on Abort finds it
	reset      bool // RST has come
	over       bool // nothing is sent any more
	prompted   bool // PromptInfo was sent
	spoiled    int  // which message breaks the protocol; 0: none
	messages   int
	finished   bool // a finish was sent

	// What became of the hand-off that it brought.
	grant       *grant
	reading     bool // D's READ is under way
	received    bool // and was
	readFailed  bool
	readHung    bool
	endedInRead bool
	lostBeats   bool
	lostEngine  bool
	frozen      bool // its engine was, meanwhile
	unheard     bool // dropped before the front end had it
	declined    bool
}

// open is vllm.Client.Open.
func (e *engine) open(req *pb.GenerateRequest, owner *leg, to sink) *stream {
	e.opened++
	s := &stream{
		e: e, life: e.life, owner: owner, sink: to, req: req, external: req.GetRequestId(),
		internal: fmt.Sprintf("%s-%08x", req.GetRequestId(), e.opened),
	}
	s.id = s.external + "@" + e.name
	if e.plan.has(faultAnswers) && s.struck() {
		s.lag = e.between(0, slowAnswer)
	}
	if e.plan.has(faultMessage) && s.struck() {
		s.spoiled = 1 + e.rng.IntN(4)
	}
	s.arrived = e.now + e.hop()
	s.frozen = e.now < e.frozen
	e.later(s.arrived-e.now, s.arrive)
	return s
}

// struck: the schedule's fault, where it strikes requests, strikes this one.
func (s *stream) struck() bool { return s.owner != nil && s.owner.conv.plan.struck }

// unsettled: it is under way, or P has still to be told something.
func (s *stream) unsettled() bool { return !s.over || s.grant != nil && s.grant.fate == fateHeld }

func (s *stream) arrive() {
	switch {
	case s.over:
		return
	case !s.e.up || s.life != s.e.life:
		s.lostEngine = true
		s.finish(vllm.Status{RPC: "GenerateStream", Code: codes.Unavailable, Message: "connection refused", Transport: true, NotSent: true})
		return
	}
	s.e.live = append(s.e.live, s)
	if s.e.plan.has(faultHung) && s.struck() && s.owner.role != rolePrefill {
		return // the handler never runs
	}
	s.e.later(s.e.hop(), s.handle)
}

// handle is the front end's handler.
func (s *stream) handle() {
	if s.over {
		return
	}
	if s.reset { // the handler meets a stream that is gone: nothing is submitted
		s.leave()
		return
	}
	s.handled = true
	s.mark(atHandler)
	if s.e.plan.has(faultDecline) && s.struck() && s.owner.role != rolePrefill {
		s.declined = true
		s.finish(vllm.Status{RPC: "GenerateStream", Code: codes.NotFound, Message: "model `other` not found"})
		return
	}
	s.e.later(s.e.between(0, time.Millisecond), s.register)
}

func (s *stream) register() {
	switch {
	case s.over:
		return
	case s.e.lost:
		s.lostEngine = true
		s.finish(engineDead())
		return
	}
	for _, other := range s.e.live {
		if other != s && other.external == s.external && other.registered && !other.closed && !s.closed {
			s.e.violatef("M9", "two live requests bear the id %s", s.external)
		}
	}
	req := s.request()
	if src := req.Transfer.Consume; src != nil {
		s.grant = s.e.grants[grantKey(src.EngineID, src.RequestID)]
		s.e.consume(s, src)
	}
	s.registered = true
	s.e.byID[s.internal] = s
	if err := s.e.core.Add(req); err != nil {
		panic(err) // a core that is not lost takes everything
	}
	s.push(func() {
		s.e.logf(s.id, "headers")
		s.sink.onHeaders()
	})
	s.e.wake()
	if s.reset {
		s.noticed()
	}
}

// push sends something back. Nothing overtakes anything on its way.
func (s *stream) push(do func()) {
	s.last = max(s.last, s.e.now+s.e.hop()+s.lag)
	s.e.at(s.last, func() {
		if !s.closed {
			do()
		}
	})
}

// finish ends the stream with a status.
func (s *stream) finish(status vllm.Status) {
	if s.over {
		return
	}
	s.push(func() { s.conclude(status) })
	s.leave()
}

// leave: the front end has done with it.
func (s *stream) leave() {
	s.over = true
	delete(s.e.byID, s.internal)
	s.e.live = slices.DeleteFunc(s.e.live, func(o *stream) bool { return o == s })
}

func (s *stream) conclude(status vllm.Status) {
	if s.ended {
		return
	}
	s.ended = true
	s.e.logf(s.id, "ends: %s", describe(status))
	s.sink.onEnd(status)
}

func describe(status vllm.Status) string {
	switch {
	case status.Dropped:
		return "dropped"
	case status.Code == codes.OK:
		return "OK"
	default:
		return status.Code.String() + " " + status.Message
	}
}

// drop is vllm.Stream.Drop: what comes now is not heard, and RST follows the request on its way.
func (s *stream) drop() {
	if s.closed || s.ended {
		return
	}
	s.closed = true
	s.e.logf(s.id, "is dropped")
	s.unheard = !s.handled
	s.e.after(s.e.between(0, 100*time.Microsecond), func() {
		s.conclude(vllm.Status{RPC: "GenerateStream", Code: codes.Canceled, Message: "dropped", Dropped: true})
	})
	s.e.later(max(s.arrived-s.e.now, s.e.hop()), func() {
		s.reset = true
		s.unheard = !s.handled
		if s.registered && !s.over {
			s.noticed()
		}
	})
}

// noticed: the engine acts on RST as its rule says.
func (s *stream) noticed() {
	if s.e.plan.drops == dropAtOnce {
		s.e.cancel(s)
	}
}

// result passes one result of the core on.
func (s *stream) result(out *core.Output) {
	switch out.Reason {
	case core.Failed:
		s.finish(vllm.Status{RPC: "GenerateStream", Code: codes.Internal, Message: "engine failed during generation"})
		return
	case core.Fatal:
		s.finish(engineDead())
		return
	case core.Running, core.Length, core.Stop, core.Aborted:
	}
	if s.reset && s.e.plan.drops == dropNext && out.Reason == core.Running {
		s.e.core.Cancel(s.internal, core.Aborted) // now it is noticed
		s.e.wake()
	}
	if !s.prompted {
		s.prompted = true
		s.say(&pb.GenerateResponse{PromptInfo: &pb.PromptInfo{NumPromptTokens: uint32(len(s.req.GetTokenIds().GetIds()))}})
	}
	m, err := message(out)
	if err != nil {
		panic(err) // a hand-off of the core is plain data
	}
	s.say(m)
	if out.Reason != core.Running {
		s.finished = true
		s.mark(atFinish)
		s.finish(vllm.Status{})
	}
}

// say sends a message.
func (s *stream) say(m *pb.GenerateResponse) {
	s.messages++
	if s.messages == s.spoiled {
		if m.GetPromptInfo() != nil {
			m.PromptInfo.NumPromptTokens++
		} else {
			m.Outputs.Index = 1
		}
	}
	s.push(func() {
		s.e.logf(s.id, "message: %s", tell(m))
		s.sink.onMessage(m)
	})
}

func tell(m *pb.GenerateResponse) string {
	out, finish := m.GetOutputs(), m.GetOutputs().GetFinishInfo()
	switch {
	case m.GetPromptInfo() != nil:
		return "prompt info"
	case finish == nil:
		return fmt.Sprintf("tokens %v", out.GetTokenIds())
	case finish.GetKvTransferParams() != nil:
		return fmt.Sprintf("tokens %v, %v, hand-off %v", out.GetTokenIds(), finish.GetFinishReason(),
			finish.GetKvTransferParams().GetFields()["remote_request_id"].GetStringValue())
	default:
		return fmt.Sprintf("tokens %v, %v", out.GetTokenIds(), finish.GetFinishReason())
	}
}

// mark tells the client's plan that a moment has come.
func (s *stream) mark(moment word) {
	if s.owner != nil {
		s.owner.conv.moment(s.owner, moment)
	}
}

// toStruct puts a hand-off into its wire form, with the address of its engine.
func toStruct(h *core.HandOff) (*structpb.Struct, error) {
	return structpb.NewStruct(h.Params("p.test", 5600))
}
