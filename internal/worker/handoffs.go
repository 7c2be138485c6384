package worker

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"remora/internal/dynamo/protocol"
	"remora/internal/translate"
)

// handoffs decides whether a hand-off may still be used, and writes into those of a prefill worker what a decode worker needs
// to decide it.
type handoffs struct {
	lease     time.Duration // of the prefill engine's blocks; set once
	blockSize uint32        // set once
	check     bool          // set once

	mu sync.Mutex
	// used has the hand-offs that were used, by translate.Call.HandoffKey, with until when a second use must be refused. It holds
	// as many as come within the longest lease. order has its keys, oldest first. Both guarded by mu.
	used  map[string]time.Time
	order []string
}

// longestLease bounds how long a stamp can have its hand-off remembered.
const longestLease = time.Hour

func newHandoffs(lease time.Duration, blockSize uint32, check translate.HandoffCheck) *handoffs {
	return &handoffs{lease: lease, blockSize: blockSize, check: check != translate.HandoffOff, used: make(map[string]time.Time)}
}

// stamp adds a stamp to the hand-off of a finished prefill whose frame was sent at sent (the frontend's clock, nanoseconds) and
// came in since ago. Without that time nobody can tell an age; the stamp says so, and what it was made for all the same.
func (h *handoffs) stamp(out *protocol.EngineOutput, prompt translate.Prompt, sent int64, since time.Duration) {
	finished := int64(0)
	if sent > 0 {
		finished = sent + since.Nanoseconds()
	}
	out.DisaggregatedParams = translate.Stamp{
		Finished: finished, Lease: h.lease, BlockSize: h.blockSize, Prompt: prompt,
	}.Add(out.DisaggregatedParams)
}

// claim is a decode's well-formed hand-off.
type claim struct {
	params *structpb.Struct
	stamp  translate.Stamp
	key    string // names the hand-off among all; empty: it has no name
}

// admit refuses a hand-off that is too old or was used before, and notes the use. unchecked: its age can't be told.
func (h *handoffs) admit(c *claim, sent int64, since time.Duration) (refusal *translate.Refusal, unchecked bool) {
	if !h.check {
		return nil, false
	}
	age, known := c.stamp.Age(sent, since)
	if known && c.stamp.Stale(age) {
		return translate.Stale(age), false
	}
	if !h.use(c.key, c.stamp.Lease, time.Now()) {
		return translate.Reused(), !known
	}
	return nil, !known
}

// stale tells whether a hand-off has become too old since it was admitted.
func (h *handoffs) stale(c *claim, sent int64, since time.Duration) bool {
	age, known := c.stamp.Age(sent, since)
	return h.check && known && c.stamp.Stale(age)
}

// use notes the use of a hand-off; false: it was used before, within its lease: the one that its stamp tells, where that is
// longer than the one configured here. One without a name can't be told from others.
func (h *handoffs) use(key string, lease time.Duration, now time.Time) bool {
	if key == "" {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.order) > 0 && !now.Before(h.used[h.order[0]]) {
		delete(h.used, h.order[0])
		h.order = h.order[1:]
	}
	if until, again := h.used[key]; again {
		if now.Before(until) {
			return false
		}
		h.order = slices.DeleteFunc(h.order, func(k string) bool { return k == key }) // behind one that stays longer: rare
	}
	h.used[key] = now.Add(max(h.lease, min(lease, longestLease)))
	h.order = append(h.order, key)
	return true
}
