package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"remora/internal/sleep"
)

// helloTimeout bounds how long a fresh connection may stay silent.
const helloTimeout = 10 * time.Second

// acceptPause is how long the side channel waits after it could not accept.
const acceptPause = 50 * time.Millisecond

// maxPeers bounds the connections of other engines.
const maxPeers = 1024

// compat is what engines of a pair must have in common for their blocks to mean the same.
func (c Config) compat() string {
	return fmt.Sprintf("%s|%s|%d|%d", c.EngineVersion, c.Model, c.BlockSize, c.Seed)
}

// giver serves the blocks of this engine to others.
type giver struct {
	cfg  Config
	loop *loop

	mu    sync.Mutex
	conns map[net.Conn]bool // guarded by mu; nil once the giver has stopped
}

func newGiver(cfg Config, l *loop) *giver {
	return &giver{cfg: cfg, loop: l, conns: make(map[net.Conn]bool)}
}

// serve accepts connections until the context ends, and returns when all of them are closed.
func (g *giver) serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() {
		l.Close()
		g.closeAll()
	})
	defer stop()
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		default: // out of file descriptors, or a peer that left while it queued: no reason to end the engine
			g.cfg.Log.Warn("side channel cannot accept", "err", err)
			_ = sleep.For(ctx, acceptPause) // the next Accept sees the end
			continue
		}
		if !g.add(conn) {
			conn.Close()
			continue
		}
		conns.Go(func() {
			defer g.remove(conn)
			if err := g.handle(ctx, conn); !errors.Is(err, io.EOF) && ctx.Err() == nil {
				g.cfg.Log.Info("side channel connection ended", "peer", conn.RemoteAddr(), "err", err)
			}
		})
	}
}

func (g *giver) add(conn net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns == nil || len(g.conns) >= maxPeers {
		return false
	}
	g.conns[conn] = true
	return true
}

func (g *giver) remove(conn net.Conn) {
	conn.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, conn)
}

func (g *giver) closeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for conn := range g.conns {
		conn.Close()
	}
	g.conns = nil
}

// handle speaks with one decode engine until it goes away. A caller that wants another engine or is not compatible learns who
// is here and is left.
func (g *giver) handle(ctx context.Context, conn net.Conn) error {
	if err := conn.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return fmt.Errorf("sim: side channel: %w", err)
	}
	kind, body, err := readFrame(conn, maxControlFrame)
	if err != nil {
		return err
	}
	if kind != kindHello {
		return fmt.Errorf("%w: kind %q before hello", errFrame, kind)
	}
	h, err := decode[hello](body)
	if err != nil {
		return err
	}
	if err := writeJSON(conn, kindWelcome, welcome{EngineID: g.cfg.EngineID, Compat: g.cfg.compat()}); err != nil {
		return err
	}
	if h.EngineID != g.cfg.EngineID || h.Compat != g.cfg.compat() {
		return fmt.Errorf("%w: hello for %q", errPeer, h.EngineID)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("sim: side channel: %w", err)
	}
	for {
		kind, body, err := readFrame(conn, maxControlFrame)
		if err != nil {
			return err
		}
		if err := g.serveFrame(ctx, conn, kind, body); err != nil {
			return err
		}
	}
}

func (g *giver) serveFrame(ctx context.Context, conn net.Conn, kind byte, body []byte) error {
	switch kind {
	case kindRead:
		req, err := decode[readRequest](body)
		if err != nil {
			return err
		}
		return g.serveRead(ctx, conn, req)
	case kindBeat:
		note, err := decode[beatNote](body)
		if err != nil {
			return err
		}
		return g.loop.call(ctx, func() { g.loop.engine.NoteBeat(note.RequestIDs) })
	case kindDone:
		note, err := decode[doneNote](body)
		if err != nil {
			return err
		}

		return g.loop.call(ctx, func() { g.loop.engine.NoteDone(note.RequestID) })
	default:
		return fmt.Errorf("%w: kind %q", errFrame, kind)
	}
}

func (g *giver) serveRead(ctx context.Context, conn net.Conn, req readRequest) error {
	var blocks [][]uint64
	var readErr error
	err := g.loop.call(ctx, func() { blocks, readErr = g.loop.engine.Serve(req.RequestID, req.Blocks) })
	if err != nil {
		return err
	}
	if readErr != nil {
		return writeJSON(conn, kindRefusal, refusal{Message: readErr.Error()})
	}
	return writeFrame(conn, kindData, encodeBlocks(blocks))
}
