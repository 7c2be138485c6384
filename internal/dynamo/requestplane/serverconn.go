package requestplane

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// serverConn is one request connection. Everything belongs to its goroutine. Acknowledgements are collected while frames come
// out of the buffer and leave in one write before the connection is read again: that keeps them in order and needs neither a
// second goroutine nor a bound of its own.
type serverConn struct {
	server   *Server
	conn     net.Conn
	acks     []byte
	accepted []acceptedRequest // their acknowledgements are in acks
	writeErr error             // first failure of a write; nothing is written after it
	inFrame  bool              // a frame has begun
	timed    bool              // and its deadline is running
}

type acceptedRequest struct {
	req     *Request
	handler Handler
}

func (c *serverConn) run() {
	in := bufio.NewReaderSize(readerFunc(c.read), 16<<10)
	for c.writeErr == nil {
		if _, err := in.Peek(1); err != nil {
			c.ended(err)
			return
		}
		c.inFrame = true
		memory := c.server.payload()
		f, err := readFrame(in, c.server.cfg.MaxMessage, *memory)
		if err != nil {
			c.ended(err)
			return
		}
		c.inFrame = false
		if c.timed {
			c.timed = false
			_ = c.conn.SetReadDeadline(time.Time{})
		}
		*memory = f.payload
		c.take(f, memory)
	}
	c.flush()
}

// read is where the connection is read, after everything that is due has been written.
func (c *serverConn) read(p []byte) (int, error) {
	if c.flush(); c.writeErr != nil {
		return 0, c.writeErr
	}
	if c.inFrame && !c.timed {
		c.timed = true
		_ = c.conn.SetReadDeadline(time.Now().Add(c.server.cfg.FrameTimeout))
	}
	return c.conn.Read(p)
}

func (c *serverConn) ended(err error) {
	c.flush()
	log := c.server.cfg.Logger.With("peer", c.conn.RemoteAddr())
	switch {
	case c.server.ctx.Err() != nil, errors.Is(err, io.EOF):
		log.Debug("request connection closed")
	case errors.Is(err, ErrFraming), c.inFrame:
		log.Warn("request connection closed: broken frame", "error", err)
	default:
		log.Debug("request connection lost", "error", err)
	}
}

// take acknowledges one frame. Its place in the stream is known to be good, so nothing in it may hurt the next one.
func (c *serverConn) take(f frame, memory *[]byte) {
	handler := c.server.handler(string(f.path))
	if handler == nil {
		c.refuse(&Request{}, fmt.Errorf("unknown endpoint %s", strings.ToValidUTF8(string(f.path), "?")))
		return
	}
	req, err := NewRequest(string(f.path), f.payload)
	req.memory, req.from = memory, &c.server.payloads
	if err != nil {
		c.refuse(req, err)
		return
	}
	if len(f.headers) > 0 {
		if req.Headers, err = parseHeaders(f.headers); err != nil {
			c.server.cfg.Logger.Debug("frame headers are not understood", "peer", c.conn.RemoteAddr(), "error", err)
		}
	}
	if err := handler.Admit(req); err != nil {
		c.refuse(req, err)
		return
	}
	c.acks = appendAck(c.acks, "")
	c.accepted = append(c.accepted, acceptedRequest{req, handler})
}

func (c *serverConn) refuse(req *Request, why error) {
	req.DropBody()
	refusal := RefusalOf(why)
	c.acks = appendAck(c.acks, refusal.Error())
	c.server.cfg.Logger.Debug("request refused", "peer", c.conn.RemoteAddr(), "id", req.Control.ID, "ack", refusal)
}

// flush writes the acknowledgements and starts the requests that they accept.
func (c *serverConn) flush() {
	if len(c.acks) == 0 {
		return
	}
	if c.writeErr == nil {
		if err := c.write(c.acks); err != nil {
			c.writeErr = fmt.Errorf("acknowledgement: %w", err)
		}
	}
	for _, a := range c.accepted {
		a.req.Unacked = c.writeErr != nil
		c.server.requests.Go(func() { a.handler.Serve(c.server.ctx, a.req) })
	}
	clear(c.accepted)
	c.acks, c.accepted = c.acks[:0], c.accepted[:0]
}

// write gives a peer that does not read as long as one that does not write: what it had admitted waits with it.
func (c *serverConn) write(acks []byte) error {
	n, err := tryWrite(c.conn, acks)
	if err != nil || n == len(acks) {
		return err
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(c.server.cfg.FrameTimeout))
	if _, err = c.conn.Write(acks[n:]); err != nil {
		return err
	}
	return c.conn.SetWriteDeadline(time.Time{})
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
