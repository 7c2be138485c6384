package core

// Stats is a picture of an engine at one moment.
type Stats struct {
	Counters

	Running     int
	Waiting     int // all that are queued
	Deferred    int // of these, those whose KV is being fetched
	RecvPending int // ended, but a transfer still writes into their blocks
	Held        int // finished prefills whose blocks wait for a reader
	UsedBlocks  int
	TotalBlocks int // without the null block
	Dead        bool
}

// Usage is the share of blocks that are not free, 0 to 1; held ones count.
func (s Stats) Usage() float64 { return float64(s.UsedBlocks) / float64(s.TotalBlocks) }

// Counters only ever grow.
type Counters struct {
	Steps            int
	Finished         [Fatal + 1]int // by Reason
	PromptTokens     int
	GeneratedTokens  int
	Preemptions      int
	CacheQueries     int // prompt tokens looked up in the prefix cache
	CacheHits        int // of these, found
	ExternalQueries  int // prompt tokens asked of another engine
	ExternalHits     int // of these, received
	Reads            int // transfers started here
	ReadsDone        int
	ReadsFailed      int
	ServedReads      int // reads of blocks here
	StaleReads       int // of these, for a request that holds nothing here
	HandOffs         int // hand-offs given out
	Completed        int // holds ended by their reader
	Expired          int // holds ended by their lease
	Beats            int // heartbeats that renewed a lease here
	UnknownNotices   int // completions for a request that holds nothing here
	NotifyOnly       int // completions sent without a read
	ReceivedAfterEnd int // transfers that ended after their request
}

// Stats describes the engine as it is now.
func (e *Engine) Stats() Stats {
	s := Stats{
		Running:     len(e.running),
		Waiting:     len(e.queue),
		Held:        len(e.holds),
		UsedBlocks:  e.pool.used(),
		TotalBlocks: e.cfg.Blocks - 1,
		Dead:        e.dead,
		Counters:    e.counts,
	}
	for _, q := range e.queue {
		if q.state == remoteWait {
			s.Deferred++
		}
	}
	s.RecvPending = len(e.seqs) - len(e.queue) - len(e.running)
	return s
}
