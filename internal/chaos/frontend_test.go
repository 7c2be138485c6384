package chaos

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"remora/internal/dynamo/protocol"
)

// frontend is one Dynamo frontend process. Requests come to two of them; each has a clock of its own.
type frontend struct {
	dead  bool
	clock int64 // Unix nanoseconds at the beginning
	convs []*conv
}

// conv is one client's request: an aggregated leg, or a prefill and then a decode, and once more if it is tried again.
type conv struct {
	*run

	plan     *requestPlan
	id       string
	front    *frontend
	attempt  int
	current  *leg
	grant    *grant
	params   protocol.Value
	left     bool // the client is gone; the frontend itself goes on as it always does
	gaveUp   bool // the frontend does not go on
	leaving  bool // the plan's way has begun
	over     bool
	patience *event
}

func (c *conv) frontend() *frontend { return c.front }

// start is the client's request.
func (c *conv) start() {
	if c.front.dead {
		c.over = true
		return
	}
	c.patience = c.after(c.run.plan.patience, func() {
		if !c.over && c.current != nil {
			c.leave(c.current, wayImpatience)
		}
		c.left = true
	})
	c.begin()
}

func (c *conv) begin() { c.send(c.plan.role) }

// send sends one leg.
func (c *conv) send(as role) *leg {
	l := &leg{run: c.run, conv: c, role: as, worker: c.workers[as], body: c.body(as), sent: c.stampTime()}
	l.id = fmt.Sprintf("%s/%s", c.id, as[:1])
	if c.attempt > 0 {
		l.id += fmt.Sprint(".", c.attempt)
	}
	if as == roleDecode {
		l.grant = c.grant
		c.grant.legs = append(c.grant.legs, l)
	}
	c.current = l
	c.legs = append(c.legs, l)
	c.logf(l.id, "frame is sent")
	c.after(c.hop(), func() { l.worker.serve(l) })
	c.moment(l, atSend)
	c.moment(l, atTime)
	return l
}

// stampTime is what the frame says about the time. Old frontends say nothing.
func (c *conv) stampTime() int64 {
	if c.run.plan.has(faultNoStamp) && c.plan.struck {
		return 0
	}
	return c.front.clock + c.now.Nanoseconds()
}

func (c *conv) body(as role) *protocol.PreprocessedRequest {
	tokens, zero := uint32(c.plan.tokens), float32(0)
	r := &protocol.PreprocessedRequest{
		Model: "model", TokenIDs: promptIDs(c.plan.prompt), StopConditions: protocol.StopConditions{MaxTokens: &tokens},
		SamplingOptions: protocol.SamplingOptions{Temperature: &zero},
	}
	switch as {
	case rolePrefill:
		r.StopConditions.MaxTokens = proto.Uint32(1)
	case roleDecode:
		r.PrefillResult = &protocol.PrefillResult{DisaggregatedParams: c.params}
	case roleAggregated:
	}
	if c.run.plan.has(faultRefuse) && c.plan.struck && as != rolePrefill {
		r.SamplingOptions.MinP = &zero // converted for a prefill, refused elsewhere
	}
	return r
}

// moment is called whenever one of a leg's moments has come; if it is the plan's, the client leaves.
func (c *conv) moment(l *leg, m word) {
	if c.plan.way == wayStays || c.leaving || c.over || l.extra || l.role != c.plan.leaves || m != c.plan.moment {
		return
	}
	c.leaving = true
	do := func() {
		if !c.over {
			c.tally.ways[c.plan.way]++
			c.tally.cover.add(c.run.plan, l.role, m, c.plan.way)
			c.leave(l, c.plan.way)
		}
	}
	if c.plan.delay == 0 {
		do()
		return
	}
	c.after(c.plan.delay, do)
}

// leave carries a way of leaving out. A connection that has ended can't break any more; a client that goes takes with it
// whatever is under way by then.
func (c *conv) leave(l *leg, way word) {
	if way == wayKill || way == wayImpatience {
		l = c.current
	}
	c.logf(l.id, "client leaves: %s", way)
	switch way {
	case wayStop:
		if l.closed {
			return
		}
		c.left, c.gaveUp = true, true
		l.say(l.stop)
	case wayKill, wayImpatience:
		c.left = true
		if l.role == rolePrefill {
			return // it goes on; what follows is killed at birth
		}
		c.hangUp(l, "kill")
		c.finish()
	case wayReset:
		if l.closed {
			return
		}
		c.hangUp(l, "reset")
		c.broken(l)
	case wayDial:
		l.dialFails = true
		c.hangUp(l, "reset")
		c.broken(l)
	case wayDies:
		c.die()
	default:
		panic(way)
	}
}

// say has the worker hear something, now or as soon as there is a connection.
func (l *leg) say(do func()) {
	if l.connected {
		l.after(l.hop(), do)
		return
	}
	l.whenOpen = do
}

// hangUp ends the response connection; nothing that comes on it counts any more.
func (c *conv) hangUp(l *leg, why string) {
	if l.closed {
		return
	}
	l.closed = true
	l.say(func() { l.leave(why) })
}

// broken: the frontend takes the worker for lost; it tries the request again or gives it up.
func (c *conv) broken(l *leg) {
	c.gaveUp = true
	if c.plan.migrates && c.attempt == 0 && !c.left && !l.extra {
		c.again()
		return
	}
	c.finish()
}

// again runs the request a second time under the same id.
func (c *conv) again() {
	c.attempt++
	c.gaveUp, c.grant = false, nil
	c.logf(c.id, "is tried again")
	c.after(c.between(time.Millisecond, pick(c.world, 20*time.Millisecond, 20*time.Millisecond, 4*time.Second)), func() {
		if !c.front.dead && !c.left {
			c.begin()
		} else {
			c.finish()
		}
	})
}

// die ends the process with everything that it had open.
func (c *conv) die() {
	c.logf("frontend", "dies")
	c.front.dead = true
	for _, l := range c.legs {
		if l.conv.front == c.front && !l.closed {
			l.closed = true
			l.say(func() { l.leave("frontend-dead") })
		}
	}
	for _, other := range c.front.convs {
		other.gaveUp = true
		other.finish()
	}
}

func (c *conv) finish() {
	c.over = true
	c.patience.off()
}

// turnedAway: the worker's ack says that it stops.
func (c *conv) turnedAway(l *leg) {
	l.closed = true
	c.finish()
}

// receive takes one frame of the response.
func (c *conv) receive(l *leg, f frame) {
	if l.ends > 0 && !c.front.dead {
		c.violatef("C3", "%s gets a frame after the end", l.id)
	}
	if l.closed {
		return
	}
	l.tokens = append(l.tokens, f.tokens...)
	switch {
	case f.end:
		l.ends++
		l.closed = true
		c.logf(l.id, "client has it all: %d tokens, %s%s", len(l.tokens), l.reason, l.failed.Name)
		c.after(c.hop(), func() { l.leave("closed") })
		c.ended(l)
	case f.isErr:
		l.failed = f.failed
	case f.reason != "":
		l.reason = f.reason
		if f.params.Kind == protocol.KindMap {
			l.params = f.params
		}
	}
}

// ended: a response is complete.
func (c *conv) ended(l *leg) {
	switch {
	case l.extra || c.over || l != c.current:
	case l.failed != protocol.ErrorKind{} || l.reason == protocol.FinishCancelled || l.reason == "":
		if c.plan.migrates && c.attempt == 0 && !c.left && l.failed != protocol.ErrorInvalidArgument && l.failed != protocol.ErrorBackendInvalidArgument {
			c.again()
			return
		}
		c.finish()
	case l.role == rolePrefill:
		c.handOver(l)
	default:
		c.finish()
	}
}

// handOver goes from a prefill to its decode.
func (c *conv) handOver(l *leg) {
	engineID, _ := l.params.Get("remote_engine_id")
	requestID, _ := l.params.Get("remote_request_id")
	c.grant = c.grants[grantKey(engineID.Str, requestID.Str)]
	if c.grant == nil {
		c.violatef("C4", "%s hands off %s, which nobody holds", l.id, requestID.Str)
		return
	}
	c.grant.received = true
	// The stamp tells when the worker read the finish; what the engine took to tell it is not in it.
	c.grant.blind = c.grant.blind || l.doneAt-c.grant.made > c.run.plan.lease/20
	c.params = l.params
	if c.run.plan.has(faultBroken) && c.plan.struck {
		c.params = c.spoil(l.params)
	}
	attempt := c.attempt
	c.moment(l, atGap)
	c.after(c.plan.gap, func() {
		if c.front.dead || c.gaveUp || c.attempt != attempt {
			return
		}
		d := c.send(roleDecode)
		if c.left {
			c.leave(d, wayKill)
		}
		if c.run.plan.has(faultReuse) && c.plan.struck {
			c.sendAgain(d.grant, d.body.PrefillResult.DisaggregatedParams)
		}
	})
}

// sendAgain is the fault of a hand-off that is used a second time.
func (c *conv) sendAgain(g *grant, params protocol.Value) {
	c.after(c.between(0, pick(c.world, 5*time.Millisecond, time.Second, 2*c.run.plan.lease)), func() {
		if c.front.dead {
			return
		}
		current := c.current
		old, oldParams := c.grant, c.params
		c.grant, c.params = g, params
		l := c.send(roleDecode)
		l.extra = true
		l.id += "+"
		c.current, c.grant, c.params = current, old, oldParams
		c.after(c.run.plan.patience, func() {
			if !l.closed {
				l.closed = true
				l.say(func() { l.leave("kill") })
			}
		})
	})
}
