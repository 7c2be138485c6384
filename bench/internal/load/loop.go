package load

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"remora/bench/internal/engine"
)

// loop serves the response connections until wake is written.
func (c *Client) loop() {
	events := make([]unix.EpollEvent, 256)
	buf := make([]byte, 256<<10)
	for {
		n, err := unix.EpollWait(c.epoll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			panic(fmt.Sprintf("epoll: %v", err)) // nothing can be measured without it
		}
		c.mu.Lock()
		for _, event := range events[:n] {
			switch int(event.Fd) {
			case c.wake:
				c.mu.Unlock()
				return
			case c.listen:
				c.accept()
			default:
				if l := c.links[event.Fd]; l != nil {
					c.read(l, buf)
				}
			}
		}
		c.mu.Unlock()
	}
}

// accept takes what waits. The caller holds mu, as of all that follows.
func (c *Client) accept() {
	for {
		fd, _, err := unix.Accept4(c.listen, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if err != nil {
			c.fail(fmt.Sprintf("accept: %v", err))
			return
		}
		if err = c.watch(fd); err != nil {
			c.fail(err.Error())
		}
		c.links[int32(fd)] = &link{fd: int32(fd), number: -1}
	}
}

// read takes what has arrived on a connection.
func (c *Client) read(l *link, buf []byte) {
	n, err := unix.Read(int(l.fd), buf)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return
	case err != nil:
		c.drop(l, fmt.Sprintf("response connection: %v", err))
		return
	case n == 0:
		c.drop(l, "response connection ended without the sentinel")
		return
	}
	data := buf[:n]
	if len(l.rest) > 0 {
		l.rest = append(l.rest, data...)
		data = l.rest
	}
	now := time.Now().UnixMicro()
	for {
		header, body, size, err := splitFrame(data)
		if err != nil {
			c.drop(l, err.Error())
			return
		}
		if size == 0 {
			break
		}
		data = data[size:]
		if over := c.frame(l, header, body, now); over {
			return
		}
	}
	l.rest = append(l.rest[:0], data...)
}

// frame takes one frame, and reports whether the connection is closed.
func (c *Client) frame(l *link, header, body []byte, now int64) bool {
	switch {
	case l.number < 0:
		return c.handshake(l, header)
	case !l.good:
		if !bytes.Contains(header, []byte(`"error":null`)) {
			return c.drop(l, fmt.Sprintf("prologue %.300s", header))
		}
		l.good = true
	case string(header) == sentinel:
		r := &c.requests[l.number]
		why := finished
		if r.tokens != r.want {
			why = "the answer is complete"
		}
		return c.drop(l, why)
	case len(header) > 0:
		return c.drop(l, fmt.Sprintf("header %.300s", header))
	default:
		return c.item(l, body, now)
	}
	return false
}

func (c *Client) handshake(l *link, header []byte) bool {
	number, err := subjectNumber(header)
	if err != nil {
		return c.drop(l, err.Error())
	}
	if number -= c.base; number < 0 || number >= len(c.requests) || c.requests[number].over {
		return c.drop(l, killed) // a late dial of a request that is over
	}
	l.number = number
	if c.requests[number].killAfter == 0 {
		return c.kill(l)
	}
	return false
}

func (c *Client) item(l *link, body []byte, now int64) bool {
	n, last := tokens(c.worker.Codec, body)
	if n == 0 {
		if bytes.Contains(body, []byte("error")) && !bytes.Contains(body, []byte("finish_reason")) {
			c.fail(fmt.Sprintf("item %.300q", body))
		}
		return false
	}
	r := &c.requests[l.number]
	if r.tokens == 0 {
		c.tally.Started++
		if c.first != nil {
			c.first.add(now - r.sent)
		}
	} else if c.later != nil {
		c.later.add(engine.Age(now, last))
	}
	r.tokens += int32(n)
	c.tally.Tokens += int64(n)
	if r.killAfter > 0 && r.tokens >= r.killAfter {
		return c.kill(l)
	}
	return false
}

// kill leaves as a stock frontend whose client has gone.
func (c *Client) kill(l *link) bool {
	const word = `"kill"`
	frame := append([]byte{7: byte(len(word)), prefixSize - 1: 0}, word...)
	_, _ = unix.Write(int(l.fd), frame) // a worker that has gone need not be told
	return c.drop(l, killed)
}

// drop hangs up, the end of the stream and a reset together, and books why. It returns true.
func (c *Client) drop(l *link, why string) bool {
	delete(c.links, l.fd)
	_ = unix.Shutdown(int(l.fd), unix.SHUT_WR)
	_ = unix.SetsockoptLinger(int(l.fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Close(int(l.fd))
	if l.number >= 0 {
		c.over(l.number, why)
	} else if why != killed {
		c.fail("before the handshake: " + why)
	}
	return true
}

// killAll leaves every response that is under way.
func (c *Client) killAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.links {
		c.kill(l)
	}
}
