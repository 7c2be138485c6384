package eventplane

import (
	"sync"
	"time"

	"github.com/tinylib/msgp/msgp"
)

// LoadConfig says whose load a LoadPublisher speaks of, and where it speaks. PublisherID, Socket and Now are as in Config.
type LoadConfig struct {
	WorkerID    uint64
	PublisherID uint64
	Socket      Socket
	Now         func() time.Time
}

// LoadPublisher tells frontends how full the caches of a worker's ranks are. Frontends that were given a threshold send nothing
// to a worker all of whose ranks are above it. They believe the last message for ever, so the last one of a worker that goes
// must say 0. Its methods may be called from any goroutine.
type LoadPublisher struct {
	worker uint64

	mu      sync.Mutex
	sender  sender // guarded by mu
	payload []byte // reused; guarded by mu
}

// NewLoadPublisher returns a publisher that has said nothing yet.
func NewLoadPublisher(cfg LoadConfig) *LoadPublisher {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &LoadPublisher{
		worker: cfg.WorkerID,
		sender: sender{socket: cfg.Socket, topic: []byte(TopicMetrics), publisher: cfg.PublisherID, now: cfg.Now},
	}
}

// Publish says how many blocks of a rank's cache are in use. It does not wait for anybody.
func (p *LoadPublisher) Publish(rank uint32, usedBlocks uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.payload = appendLoad(p.payload[:0], source{p.worker, rank}, usedBlocks)
	p.sender.send(p.payload)
}

// appendLoad appends one rank's load. The two numbers that are left out are the frontend's own business in kv mode, and it takes
// the worst of all.
func appendLoad(dst []byte, s source, usedBlocks uint64) []byte {
	dst = msgp.AppendMapHeader(dst, 5)
	dst = msgp.AppendUint64(msgp.AppendString(dst, "worker_id"), s.worker)
	dst = msgp.AppendUint32(msgp.AppendString(dst, "dp_rank"), s.rank)
	dst = msgp.AppendNil(msgp.AppendString(dst, "active_decode_blocks"))
	dst = msgp.AppendNil(msgp.AppendString(dst, "active_prefill_tokens"))
	return msgp.AppendUint64(msgp.AppendString(dst, "kv_used_blocks"), usedBlocks)
}
