package chaos

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"remora/internal/dynamo/protocol"
	"remora/internal/dynamo/requestplane"
	"remora/internal/handoff"
	"remora/internal/sim"
	"remora/internal/tinymodel"
	"remora/internal/vllm"
	serving "remora/internal/worker"
)

var stormFlag = flag.Int("storm", -1, "TestStorms: run this one alone")

const (
	storms       = 500
	stormSeed    = 7 // of the engines: what they say
	stormStep    = 10 * time.Millisecond
	stormGrace   = 20 * time.Millisecond
	stormTimeout = 5 * time.Second
	dialTimeout  = 5 * time.Second // of a worker
	// stormPatience is longer than anything that a client may have to wait for.
	stormPatience = 5 * time.Minute
)

// stormPlan is what the seed of a storm draws. The goroutines then take their own course, so unlike a schedule a storm can be
// run again, but not step by step.
type stormPlan struct {
	policy    handoff.Policy
	backend   vllm.Backend
	releases  bool
	deadline  time.Duration
	lease     time.Duration
	readDelay time.Duration
	places    int
	seqs      int
	blocks    int
	fault     sim.Fault // of both engines, from faultAt on; "": none
	faultAt   time.Duration
	stops     role // the worker that is told to stop at stopAt; "": none
	stopAt    time.Duration
	second    bool          // and half a second later to stop at once
	dies      time.Duration // the frontend; 0: it does not
	lossless  bool          // there is room for all: no lease may end, not even at a bound
	clients   []stormClient

	// spoil breaks the worker or the engine of a role before it starts; nil: nobody.
	spoil func(as role, w *serving.Config, e *sim.Config)
	// during is what happens besides; nil: nothing.
	during func(s *storm)
}

// stormClient is what one client wants and how it leaves.
type stormClient struct {
	at     time.Duration
	prompt int
	tokens int
	gap    time.Duration
	leaves role // "": stays
	inGap  bool // leaves between the two legs
	way    word
	after  time.Duration
	hangs  bool // the dial-back that fails does so after its time, not at once
	items  int  // leaves with this item, counted from 1; 0: after the time
	unfit  bool // its decode is declined by the worker
	reuses bool // its hand-off is sent a second time
}

// stormFaults are those after which a worker can still keep its promises, those of the engine's own death apart.
var stormFaults = []sim.Fault{
	"", "", "", "", sim.LateDrop, sim.ReadSlow, sim.ReadFail, sim.NoAbort, sim.HeadFirstExpiry, sim.NotServing, sim.Death,
}

func drawStorm(seed uint64) *stormPlan {
	w := newWorld(seed^0x5702, nil)
	p := &stormPlan{
		policy: pick(w, handoff.Drain, handoff.Release), backend: pick(w, vllm.BackendH2, vllm.BackendGRPC), releases: !w.chance(15),
		deadline: pick(w, 3*time.Second, 10*time.Second, 30*time.Second), lease: 12 * time.Second,
		readDelay: w.between(50*time.Millisecond, 2*time.Second), places: pick(w, 1, 3, 64), seqs: pick(w, 1, 2, 8), blocks: pick(w, 60, 200),
		fault: pick(w, stormFaults...), faultAt: w.between(0, 500*time.Millisecond),
	}
	if w.chance(25) {
		p.stops, p.stopAt, p.second = pick(w, rolePrefill, roleDecode), w.between(0, time.Second), w.chance(40)
	}
	if w.chance(10) {
		p.dies = w.between(time.Millisecond, 500*time.Millisecond)
	}
	for range pick(w, 1, 1, 2, 4, 8) {
		c := stormClient{
			at: w.between(0, pick(w, time.Millisecond, 300*time.Millisecond)), prompt: w.rng.IntN(prompts), tokens: 1 + w.rng.IntN(longest),
			gap: w.between(0, 20*time.Millisecond), unfit: w.chance(8), reuses: w.chance(8),
		}
		if w.chance(70) {
			c.leaves, c.inGap = pick(w, rolePrefill, roleDecode, roleDecode, roleDecode), w.chance(8)
			c.way, c.hangs = pick(w, wayStop, wayKill, wayReset, wayDial), w.chance(50)
			c.after = w.between(0, pick(w, time.Millisecond, 30*time.Millisecond, 300*time.Millisecond, 3*time.Second))
			if c.way != wayDial && w.chance(30) {
				c.items = 1 + w.rng.IntN(3)
			}
		}
		p.clients = append(p.clients, c)
	}
	return p
}

// hundredDecodes is the storm of a frontend that dies with a hundred decodes open, which D has hardly begun to take up.
func hundredDecodes() *stormPlan {
	p := &stormPlan{
		deadline: 30 * time.Second, lease: 12 * time.Second, places: 200, seqs: 8, blocks: 1500, releases: true, dies: 1500 * time.Millisecond,
		lossless: true,
	}
	for i := range 100 {
		p.clients = append(p.clients, stormClient{prompt: i, tokens: longest, gap: time.Second})
	}
	return p
}

// TestStorms runs real workers between simulated engines and checks C1 to C9 after each storm: real goroutines, real frames and
// real gRPC over connections in memory, in a bubble's time. The first is the frontend that dies with a hundred decodes open.
func TestStorms(t *testing.T) {
	model := t.TempDir()
	if err := tinymodel.Write(model); err != nil {
		t.Fatal(err)
	}
	texts := simulatedTexts(t, model)
	var sum stormSum
	began := time.Now()
	for seed := int(*seedFlag); seed < int(*seedFlag)+storms; seed++ {
		if raceEnabled && *stormFlag < 0 && time.Since(began) > stormRaceTime {
			break
		}
		if *stormFlag >= 0 && seed != *stormFlag {
			continue
		}
		p := drawStorm(uint64(seed))
		if seed == 0 {
			p = hundredDecodes()
		}
		synctest.Test(t, func(t *testing.T) {
			for _, v := range runStorm(t, model, texts, p, &sum) {
				t.Errorf("%s: %s", v.name, v.text)
			}
			if t.Failed() {
				t.Logf("storm %d: %+v\nrun it again: go test ./internal/chaos -run TestStorms -storm %d -count 20", seed, p, seed)
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("SUMMARY: %v", &sum)
	if none := sum.missing(); *stormFlag < 0 && sum.storms == storms && len(none) > 0 {
		t.Errorf("no storm had any of %v", none)
	}
}

// stormRaceTime bounds the storms under the race detector.
const stormRaceTime = 40 * time.Second

// storm is one under way.
type storm struct {
	*site

	plan  *stormPlan
	texts map[int][]uint32
	wg    sync.WaitGroup
	all   []*stormLeg // guarded by site.mu

	violations []violation // guarded by site.mu
}

// stormLeg is one request at one worker, as its client sees it.
type stormLeg struct {
	role        role
	id          string
	client      *stormClient
	unreachable bool
	conn        net.Conn // the frontend's end of the response connection; guarded by site.mu
	incoming    *requestplane.Incoming
	again       bool // a second use of a hand-off

	refused bool // by the ack
	left    word // how the client left; guarded by site.mu
	tokens  []uint32
	reason  protocol.FinishReason
	failed  string
	ended   bool // properly
	params  protocol.Value
}

// runStorm runs a storm to its end and checks it.
func runStorm(t *testing.T, model string, texts map[int][]uint32, p *stormPlan, sum *stormSum) []violation {
	t.Helper()
	s := &storm{site: newSite(t, model, p), plan: p, texts: texts}
	for i := range p.clients {
		s.wg.Go(func() { s.converse(i, &p.clients[i]) })
	}
	s.wg.Go(s.strike)
	s.wg.Go(s.stopOne)
	s.wg.Go(s.dieFrontend)
	if p.during != nil {
		s.wg.Go(func() { p.during(s) })
	}
	s.wg.Wait()
	time.Sleep(dialTimeout + p.deadline + 3*time.Second) // an Abort and its drop have a second each
	s.checkGone()
	time.Sleep(3 * p.lease)
	s.check()
	s.sum(sum)
	s.close()
	s.checkEnd()
	return s.violations
}

func (s *storm) strike() {
	if s.plan.fault == "" {
		return
	}
	time.Sleep(s.plan.faultAt)
	for _, as := range []role{rolePrefill, roleDecode} {
		if s.plan.fault == sim.Death && as == rolePrefill {
			continue
		}
		if err := s.engines[as].SetFault(context.Background(), s.plan.fault, true); err != nil {
			s.t.Error(err)
		}
	}
}

func (s *storm) stopOne() {
	if s.plan.stops == "" {
		return
	}
	time.Sleep(s.plan.stopAt)
	s.workers[s.plan.stops].stop()
	if s.plan.second {
		time.Sleep(500 * time.Millisecond)
		s.workers[s.plan.stops].cut()
	}
}

// dieFrontend breaks every connection of the frontend, and takes no more.
func (s *storm) dieFrontend() {
	if s.plan.dies == 0 {
		return
	}
	time.Sleep(s.plan.dies)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
	for _, l := range s.all {
		if !l.ended && l.left == "" {
			l.left = wayDies
		}
		if l.conn != nil {
			_ = l.conn.Close()
		}
		l.incoming.Kill()
	}
}

// converse is one client: a prefill, and then a decode.
func (s *storm) converse(i int, c *stormClient) {
	time.Sleep(c.at)
	pre := s.ask(fmt.Sprintf("r%d", i), rolePrefill, c, s.body(c, rolePrefill, protocol.Value{}), false)
	if pre == nil || !pre.ended || pre.params.Kind != protocol.KindMap {
		return
	}
	time.Sleep(c.gap)
	if c.inGap {
		return
	}
	body := s.body(c, roleDecode, pre.params)
	if c.reuses {
		s.wg.Go(func() {
			time.Sleep(c.gap)
			s.ask(fmt.Sprintf("r%d+", i), roleDecode, &stormClient{tokens: c.tokens, prompt: c.prompt}, body, true)
		})
	}
	s.ask(fmt.Sprintf("r%d", i), roleDecode, c, body, false)
}

func (s *storm) body(c *stormClient, as role, params protocol.Value) *protocol.PreprocessedRequest {
	zero := float32(0)
	b := &protocol.PreprocessedRequest{
		Model: "model", TokenIDs: promptIDs(c.prompt), StopConditions: protocol.StopConditions{MaxTokens: new(uint32(c.tokens))},
		SamplingOptions: protocol.SamplingOptions{Temperature: &zero},
	}
	b.StopConditions.IgnoreEOS = new(true)
	if as == roleDecode {
		b.PrefillResult = &protocol.PrefillResult{DisaggregatedParams: params}
		if c.unfit {
			b.SamplingOptions.MinP = &zero
		}
	}
	return b
}

// ask sends one leg and reads its answer; nil: the worker did not take it, or the frontend was dead before it was asked.
func (s *storm) ask(id string, as role, c *stormClient, body *protocol.PreprocessedRequest, again bool) *stormLeg {
	w := s.workers[as]
	incoming, info := s.front.Register(context.Background(), id, protocol.MsgPack)
	l := &stormLeg{role: as, id: id, client: c, incoming: incoming, again: again, unreachable: c.leaves == as && !c.inGap && c.way == wayDial}
	s.mu.Lock()
	if s.dead {
		s.mu.Unlock()
		incoming.Kill()
		return nil
	}
	info.Address = fmt.Sprintf("127.0.0.2:%d", 1+len(s.all))
	s.legs[info.Address] = l
	s.all = append(s.all, l)
	s.mu.Unlock()
	err := s.client.Send(context.Background(), w.target,
		requestplane.Headers{RequestID: id, FrontendSendNS: time.Now().UnixNano()},
		&requestplane.Control{ID: id, RequestType: "single_in", ResponseType: "many_out", Codec: protocol.MsgPack, Connection: info},
		protocol.AppendRequest(nil, protocol.MsgPack, body))
	if err != nil {
		l.refused = true
		incoming.Kill()
		return nil
	}
	if c.leaves == as && !c.inGap && c.items == 0 {
		s.wg.Go(func() {
			time.Sleep(c.after)
			s.leave(l, c.way)
		})
	}
	s.read(l)
	return l
}

// read takes the answer to its end.
func (s *storm) read(l *stormLeg) {
	patient, end := context.WithTimeout(context.Background(), stormPatience)
	defer end()
	for items := 1; ; items++ {
		item, err := l.incoming.Next(patient)
		var typed *protocol.Error
		switch {
		case errors.Is(err, io.EOF):
			s.over(l)
			return
		case errors.As(err, &typed):
			l.failed = typed.Kind.Name
			s.over(l)
			return
		case patient.Err() != nil:
			s.violatef("C3", "the client of %s (%s) has waited for %v", l.id, l.role, stormPatience)
			return
		case err != nil:
			return // broken
		case item.Error != nil:
			l.failed = item.Error.Kind.Name
		default:
			l.tokens = append(l.tokens, item.Data.TokenIDs...)
			if item.Data.FinishReason != "" {
				l.reason, l.params = item.Data.FinishReason, item.Data.DisaggregatedParams
			}
		}
		if l.client.leaves == l.role && l.client.items == items {
			s.leave(l, l.client.way)
		}
	}
}

func (s *storm) over(l *stormLeg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.ended = true
}

// leave ends a leg from its client's side.
func (s *storm) leave(l *stormLeg, way word) {
	s.mu.Lock()
	if l.ended || l.left != "" {
		s.mu.Unlock()
		return
	}
	l.left = way
	conn := l.conn
	s.mu.Unlock()
	switch {
	case way == wayStop && conn != nil:
		frame := binary.BigEndian.AppendUint64(make([]byte, 0, 32), uint64(len(`"stop"`)))
		_, _ = conn.Write(append(append(frame, make([]byte, 16)...), `"stop"`...)) // the worker may have hung up by now
	case way == wayReset && conn != nil:
		_ = conn.Close()
		l.incoming.Kill()
	default: // without a connection there is nothing else
		l.incoming.Kill()
	}
}
