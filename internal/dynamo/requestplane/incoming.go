package requestplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"remora/internal/dynamo/protocol"
)

// Incoming is the frontend's end of one response. Next belongs to one goroutine, Kill to anyone.
type Incoming struct {
	server  *ResponseServer // set once
	subject string          // set once
	codec   protocol.Codec  // set once

	connected chan struct{} // closed when conn and in are set
	over      chan struct{} // closed when err is set

	in       *bufio.Reader // set before connected is closed, then of the goroutine that calls Next
	prologue bool          // has been read; of the goroutine that calls Next
	final    bool          // likewise

	mu      sync.Mutex
	conn    net.Conn    // guarded by mu until connected is closed, then constant
	err     error       // why the response is over; guarded by mu
	unwatch func() bool // stops watching the context of Register; guarded by mu
}

// connect takes over the connection; ok is false where there is one already or the response is over.
func (i *Incoming) connect(conn net.Conn, in *bufio.Reader) (ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err != nil || i.conn != nil {
		return false
	}
	i.conn, i.in = conn, in
	close(i.connected)
	return true
}

// Ready returns nil once the good prologue is there: the moment at which a streaming client gets its status. Its errors are
// those of Next, which calls it where it has not been called.
func (i *Incoming) Ready(ctx context.Context) error {
	if i.prologue {
		return i.reason()
	}
	_, _, err := i.pull(ctx)
	return err
}

// Next returns the next item. The response's good end is io.EOF. A refusal in the prologue is a *protocol.Error, an end without
// the final frame ErrMissingFinal, and so on; after an error every call returns the same. An item may carry an Error of its
// own. The end of ctx kills the response.
func (i *Incoming) Next(ctx context.Context) (protocol.Item, error) {
	if err := i.Ready(ctx); err != nil {
		return protocol.Item{}, err
	}
	for {
		item, ok, err := i.pull(ctx)
		if err != nil || ok {
			return item, err
		}
	}
}

// pull waits for one frame and takes the response's end from it, if that is what it is.
func (i *Incoming) pull(ctx context.Context) (item protocol.Item, ok bool, err error) {
	select {
	case <-i.connected:
		item, ok, err = i.frame(ctx)
	case <-i.over:
		return item, false, i.reason()
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		i.finish(err, errors.Is(err, ErrBadResponse) || ctx.Err() != nil)
		return protocol.Item{}, false, i.reason()
	}
	return item, ok, nil
}

// frame reads one frame; ok is false where it carries no item.
func (i *Incoming) frame(ctx context.Context) (item protocol.Item, ok bool, err error) {
	if i.in.Buffered() == 0 && ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { i.finish(context.Cause(ctx), true) })
		defer stop()
	}
	header, body, err := readTwoPart(i.in, i.server.cfg.MaxFrame)
	switch {
	case errors.Is(err, ErrFraming):
		return item, false, fmt.Errorf("%w: %w", ErrBadResponse, err)
	case err != nil:
		return item, false, i.ended(err)
	case !i.prologue:
		i.prologue = true
		return item, false, prologueError(header, body)
	case len(header) > 0 && len(body) > 0:
		return item, false, fmt.Errorf("%w: header and body in one frame", ErrBadResponse)
	case string(header) == sentinel:
		return item, false, i.ended(io.EOF)
	case len(header) > 0:
		return item, false, fmt.Errorf("%w: header %.40q", ErrBadResponse, header)
	case i.final:
		return item, false, fmt.Errorf("%w: data after the final frame", ErrBadResponse)
	}
	item, i.final, err = protocol.ParseItem(i.codec, body)
	if err != nil {
		return item, false, fmt.Errorf("%w: %w", ErrBadResponse, err)
	}
	return item, item.Data != nil || item.Error != nil, nil
}

// ended says what an end of the stream means: a worker that sent its final frame may leave in any way.
func (i *Incoming) ended(err error) error {
	switch {
	case i.final:
		return io.EOF
	case err == io.EOF: //nolint:errorlint // readers return it bare
		return ErrMissingFinal
	default:
		return fmt.Errorf("%w: %w", ErrMissingFinal, err)
	}
}

func prologueError(header, body []byte) error {
	if len(body) > 0 {
		return fmt.Errorf("%w: prologue with a body", ErrBadResponse)
	}
	refusal, err := protocol.ParsePrologue(header)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrBadResponse, err)
	case refusal != nil:
		return refusal
	default:
		return nil
	}
}

// Kill tells the worker to stop, and hangs up. Where the response is over already it does nothing.
func (i *Incoming) Kill() { i.finish(ErrKilled, true) }

func (i *Incoming) reason() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

// finish ends the response once; the first reason stays. The worker may be past reading, so the kill has no time to wait.
func (i *Incoming) finish(why error, kill bool) {
	i.mu.Lock()
	if i.err != nil {
		i.mu.Unlock()
		return
	}
	i.err = why
	conn, unwatch := i.conn, i.unwatch
	i.mu.Unlock()
	close(i.over)
	i.server.forget(i.subject)
	if unwatch != nil {
		unwatch()
	}
	if conn == nil {
		return
	}
	if kill {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write(appendTwoPart(nil, []byte(`"kill"`), nil))
	}
	hangUp(conn)
}
