package chaos

import (
	"fmt"
	"io"
	"time"
)

// run is one schedule under way, and what is known of it for its checks.
type run struct {
	*world

	plan    *plan
	rules   *rules
	oracle  oracle
	tally   *tally
	engines []*engine
	workers map[role]*worker
	fronts  []*frontend
	convs   []*conv
	legs    []*leg
	grants  map[string]*grant
	granted []*grant // in the order of making
	opened  int      // streams

	violations []violation
}

// violation is a broken invariant: its name, as in the package's references, and what was seen.
type violation struct{ name, text string }

func (r *run) violatef(name, format string, args ...any) {
	v := violation{name, fmt.Sprintf(format, args...)}
	r.logf("VIOLATION", "%s: %s", v.name, v.text)
	if len(r.violations) < 20 {
		r.violations = append(r.violations, v)
	}
}

// mostEvents bounds a schedule; the largest ones need a tenth of it.
const mostEvents = 500_000

// execute runs the schedule of a seed to its end and checks it. rules may break what a worker must do.
func execute(seed uint64, broken *rules, o oracle, t *tally, trace io.Writer) []violation {
	p := draw(seed)
	r := &run{
		world: newWorld(seed, trace), plan: p, rules: broken, oracle: o, tally: t,
		workers: make(map[role]*worker), grants: make(map[string]*grant),
	}
	if trace != nil {
		fmt.Fprintln(trace, p)
	}
	r.build()
	quiet := r.world.run(p.quiet(), mostEvents)
	t.schedules++
	t.events += r.done
	for _, fault := range p.faults {
		t.faults[fault]++
	}
	r.check(quiet)
	return r.violations
}

// build sets the scene and enters what will happen by itself.
func (r *run) build() {
	for i := range 2 {
		r.fronts = append(r.fronts, &frontend{clock: int64(1_700_000_000+i*3600) * 1e9})
	}
	if r.plan.topology != "aggregated" {
		p, d := newEngine(r, "P", r.plan.stepP), newEngine(r, "D", r.plan.stepD)
		r.engines = append(r.engines, p, d)
		r.workers[rolePrefill] = newWorker(r, "worker-p", rolePrefill, p)
		r.workers[roleDecode] = newWorker(r, "worker-d", roleDecode, d)
	}
	if r.plan.topology != "pair" {
		a := newEngine(r, "A", r.plan.stepP)
		r.engines = append(r.engines, a)
		r.workers[roleAggregated] = newWorker(r, "worker-a", roleAggregated, a)
	}
	for i := range r.plan.requests {
		req := &r.plan.requests[i]
		c := &conv{run: r, plan: req, id: fmt.Sprintf("r%d", i+1), front: r.fronts[req.frontend]}
		r.convs = append(r.convs, c)
		c.front.convs = append(c.front.convs, c)
		r.at(req.at, c.start)
	}
	if stop := r.plan.stop; stop != nil {
		if w := r.workers[stop.role]; w != nil {
			r.at(stop.at, func() { w.signal(stop) })
		}
	}
	for _, fault := range r.plan.faults {
		r.strike(fault)
	}
}

// strike enters a fault that is a moment.
func (r *run) strike(fault word) {
	at := r.plan.faultAt
	switch fault {
	case faultPAgain:
		r.at(at, func() { r.engines[0].restart(r.between(0, r.plan.lease)) })
	case faultDAgain:
		r.at(at, func() { r.engines[1].restart(r.between(0, r.plan.lease)) })
	case faultDDead:
		r.at(at, r.engines[1].die)
	case faultFrozen:
		r.at(at, func() {
			e := pick(r.world, r.engines...)
			span := r.between(0, pick(r.world, time.Second, r.plan.lease, longestFreeze))
			e.freeze(span)
			r.watch(e, span)
		})
	default: // the others strike requests
	}
}

// watch is what the supervision of a frozen engine does: its worker learns of it, and later that it is back.
func (r *run) watch(e *engine, span time.Duration) {
	notices := r.between(2*time.Second, 4*time.Second)
	for _, as := range []role{roleAggregated, rolePrefill, roleDecode} {
		if w := r.workers[as]; w != nil && w.engine == e && span > notices {
			r.after(notices, w.lost)
			r.after(span+time.Second, func() { w.paused = false })
		}
	}
}
