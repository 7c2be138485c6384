package requestplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// clientConn is one pooled connection. The n-th acknowledgement answers the n-th frame, so nobody writes between the
// queueing and the writing of a frame.
type clientConn struct {
	conn  net.Conn      // set once
	idle  time.Duration // set once
	limit int           // set once

	writing chan struct{} // has room for one: whoever fills it may queue and write a frame; set once

	mu    sync.Mutex
	queue []chan ack // waiting, oldest first; each has room for its answer; guarded by mu
	err   error      // why the connection is unusable; guarded by mu
}

type ack struct {
	text string
	err  error
}

func (c *clientConn) outstanding() (n int, usable bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue), c.err == nil
}

// send writes one frame and returns where its answer will be.
func (c *clientConn) send(ctx context.Context, msg []byte) (<-chan ack, error) {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	answer := make(chan ack, 1)
	c.mu.Lock()
	switch {
	case c.err != nil:
		defer c.mu.Unlock()
		return nil, c.err
	case len(c.queue) >= c.limit:
		defer c.mu.Unlock()
		return nil, ErrBusy
	}
	c.queue = append(c.queue, answer)
	_ = c.conn.SetReadDeadline(time.Time{})
	c.mu.Unlock()
	deadline, _ := ctx.Deadline()
	_ = c.conn.SetWriteDeadline(deadline)
	if _, err := c.conn.Write(msg); err != nil { // the frame may be there in part: nobody can use the connection any more
		c.fail(fmt.Errorf("%w: %w", ErrConnection, err))
	}
	return answer, nil
}

// readAcks hands out answers until the connection ends or has been idle for too long.
func (c *clientConn) readAcks() {
	in := bufio.NewReader(c.conn)
	for {
		c.mu.Lock()
		if len(c.queue) == 0 {
			_ = c.conn.SetReadDeadline(time.Now().Add(c.idle))
		}
		c.mu.Unlock()
		text, err := readAck(in, 64<<10)
		if err != nil {
			if n, _ := c.outstanding(); n > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
				continue // a frame was sent at the very moment; nothing of its answer has been read, as it was idle
			}
			c.fail(fmt.Errorf("%w: %w", ErrConnection, err))
			return
		}
		c.mu.Lock()
		var answer chan ack
		if len(c.queue) > 0 {
			answer = c.queue[0]
			c.queue = c.queue[1:]
		}
		c.mu.Unlock()
		if answer == nil {
			c.fail(fmt.Errorf("%w: an answer that nobody asked for", ErrConnection))
			return
		}
		answer <- ack{text: text}
	}
}

// fail closes the connection and answers everybody who waits.
func (c *clientConn) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	waiting := c.queue
	c.queue = nil
	c.mu.Unlock()
	_ = c.conn.Close()
	for _, answer := range waiting {
		answer <- ack{err: err}
	}
}
