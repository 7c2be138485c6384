package chaos

import (
	"fmt"
	"slices"
	"time"

	"remora/internal/handoff"
)

// word is a value of one axis of a schedule; its text is what summaries and traces say.
type word string

// The ways in which a client leaves.
const (
	wayStays      word = "stays"
	wayStop       word = "stop"             // asks for the end and reads on
	wayKill       word = "kill"             // the client of the frontend goes: a prefill hears nothing of it
	wayReset      word = "reset"            // the response connection breaks
	wayDial       word = "dial-back-failed" // there never was one
	wayDies       word = "frontend-dead"    // with everything that it had open
	wayImpatience word = "impatience"       // a kill, because the answer takes too long
)

// ways to draw from, the usual ones more often.
var ways = []word{wayStop, wayKill, wayKill, wayKill, wayReset, wayReset, wayDial, wayDies}

// The moments at which a client leaves, as seen by whoever decides them: the frontend, the worker or the engine.
const (
	atSend     word = "send"      // the frame is on its way
	atArrival  word = "arrival"   // the worker reads it
	atSubmit   word = "submit"    // the engine stream is opened
	atHandler  word = "handler"   // the engine's front end has the request
	atHeaders  word = "headers"   // the worker sees the response headers
	atRead     word = "read"      // D's READ begins
	atReceived word = "received"  // and ends
	atFirst    word = "first"     // the worker sees the first token
	atMiddle   word = "middle"    // and the third one
	atFinish   word = "finish"    // the engine has sent the finish
	atEnd      word = "end"       // the worker has read it
	atGap      word = "gap"       // between prefill and decode
	atTime     word = "some-time" // any time after the frame was sent
)

var moments = map[role][]word{
	roleAggregated: {atSend, atArrival, atSubmit, atHandler, atHeaders, atFirst, atMiddle, atFinish, atEnd, atTime},
	rolePrefill:    {atSend, atArrival, atSubmit, atHandler, atHeaders, atFinish, atEnd, atTime, atGap},
	roleDecode: {
		atSend, atArrival, atSubmit, atHandler, atHeaders, atRead, atReceived, atFirst, atMiddle, atFinish, atEnd, atTime,
	},
}

// The rules by which engines notice a dropped stream.
const (
	dropAtOnce word = "drop-at-once"       // 0.32.0
	dropNext   word = "drop-at-next-event" // older ones
	dropNever  word = "drop-never"
)

// The rules by which engines take an Abort.
const (
	abortWorks   word = "abort-works"
	abortUnknown word = "abort-unknown" // UNIMPLEMENTED
	abortSilent  word = "abort-silent"  // done, but never answered
	abortLate    word = "abort-late"    // the call takes seconds to arrive, as on a connection that has to be made again
)

// The faults.
const (
	faultNone     word = "none"
	faultReadSlow word = "read-slow"
	faultReadHung word = "read-never-ends"
	faultReadBad  word = "read-fails"
	faultBeats    word = "heartbeats-lost"
	faultPAgain   word = "p-restarted"
	faultDAgain   word = "d-restarted"
	faultDDead    word = "d-core-dead"
	faultDecline  word = "engine-declines"
	faultRefuse   word = "worker-declines"
	faultBroken   word = "broken-prefill"
	faultStale    word = "stale-hand-off"
	faultReuse    word = "reused-hand-off"
	faultDFull    word = "d-full"
	faultHung     word = "front-end-hung"
	faultAnswers  word = "answers-slow"
	faultMessage  word = "bad-message"
	faultNoStamp  word = "no-stamp"
	faultFrozen   word = "engine-frozen"
)

var faults = []word{
	faultNone, faultNone, faultReadSlow, faultReadHung, faultReadBad, faultBeats, faultPAgain, faultDAgain, faultDDead, faultDecline,
	faultRefuse, faultBroken, faultStale, faultReuse, faultDFull, faultHung, faultAnswers, faultMessage, faultNoStamp, faultFrozen,
}

// plan is a schedule as the seed draws it. Nothing of it changes while it runs.
type plan struct {
	seed     uint64
	topology word // "pair", "aggregated" or "both"
	policy   handoff.Policy
	drops    word
	aborts   word
	faults   []word // one, and now and then another one with it
	headScan bool   // expiry scan that stops at its head
	releases bool   // M10
	lease    time.Duration
	deadline time.Duration // M3
	patience time.Duration // of clients
	places   int           // of a worker
	seqs     int           // of an engine
	blocks   int
	prefill  int           // prompt tokens a step
	stepP    time.Duration // of the aggregated engine as well
	stepD    time.Duration
	reads    time.Duration // the usual time of a READ
	faultAt  time.Duration // of the faults that are moments
	stop     *stopPlan     // a worker that is told to stop
	requests []requestPlan
	last     time.Duration // arrival of the last request
}

// stopPlan is a SIGTERM.
type stopPlan struct {
	role    role
	at      time.Duration
	grace   time.Duration
	timeout time.Duration
	second  time.Duration // after the first; 0: none
}

// requestPlan is what one client wants and how it leaves.
type requestPlan struct {
	role     role // aggregated, or else prefill and then decode
	at       time.Duration
	prompt   int
	tokens   int
	frontend int
	gap      time.Duration // between the prefill's end and the decode
	struck   bool          // by the schedule's fault, where that strikes requests
	leaves   role          // during which leg
	moment   word
	way      word
	delay    time.Duration // from the moment
	migrates bool          // the frontend tries again what failed, under the same id
}

func (p *plan) String() string {
	s := fmt.Sprintf("seed %d: %s, policy %s, %s, %s, faults %v, lease %v, deadline %v, patience %v, places %d, seqs %d, blocks %d, steps %v and %v, M10 %v",
		p.seed, p.topology, p.policy, p.drops, p.aborts, p.faults, p.lease, p.deadline, p.patience, p.places, p.seqs, p.blocks, p.stepP, p.stepD, p.releases)
	if p.headScan {
		s += ", head-first expiry"
	}
	if p.stop != nil {
		s += fmt.Sprintf(", %s worker told to stop at %v (grace %v, timeout %v, second signal after %v)",
			p.stop.role, p.stop.at, p.stop.grace, p.stop.timeout, p.stop.second)
	}
	return s
}

// draw makes the plan of a seed.
func draw(seed uint64) *plan {
	w := newWorld(seed^0xd1ce, nil)
	p := &plan{
		seed:     seed,
		topology: pick[word](w, "pair", "pair", "pair", "both", "aggregated"),
		policy:   pick(w, handoff.Drain, handoff.Drain, handoff.Release),
		drops:    pick(w, dropAtOnce, dropAtOnce, dropNext, dropNever),
		aborts:   pick(w, abortWorks, abortWorks, abortWorks, abortWorks, abortLate, abortUnknown, abortSilent),
		faults:   []word{pick(w, faults...)},
		headScan: w.chance(10),
		releases: !w.chance(10),
		lease:    pick(w, 1*time.Second, 2*time.Second, 5*time.Second, 12*time.Second, 30*time.Second),
		deadline: pick(w, 3*time.Second, 10*time.Second, 30*time.Second),
		patience: pick(w, 20*time.Second, 60*time.Second),
		places:   pick(w, 1, 2, 4, 64, 64, 64),
		seqs:     pick(w, 1, 2, 4, 8),
		blocks:   pick(w, 18, 24, 40, 80),
		prefill:  pick(w, 8, 16, 64),
		stepP:    w.between(2*time.Millisecond, 40*time.Millisecond),
		stepD:    w.between(2*time.Millisecond, 40*time.Millisecond),
		reads:    w.between(1*time.Millisecond, 80*time.Millisecond),
	}
	if w.chance(25) {
		p.faults = append(p.faults, pick(w, faults...))
	}
	p.fit(w)
	for range pick(w, 1, 1, 2, 3, 4, 6, 8, 12) {
		p.requests = append(p.requests, p.drawRequest(w))
	}
	for i := range p.requests {
		p.last = max(p.last, p.requests[i].at)
	}
	p.faultAt = w.between(0, p.last+2*time.Second)
	if w.chance(15) {
		p.stop = p.drawStop(w)
	}
	return p
}

// fit makes the axes go together. An engine that hears neither a drop nor an Abort cannot be told anything, and one whose
// READ never ends would then keep both sides for ever: no rule of a worker could help.
func (p *plan) fit(w *world) {
	if p.aborts != abortWorks || p.has(faultReadHung) {
		p.drops = dropAtOnce
	}
	for _, fault := range p.faults {
		p.fitFault(w, fault)
	}
}

func (p *plan) fitFault(w *world, fault word) {
	switch fault {
	case faultDFull:
		p.seqs, p.lease = 1, pick(w, 12*time.Second, 30*time.Second)
		p.stepD = w.between(200*time.Millisecond, time.Second)
	case faultBeats: // they matter where D is full
		p.seqs, p.lease = 1, pick(w, 2*time.Second, 5*time.Second)
		p.stepD = w.between(100*time.Millisecond, 300*time.Millisecond)
	case faultBroken, faultStale, faultReuse, faultNoStamp, faultReadSlow, faultReadHung, faultReadBad, faultRefuse, faultDDead, faultDAgain, faultPAgain:
		if p.topology == "aggregated" { // would strike nobody
			p.topology = "pair"
		}
	default: // goes with everything
	}
}

func (p *plan) drawRequest(w *world) requestPlan {
	r := requestPlan{
		role:     rolePrefill,
		at:       w.between(0, pick(w, 10*time.Millisecond, time.Second, 8*time.Second)),
		prompt:   w.rng.IntN(prompts),
		tokens:   1 + w.rng.IntN(longest),
		frontend: w.rng.IntN(2),
		gap:      w.between(0, 20*time.Millisecond),
		struck:   w.chance(60),
		way:      wayStays,
		migrates: w.chance(30),
	}
	if p.topology == "aggregated" || p.topology == "both" && w.chance(40) {
		r.role = roleAggregated
	}
	if r.struck && (p.has(faultStale) || p.has(faultNoStamp)) {
		r.gap = w.between(p.lease/4, 3*p.lease)
	}
	if w.chance(75) {
		p.drawLeaving(w, &r)
	}
	return r
}

func (p *plan) drawLeaving(w *world, r *requestPlan) {
	r.leaves = r.role
	if r.role == rolePrefill && w.chance(75) {
		r.leaves = roleDecode
	}
	r.moment = pick(w, moments[r.leaves]...)
	r.way = pick(w, ways...)
	switch {
	case r.way == wayDial:
		r.moment = atSend
	case r.moment == atTime:
		r.delay = w.between(0, pick(w, 100*time.Millisecond, time.Second, 10*time.Second))
	case w.chance(50):
		r.delay = w.between(0, pick(w, 2*time.Millisecond, 50*time.Millisecond))
	}
}

func (p *plan) drawStop(w *world) *stopPlan {
	s := &stopPlan{
		role:    pick(w, rolePrefill, roleDecode, roleDecode),
		at:      w.between(0, p.last+3*time.Second),
		grace:   w.between(0, pick(w, time.Millisecond, 3*time.Second)),
		timeout: w.between(0, pick(w, 10*time.Millisecond, 2*time.Second, 20*time.Second)),
	}
	if p.topology == "aggregated" {
		s.role = roleAggregated
	}
	if w.chance(30) {
		s.second = w.between(time.Millisecond, s.grace+s.timeout+3*time.Second)
	}
	return s
}

// quiet is when a schedule must have come to rest: the last client has lost its patience, twice if it tried again, the drains
// have met their deadline, and every lease that was left has ended. A scan that stops at its head may wait for another lease,
// and a READ that is slow outlives the request which asked for it.
func (p *plan) quiet() time.Duration {
	quiet := p.last + 2*p.patience + p.deadline + 6*p.lease + slowestRead(p.lease) + 30*time.Second
	var queueing time.Duration // of one request
	for _, fault := range p.faults {
		switch fault {
		case faultAnswers: // one place, and everybody has to wait for it
			queueing += 2 * slowAnswer
		case faultReadHung, faultReadSlow: // one prefill after the other finds a full pool
			queueing += p.patience + p.deadline + 3*p.lease
		case faultFrozen:
			quiet += longestFreeze
		default: // keeps nothing waiting
		}
	}
	for range p.requests {
		quiet += queueing
	}
	return quiet
}

// has tells whether a fault is among those of the schedule.
func (p *plan) has(fault word) bool { return slices.Contains(p.faults, fault) }

// longestFreeze of an engine.
const longestFreeze = 45 * time.Second

// slowestRead is longer than a lease: a READ that goes on keeps it alive.
func slowestRead(lease time.Duration) time.Duration { return 3 * lease }
