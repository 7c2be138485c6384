package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"remora/internal/sim/core"
	"remora/internal/sleep"
)

// dialPause is how long a first contact waits between two attempts.
const dialPause = 100 * time.Millisecond

// idlePerPeer bounds the connections kept for one engine.
const idlePerPeer = 4

// fetcher speaks to the engines that this one reads from. An engine is found by its id once it is known; host and port of a
// hand-off matter for the first contact only.
type fetcher struct {
	cfg    Config
	loop   *loop
	faults *faultSet
	ctx    context.Context // ends with the server; closes every connection in use
	jobs   sync.WaitGroup
	greets chan struct{} // full while a first contact is under way

	mu       sync.Mutex
	peers    map[string]*peer    // guarded by mu; by engine id
	contacts map[string]*contact // guarded by mu; first contacts under way, by engine id
}

// contact is a first contact that everybody waits for who wants that engine.
type contact struct {
	done chan struct{} // closed at the end
	err  error         // set before done is closed
}

type peer struct {
	addr string
	idle []net.Conn // guarded by the fetcher's mu
}

func newFetcher(ctx context.Context, cfg Config, l *loop, faults *faultSet) *fetcher {
	return &fetcher{
		cfg: cfg, loop: l, faults: faults, ctx: ctx, greets: make(chan struct{}, 1),
		peers: make(map[string]*peer), contacts: make(map[string]*contact),
	}
}

// carryOut starts what a step asks for. It does not block.
func (f *fetcher) carryOut(plan core.Plan) {
	for _, read := range plan.Reads {
		f.jobs.Go(func() { f.read(read) })
	}
	for _, done := range plan.Dones {
		f.jobs.Go(func() { f.tell(done.Source, kindDone, doneNote{RequestID: done.Source.RequestID}) })
	}
	for _, beat := range plan.Beats {
		if f.faults.on(BeatLost) {
			continue
		}
		f.jobs.Go(func() { f.beat(beat) })
	}
}

// wait returns when all transfers have ended, and closes what is idle.
func (f *fetcher) wait() {
	f.jobs.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.peers {
		p.hangUp()
	}
	clear(f.peers)
}

// read fetches blocks, tells their owner, and then the loop. A transfer has no time limit, as in the real engine.
func (f *fetcher) read(r core.Read) {
	blocks, err := f.transfer(r)
	if err != nil {
		f.cfg.Log.Error("KV transfer failed", "request_id", r.ID, "remote_engine_id", r.Source.EngineID, "err", err)
		_ = f.loop.call(f.ctx, func() { f.loop.engine.ReadFailed(r.ID) }) // a stopped loop has forgotten it
		return
	}
	_ = f.loop.call(f.ctx, func() { f.loop.engine.ReadDone(r.ID, blocks) })
}

func (f *fetcher) transfer(r core.Read) ([][]uint64, error) {
	if err := f.faults.beforeRead(f.ctx, f.cfg.ReadDelay); err != nil {
		return nil, err
	}
	var blocks [][]uint64
	err := f.with(r.Source, func(conn net.Conn) error {
		if err := writeJSON(conn, kindRead, readRequest{RequestID: r.Source.RequestID, Blocks: r.Blocks}); err != nil {
			return err
		}
		kind, body, err := readFrame(conn, max(maxControlFrame, len(r.Blocks)*f.cfg.BlockSize*8))
		if err != nil {
			return err
		}
		switch kind {
		case kindData:
		case kindRefusal:
			return fmt.Errorf("%w: %s", errPeer, body)
		default:
			return fmt.Errorf("%w: kind %q for a read", errFrame, kind)
		}
		if blocks, err = decodeBlocks(body, len(r.Blocks), f.cfg.BlockSize); err != nil {
			return err
		}
		return writeJSON(conn, kindDone, doneNote{RequestID: r.Source.RequestID})
	})
	return blocks, err
}

// beat renews leases at an engine that is known. One that is not is only made contact with, as in the real engine: the next
// heartbeat is the first that it hears.
func (f *fetcher) beat(b core.Beat) {
	f.mu.Lock()
	known, pending := f.peers[b.Source.EngineID] != nil, f.contacts[b.Source.EngineID] != nil
	f.mu.Unlock()
	switch {
	case known:
		f.tell(b.Source, kindBeat, beatNote{RequestIDs: b.RequestIDs})
	case !pending:
		if err := f.with(b.Source, func(net.Conn) error { return nil }); err != nil {
			f.cfg.Log.Warn("no contact for heartbeats", "remote_engine_id", b.Source.EngineID, "err", err)
		}
	}
}

// tell sends a notification. That it is lost is no error here: the other engine's lease takes care.
func (f *fetcher) tell(src core.Source, kind byte, note any) {
	err := f.with(src, func(conn net.Conn) error { return writeJSON(conn, kind, note) })
	if err != nil {
		f.cfg.Log.Warn("KV notification lost", "remote_engine_id", src.EngineID, "err", err)
	}
}

// with runs an exchange on a connection to the engine. An engine that is lost stays known: whoever wants it again fails at once,
// and not after the time that a first contact takes.
func (f *fetcher) with(src core.Source, exchange func(net.Conn) error) error {
	conn, err := f.connect(src)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(f.ctx, func() { conn.Close() })
	err = exchange(conn)
	if !stop() || err != nil && !errors.Is(err, errPeer) {
		conn.Close()
		f.hangUp(src.EngineID)
		return err
	}
	f.keep(src.EngineID, conn)
	return err
}

// connect finds an idle connection or makes one.
func (f *fetcher) connect(src core.Source) (net.Conn, error) {
	f.mu.Lock()
	p, known := f.peers[src.EngineID]
	if known && len(p.idle) > 0 {
		conn := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		f.mu.Unlock()
		return conn, nil
	}
	if !known {
		return f.meet(src) // unlocks
	}
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(f.ctx, f.cfg.HandshakeTimeout)
	defer cancel()
	return f.handshake(ctx, p.addr, src.EngineID)
}

// meet makes a first contact, or waits for the one that is under way and shares its failure. It is called with mu held.
func (f *fetcher) meet(src core.Source) (net.Conn, error) {
	if c, ok := f.contacts[src.EngineID]; ok {
		f.mu.Unlock()
		<-c.done // ends with the fetcher's context at the latest
		if c.err != nil {
			return nil, c.err
		}
		return f.connect(src)
	}
	c := &contact{done: make(chan struct{})}
	f.contacts[src.EngineID] = c
	f.mu.Unlock()
	conn, err := f.firstContact(net.JoinHostPort(src.Host, src.Port), src.EngineID)
	f.mu.Lock()
	delete(f.contacts, src.EngineID)
	f.mu.Unlock()
	c.err = err
	close(c.done)
	return conn, err
}

// firstContact tries until somebody answers or the time is over: an address where nobody listens costs the whole time. There is
// one first contact at a time, as in the real engine, whose handshakes have one thread: the others wait for it.
func (f *fetcher) firstContact(addr, engineID string) (net.Conn, error) {
	select {
	case f.greets <- struct{}{}:
		defer func() { <-f.greets }()
	case <-f.ctx.Done():
		return nil, f.ctx.Err()
	}
	ctx, cancel := context.WithTimeout(f.ctx, f.cfg.HandshakeTimeout)
	defer cancel()
	for {
		conn, err := f.handshake(ctx, addr, engineID)
		if err == nil {
			f.remember(engineID, addr)
			return conn, nil
		}
		if errors.Is(err, errPeer) {
			return nil, err
		}
		if !sleep.For(ctx, dialPause) {
			return nil, err
		}
	}
}

// remember makes an engine known in place of the one that was at its address before: as many are known as there are addresses.
func (f *fetcher) remember(engineID, addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, p := range f.peers {
		if p.addr == addr && id != engineID {
			p.hangUp()
			delete(f.peers, id)
		}
	}
	if f.peers[engineID] == nil {
		f.peers[engineID] = &peer{addr: addr}
	}
}

// handshake dials and says hello.
func (f *fetcher) handshake(ctx context.Context, addr, engineID string) (net.Conn, error) {
	conn, err := f.cfg.Dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("sim: side channel: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err = f.greet(conn, engineID)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func (f *fetcher) greet(conn net.Conn, engineID string) error {
	if err := writeJSON(conn, kindHello, hello{EngineID: engineID, Compat: f.cfg.compat()}); err != nil {
		return err
	}
	kind, body, err := readFrame(conn, maxControlFrame)
	if err != nil {
		return err
	}
	if kind != kindWelcome {
		return fmt.Errorf("%w: kind %q for hello", errFrame, kind)
	}
	w, err := decode[welcome](body)
	if err != nil {
		return err
	}
	if w.EngineID != engineID {
		return fmt.Errorf("%w: engine id is %q, not %q", errPeer, w.EngineID, engineID)
	}
	if w.Compat != f.cfg.compat() {
		return fmt.Errorf("%w: incompatible: %q there, %q here", errPeer, w.Compat, f.cfg.compat())
	}
	return nil
}

func (f *fetcher) keep(engineID string, conn net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.peers[engineID]
	if p == nil || len(p.idle) >= idlePerPeer || f.ctx.Err() != nil {
		conn.Close()
		return
	}
	p.idle = append(p.idle, conn)
}

// hangUp closes the idle connections of an engine: where one has broken the others have, too.
func (f *fetcher) hangUp(engineID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.peers[engineID]; p != nil {
		p.hangUp()
	}
}

// hangUp is called with the fetcher's mu held.
func (p *peer) hangUp() {
	for _, conn := range p.idle {
		conn.Close()
	}
	p.idle = nil
}
