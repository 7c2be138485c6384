package engine

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// What the engine lets the peer send: more than any request, so that only the connection's credit has to be renewed.
const (
	recvWindow = 64 << 20
	recvRenew  = 16 << 20
	maxBody    = 32 << 20
)

// conn is one connection. wmu is taken before mu, and mu never held while writing.
type conn struct {
	server *Server
	net    net.Conn
	wake   chan struct{} // has room for one: the pump may have something to do
	closed chan struct{}

	wmu   sync.Mutex
	spare []byte // guarded by wmu

	mu       sync.Mutex
	out      []byte             // guarded by mu; not yet written
	window   int64              // guarded by mu; what the peer will still take
	initial  int64              // guarded by mu; the window of a new stream
	starved  bool               // guarded by mu; something was not sent for want of credit
	streams  map[uint32]*stream // guarded by mu
	flat     []*stream          // guarded by mu; streams without a pace
	received uint32             // of the reader: bytes since credit was renewed
}

func (c *conn) run() {
	defer close(c.closed)
	defer c.net.Close()
	go c.pump()
	if err := c.read(); err != nil {
		c.server.logf("connection from %s: %v", c.net.RemoteAddr(), err)
	}
	c.mu.Lock()
	for _, s := range c.streams {
		c.forget(s)
	}
	c.mu.Unlock()
}

// flush writes what has been appended.
func (c *conn) flush() {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.mu.Lock()
	out := c.out
	c.out = c.spare[:0]
	c.mu.Unlock()
	if len(out) > 0 {
		_, _ = c.net.Write(out) // the reader sees the end of a connection too
	}
	c.spare = out
}

// read serves the peer's frames until the connection ends.
func (c *conn) read() error {
	in := bufio.NewReaderSize(c.net, 64<<10)
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(in, preface); err != nil || string(preface) != http2.ClientPreface {
		return fmt.Errorf("preface %q: %w", preface, err)
	}
	c.mu.Lock()
	c.out = appendFrame(c.out, frameSettings, 0, 0, 6)
	c.out = append(c.out, 0, byte(http2.SettingInitialWindowSize), recvWindow>>24, recvWindow>>16&0xff, recvWindow>>8&0xff, recvWindow&0xff)
	c.out = appendWindowUpdate(c.out, 0, recvWindow)
	c.mu.Unlock()
	c.flush()
	framer := http2.NewFramer(nil, in)
	framer.SetReuseFrames()
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		frame, err := framer.ReadFrame()
		if err == io.EOF { //nolint:errorlint // the framer returns it bare
			return nil
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if err = c.take(frame); err != nil {
			return err
		}
		if in.Buffered() == 0 {
			c.flush()
		}
	}
}

func (c *conn) take(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		c.open(f)
	case *http2.DataFrame:
		return c.data(f)
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.WindowUpdateFrame:
		c.credit(f.StreamID, int64(f.Increment))
	case *http2.PingFrame:
		if !f.IsAck() {
			c.mu.Lock()
			c.out = append(appendFrame(c.out, framePing, flagAck, 0, 8), f.Data[:]...)
			c.mu.Unlock()
		}
	case *http2.RSTStreamFrame:
		c.mu.Lock()
		if s := c.streams[f.StreamID]; s != nil {
			c.forget(s)
		}
		c.mu.Unlock()
	}
	return nil
}

func (c *conn) open(f *http2.MetaHeadersFrame) {
	c.mu.Lock()
	s := &stream{conn: c, id: f.StreamID, method: f.PseudoValue("path"), window: c.initial}
	c.streams[s.id] = s
	c.mu.Unlock()
	if f.StreamEnded() {
		c.answer(s)
	}
}

func (c *conn) data(f *http2.DataFrame) error {
	if c.received += f.Length; c.received >= recvRenew {
		c.mu.Lock()
		c.out = appendWindowUpdate(c.out, 0, c.received)
		c.mu.Unlock()
		c.received = 0
	}
	c.mu.Lock()
	s := c.streams[f.StreamID]
	c.mu.Unlock()
	if s == nil {
		return nil // reset meanwhile
	}
	part := f.Data()
	if s.body == nil && len(part) >= grpcPrefix {
		size := int(part[1])<<24 | int(part[2])<<16 | int(part[3])<<8 | int(part[4])
		s.body = make([]byte, 0, min(size, maxBody)+grpcPrefix)
	}
	if s.body = append(s.body, part...); len(s.body) > maxBody {
		return fmt.Errorf("request of more than %d bytes", maxBody)
	}
	if f.StreamEnded() {
		c.answer(s)
	}
	return nil
}

func (c *conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if size, ok := f.Value(http2.SettingInitialWindowSize); ok {
		for _, s := range c.streams {
			s.window += int64(size) - c.initial
		}
		c.initial = int64(size)
	}
	c.out = appendFrame(c.out, frameSettings, flagAck, 0, 0)
	return nil
}

// credit widens a window, and sends what has waited for that.
func (c *conn) credit(stream uint32, n int64) {
	c.mu.Lock()
	if stream == 0 {
		c.window += n
	} else if s := c.streams[stream]; s != nil {
		s.window += n
	}
	if c.starved {
		c.starved = false
		for _, s := range c.streams {
			c.pay(s)
		}
	}
	pumping := len(c.flat) > 0
	c.mu.Unlock()
	if pumping {
		c.kick()
	}
}

func (c *conn) kick() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// generate begins the answer to a request: headers at once, then tokens at its pace.
func (c *conn) generate(s *stream, r request) {
	c.mu.Lock()
	if s.done { // reset meanwhile
		c.mu.Unlock()
		return
	}
	c.server.remember(s, r.id)
	s.request, s.interval, s.body = r, r.interval, nil
	c.out = appendHeaders(c.out, s.id, 0, blockOK)
	if s.interval == 0 {
		c.flat = append(c.flat, s)
		c.mu.Unlock()
		c.kick()
		return
	}
	s.owed = 1
	c.pay(s)
	over := s.done
	c.mu.Unlock()
	if !over {
		s.due = time.Now().Add(s.interval)
		c.server.wheel.add(s)
	}
}

// pump sends the tokens of streams without a pace, one of each in turn, in writes of about pumpSize.
func (c *conn) pump() {
	const pumpSize = 16 << 10
	for {
		select {
		case <-c.wake:
		case <-c.closed:
			return
		}
		for progress := true; progress; {
			progress = false
			c.mu.Lock()
			stamp := Stamp()
			for round := true; round && len(c.out) < pumpSize; {
				round = false
				left := c.flat[:0]
				for _, s := range c.flat {
					if c.produce(s, stamp) {
						round = true
					}
					if !s.done {
						left = append(left, s)
					}
				}
				clear(c.flat[len(left):])
				c.flat = left
				progress = progress || round
			}
			c.mu.Unlock()
			c.flush()
		}
	}
}
