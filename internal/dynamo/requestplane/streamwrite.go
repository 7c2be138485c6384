package requestplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// maxPooled keeps a single huge item from staying in memory.
const maxPooled = 64 << 10

// send encodes frames into a pooled buffer and writes them. Without wait, done may come back false.
func (s *ResponseStream) send(frames func([]byte) []byte, wait bool) (done bool, err error) {
	buf, ok := s.buffers.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	*buf = frames((*buf)[:0])
	done, err = s.sendBytes(*buf, wait)
	if cap(*buf) <= maxPooled {
		s.buffers.Put(buf)
	}
	return done, err
}

// sendBytes writes p, behind what is still unsent. A failure ends the stream.
func (s *ResponseStream) sendBytes(p []byte, wait bool) (done bool, err error) {
	if err = s.deliver(p, wait); err == nil {
		return len(s.unsent) == 0, nil
	}
	s.unsent = nil
	s.mu.Lock()
	if s.failed == nil {
		s.failed = err
	}
	s.mu.Unlock()
	_ = s.conn.Close() // wakes the reader, which reports it
	return false, fmt.Errorf("%w: %w", ErrGone, err)
}

// deliver writes p, or keeps in unsent what the connection does not take. It never adds to unsent, which so stays bounded.
func (s *ResponseStream) deliver(p []byte, wait bool) error {
	if len(s.unsent) > 0 {
		if _, err := s.conn.Write(s.unsent); err != nil {
			return err
		}
		s.unsent = nil
	}
	if len(p) == 0 {
		return nil
	}
	if wait || s.try.raw == nil {
		_, err := s.conn.Write(p)
		return err
	}
	n, err := s.try.write(p)
	if err == nil && n < len(p) {
		s.unsent = append([]byte(nil), p[n:]...)
	}
	return err
}

// tryWriter writes what a connection takes without waiting. It belongs to the writing goroutine, but for raw, which is set
// once. All of it is kept between calls because a closure made for each call would be garbage for each token.
type tryWriter struct {
	raw     syscall.RawConn // nil for a connection without a descriptor, as tests have: writes wait there
	attempt func(fd uintptr) bool
	p       []byte
	n       int
	err     error
}

func (w *tryWriter) init(conn net.Conn) {
	sys, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return // closed already; the waiting write will say so
	}
	w.raw = raw
	w.attempt = func(fd uintptr) bool {
		for {
			w.n, w.err = syscall.Write(int(fd), w.p)
			if !errors.Is(w.err, syscall.EINTR) {
				return true // done with the descriptor, come what may
			}
		}
	}
}

func (w *tryWriter) write(p []byte) (n int, err error) {
	w.p = p
	err = w.raw.Write(w.attempt)
	w.p = nil
	switch {
	case err != nil:
		return 0, err
	case errors.Is(w.err, syscall.EAGAIN):
		return 0, nil
	default:
		return w.n, w.err
	}
}

func appendHeaderFrame(dst []byte, header func([]byte) []byte) []byte {
	start := len(dst)
	dst = header(appendTwoPartPrefix(dst, 0, 0))
	binary.BigEndian.PutUint64(dst[start:], uint64(len(dst)-start-twoPartPrefix))
	return dst
}

func appendBodyFrame(dst []byte, body func([]byte) []byte) []byte {
	start := len(dst)
	dst = body(appendTwoPartPrefix(dst, 0, 0))
	binary.BigEndian.PutUint64(dst[start+8:], uint64(len(dst)-start-twoPartPrefix))
	return dst
}
