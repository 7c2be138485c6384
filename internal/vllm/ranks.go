package vllm

import "fmt"

// maxRanks bounds what a server may claim, because some things are kept for each rank.
const maxRanks = 1 << 16

// LocalRanks are the data-parallel ranks that are reached through this engine's server: Start up to Start+Count-1 of Global.
type LocalRanks struct{ Start, Count, Global uint32 }

// Contains reports whether an absolute rank is local.
func (r LocalRanks) Contains(rank uint32) bool { return rank >= r.Start && rank-r.Start < r.Count }

// String is "ranks 4-7 of 8".
func (r LocalRanks) String() string {
	if r.Count <= 1 {
		return fmt.Sprintf("rank %d of %d", r.Start, r.Global)
	}
	return fmt.Sprintf("ranks %d-%d of %d", r.Start, r.Start+r.Count-1, r.Global)
}

// localRanks reads the range out of the parallelism message. Engines older than data_parallel_size_local leave it 0: then
// all ranks are taken to be local, which is only possible when the first one is.
func localRanks(p *Parallelism) (LocalRanks, string, error) {
	if p == nil {
		return LocalRanks{Start: 0, Count: 1, Global: 1}, "", nil
	}
	global, start, local := p.Data, p.DataRank, p.DataLocal
	switch {
	case global == 0:
		return LocalRanks{}, "", protocol("GetServerInfo: data_parallel_size is 0")
	case global > maxRanks:
		return LocalRanks{}, "", protocol("GetServerInfo: data_parallel_size %d is beyond all reason", global)
	case local == 0 && start > 0:
		return LocalRanks{}, "", protocol("GetServerInfo: data_parallel_rank is %d, but data_parallel_size_local is not told", start)
	case local == 0:
		note := ""
		if global > 1 {
			note = fmt.Sprintf("the engine does not tell how many of its %d data-parallel ranks are local; all are taken to be", global)
		}
		return LocalRanks{Start: 0, Count: global, Global: global}, note, nil
	case uint64(start)+uint64(local) > uint64(global):
		return LocalRanks{}, "", protocol("GetServerInfo: local data-parallel ranks %d to %d do not fit in %d",
			start, uint64(start)+uint64(local)-1, global)
	default:
		return LocalRanks{Start: start, Count: local, Global: global}, "", nil
	}
}
