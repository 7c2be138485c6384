package sim

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"

	"remora/internal/sim/core"
	"remora/internal/sim/kvpub"
)

// rank is one data-parallel rank: an engine core with a pool, a prefix cache, a scheduler, hand-offs and KV events of its own.
type rank struct {
	number  uint32 // absolute
	cfg     Config // the server's, with this rank's engine id
	loop    *loop
	live    atomic.Int64     // requests that the front end has given to this rank and not seen the end of
	address address          // set once by Run, before anything is served
	fetch   *fetcher         // set once by Run; nil without a side channel
	events  *kvpub.Publisher // set once by Listen; nil without KV events
}

// newRank makes the local rank with the given index.
func newRank(cfg Config, index int, onDeath func()) (*rank, error) {
	r := &rank{number: uint32(cfg.DataParallelStartRank + index)}
	if cfg.DataParallelSize > 1 {
		cfg.EngineID += "_dp" + strconv.Itoa(index) // so that hand-offs tell the ranks of one engine apart
	}
	if cfg.HashSeed == 0 {
		cfg.HashSeed = randomUint64()
	}
	r.cfg = cfg
	engine, err := core.New(cfg.core())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	r.loop = newLoop(engine, cfg.StepTime, onDeath)
	return r, nil
}

// reachedAt says where other engines find this rank's side channel.
func (r *rank) reachedAt(addr net.Addr) address {
	a := address{host: r.cfg.SideChannelHost}
	if r.cfg.SideChannelPort > 0 {
		a.port = r.cfg.SideChannelPort + int(r.number)
	}
	if tcp, ok := addr.(*net.TCPAddr); ok {
		setDefault(&a.port, tcp.Port)
		if tcp.IP.IsUnspecified() {
			setDefault(&a.host, "127.0.0.1")
		}
		setDefault(&a.host, tcp.IP.String())
	}
	return a
}

// place gives a request to the rank that it names or, when it names none, to the one with the fewest requests that have not
// ended; of several, to the first. The caller takes the request off its count at its end.
func (s *Server) place(wanted *uint32) (*rank, error) {
	if wanted != nil {
		if *wanted < s.ranks[0].number || *wanted-s.ranks[0].number >= uint32(len(s.ranks)) {
			return nil, invalid("engine-core error: data parallel rank %d is not connected to this frontend; connected ranks: %s", *wanted, s.connected())
		}
		r := s.ranks[*wanted-s.ranks[0].number]
		r.live.Add(1)
		return r, nil
	}
	s.placing.Lock()
	defer s.placing.Unlock()
	least := s.ranks[0]
	for _, r := range s.ranks[1:] {
		if r.live.Load() < least.live.Load() {
			least = r
		}
	}
	least.live.Add(1)
	return least, nil
}

// connected lists the local ranks as the real front end does.
func (s *Server) connected() string {
	numbers := make([]string, len(s.ranks))
	for i, r := range s.ranks {
		numbers[i] = strconv.FormatUint(uint64(r.number), 10)
	}
	return "[" + strings.Join(numbers, ", ") + "]"
}

// RankStats describes the local ranks, lowest first, as they were after their last step or call.
func (s *Server) RankStats() []core.Stats {
	all := make([]core.Stats, len(s.ranks))
	for i, r := range s.ranks {
		all[i] = r.loop.snapshot()
	}
	return all
}

// Stats describes the first local rank: all there is without data parallelism.
func (s *Server) Stats() core.Stats { return s.ranks[0].loop.snapshot() }

// EngineID is the name of the first local rank in hand-offs.
func (s *Server) EngineID() string { return s.ranks[0].cfg.EngineID }

// dead says whether the engine has died. One rank that dies takes the others with it.
func (s *Server) dead() bool {
	for _, r := range s.ranks {
		if r.loop.snapshot().Dead {
			return true
		}
	}
	return false
}
