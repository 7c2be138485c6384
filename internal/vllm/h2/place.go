package h2

import (
	"slices"
	"strconv"

	"google.golang.org/grpc/codes"

	pb "remora/proto/vllm"
)

// Open starts a call and returns at once; a nil rank lets the engine choose. The sink is called from other goroutines,
// possibly before Open has returned, and OnEnd always comes. The request must not be changed before OnEnd.
func (p *Pool) Open(s *Stream, request *pb.GenerateRequest, rank *uint32, sink Sink) {
	if rank != nil {
		s.rank = strconv.FormatUint(uint64(*rank), 10)
	}
	s.mu.Lock()
	s.pool, s.sink, s.request = p, sink, request
	s.mu.Unlock()
	p.start(s, request)
}

// start gives the stream a body and a connection, for the first time or once more.
func (p *Pool) start(s *Stream, request *pb.GenerateRequest) {
	b, refusal := p.marshal(request)
	if refusal != nil {
		s.finish(*refusal)
		s.wake()
		return
	}
	s.body, s.submitted, s.removed = b, false, false
	if end := p.place(s); end != nil {
		s.finish(*end)
		s.wake()
	}
}

// place puts the stream on a connection or in the line. It returns the end of a stream for which there is no hope.
func (p *Pool) place(s *Stream) *End {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.mu.Lock()
	dropped := s.dropped
	s.mu.Unlock()
	switch {
	case dropped:
		end := droppedEnd(false)
		return &end
	case p.closed:
		return &End{Code: codes.Unavailable, Message: ErrClosed.Error(), Transport: true, NotSent: true}
	case len(p.ready) == 0 && p.attempts == 0:
		end := p.notConnected(p.last)
		return &end
	}
	p.waiting = append(p.waiting, s)
	p.admit()
	return nil
}

// forget takes a dropped stream out of the line.
func (p *Pool) forget(s *Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting, s); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		p.recycle(s.body)
		s.body = nil
	}
}

// admit puts as many waiting streams on connections as there is room for. Called with mu held.
func (p *Pool) admit() {
	for len(p.waiting) > 0 {
		c := p.pick()
		if c == nil {
			break
		}
		s := p.waiting[0]
		p.waiting[0] = nil
		p.waiting = p.waiting[1:]
		if !s.moveTo(c) {
			continue // dropped meanwhile, which ends it
		}
		switch c.open(s) {
		case opened:
			c.load++
			p.streams++
		case skipped:
		case refused:
			s.moveTo(nil)
			p.waiting = slices.Insert(p.waiting, 0, s)
			p.unlist(c)
			p.goroutines.Go(c.leave)
		}
	}
	if len(p.waiting) > 0 || p.streams > crowd*len(p.ready) {
		p.grow()
	}
}

// pick returns the connection for the next stream: the least loaded of the first few, of which there are as many as the
// streams need. Nil when none has room. Called with mu held.
func (p *Pool) pick() *conn {
	width := min(p.streams/streamsEach+1, len(p.ready))
	if c := leastLoaded(p.ready[:width]); c != nil {
		return c
	}
	return leastLoaded(p.ready[width:])
}

func leastLoaded(conns []*conn) *conn {
	var best *conn
	for _, c := range conns {
		if uint32(c.load) < c.limit && (best == nil || c.load < best.load) {
			best = c
		}
	}
	return best
}

// moveTo notes where the stream is, and reports false for one that was dropped.
func (s *Stream) moveTo(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped && c != nil {
		return false
	}
	s.conn, s.window = c, streamWindow
	return true
}

// retry starts a stream once more that the peer has not taken, and otherwise ends it.
func (p *Pool) retry(s *Stream, end End) {
	s.mu.Lock()
	again := !s.retried && !s.dropped && !s.ended && !s.headers
	s.retried = true
	request := s.request
	s.request = nil
	if again {
		s.conn = nil
	}
	end.NotSent = end.NotSent && !s.headers // a peer that answers has it, whatever it says later
	s.mu.Unlock()
	if again {
		p.start(s, request)
		return
	}
	s.finish(end)
	s.wake()
}
