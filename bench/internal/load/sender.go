package load

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// sender is one request connection. send belongs to one goroutine at a time.
type sender struct {
	client *Client
	conn   net.Conn
	sent   chan int       // numbers that wait for their acknowledgement, in order
	acks   sync.WaitGroup // readAcks
}

// send sends one request.
func (s *sender) send(t *template, shape Shape) error {
	now := time.Now()
	number := s.client.register(shape, now)
	t.number(number, now)
	s.sent <- number
	if _, err := s.conn.Write(t.frame); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	return nil
}

// readAcks reads acknowledgements until the connection ends. A refused request is over.
func (s *sender) readAcks() {
	in := bufio.NewReader(s.conn)
	for {
		var prefix [4]byte
		if _, err := io.ReadFull(in, prefix[:]); err != nil {
			s.lost(err)
			return
		}
		number := <-s.sent
		size := binary.BigEndian.Uint32(prefix[:])
		if size == 0 {
			continue
		}
		text := make([]byte, min(size, 64<<10))
		if _, err := io.ReadFull(in, text); err != nil {
			s.lost(err)
			return
		}
		s.client.refused(number, string(text))
	}
}

// lost fails what nobody has acknowledged.
func (s *sender) lost(err error) {
	if errors.Is(err, net.ErrClosed) {
		return
	}
	for {
		select {
		case number := <-s.sent:
			s.client.refused(number, fmt.Sprintf("request connection: %v", err))
		default:
			return
		}
	}
}

func (c *Client) refused(number int, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if number -= c.base; number >= 0 && number < len(c.requests) {
		c.over(number, "refused: "+text)
	}
}
