package load

// histogram counts times in microseconds, each by itself up to its length; later ones fall into the last place.
type histogram struct {
	counts []uint32
	total  int64
}

const histogramSize = 1 << 20 // a second

func newHistogram() *histogram { return &histogram{counts: make([]uint32, histogramSize)} }

func (h *histogram) add(us int64) {
	h.counts[min(max(us, 0), histogramSize-1)]++
	h.total++
}

// Latency is what a histogram comes down to, in microseconds.
type Latency struct {
	Count int64 `json:"count"`
	P50   int64 `json:"p50"`
	P99   int64 `json:"p99"`
	Max   int64 `json:"max"`
}

func (h *histogram) latency() Latency {
	return Latency{h.total, h.quantile(0.5), h.quantile(0.99), h.quantile(1)}
}

func (h *histogram) quantile(q float64) int64 {
	rank := int64(q * float64(h.total))
	rank = max(rank, 1)
	for us, n := range h.counts {
		if rank -= int64(n); rank <= 0 {
			return int64(us)
		}
	}
	return 0
}
