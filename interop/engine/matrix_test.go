package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"remora/internal/sim/calibration"
	"remora/interop/harness"
)

// Bounds of the matrix. released is well below the lease: what is free within it was released, not expired.
const (
	released = calibration.Lease - 4*time.Second
	expired  = calibration.Lease + 4*time.Second
)

// waiting is the metric of requests that an engine has not started, those included whose KV it fetches.
const waiting = "vllm:num_requests_waiting"

// matrix is a stock frontend over two sidecars in front of a small pair, and the clients that leave.
type matrix struct {
	t               *testing.T // of the subtest that runs
	whole           *testing.T // of all of them: what it starts outlives subtests
	cluster         *harness.Cluster
	frontend        *harness.Frontend
	p, d            *smallEngine
	prefill, decode *harness.Sidecar
	seq             int
	cancels         []string      // how many at which moment, in words
	slowest         time.Duration // from the moment at which everything could go on to the last block
}

func newMatrix(t *testing.T, p, d *smallEngine) *matrix {
	t.Helper()
	m := &matrix{t: t, whole: t, cluster: harness.NewCluster(t), p: p, d: d}
	lease := strconv.Itoa(int(calibration.Lease / time.Second))
	m.prefill = m.cluster.Sidecar(t, harness.Remora, harness.Prefill, p, "--kv-lease", lease)
	m.decode = m.cluster.Sidecar(t, harness.Remora, harness.Decode, d, "--kv-lease", lease)
	m.newFrontend()
	return m
}

func (m *matrix) newFrontend() {
	m.frontend = m.cluster.Frontend(m.whole)
	m.frontend.WaitServing(m.t, harness.RealModel)
}

// request has a prompt of its own, of many blocks, so that nothing of it is cached.
func (m *matrix) request(tokens int) harness.Request {
	m.seq++
	return harness.Request{Model: harness.RealModel, Prompt: fmt.Sprintf("%d: %s", m.seq, text[:600]), MaxTokens: tokens, Stream: true}
}

// leaver is a client under way that can be told to go.
type leaver struct {
	gone chan struct{}
	over chan struct{}
	once sync.Once
}

// send starts a streamed request. Its goroutine ends when leave was called or the answer is there.
func (m *matrix) send(r harness.Request) *leaver {
	l := &leaver{gone: make(chan struct{}), over: make(chan struct{})}
	t, f := m.t, m.frontend
	go func() {
		defer close(l.over)
		if err := f.Abandon(t, r, l.gone); err != nil {
			t.Logf("nobody left: %v", err)
		}
	}()
	m.t.Cleanup(l.leave)
	return l
}

func (l *leaver) leave() {
	l.once.Do(func() { close(l.gone) })
	<-l.over
}

// until polls for a metric's value.
func (m *matrix) until(c *harness.Client, name string, want float64) {
	m.t.Helper()
	harness.Poll(m.t, fmt.Sprintf("%s to be %v", name, want), 30*time.Second, func() error {
		if got := c.Metrics(m.t)[name]; got != want {
			return fmt.Errorf("it is %v", got)
		}
		return nil
	})
}

func (m *matrix) inflight(s *harness.Sidecar, n int) {
	m.t.Helper()
	m.until(s.Status, harness.Inflight, float64(n))
}

// fill keeps an engine's batch full until the returned function is called.
func (m *matrix) fill(e *smallEngine) (empty func()) {
	m.t.Helper()
	var streams []*harness.Stream
	for range calibration.MaxSeqs {
		m.seq++
		s := e.Open(m.t, harness.Request{Model: harness.RealModel, Prompt: fmt.Sprintf("full %d", m.seq), MaxTokens: 450})
		s.ReadChunks(m.t, 1)
		streams = append(streams, s)
	}
	return func() {
		for _, s := range streams {
			s.Close()
		}
	}
}

// settle waits until both engines are at their base and the sidecars have nothing left, and says how long it took.
func (m *matrix) settle(within time.Duration) {
	m.t.Helper()
	begin := time.Now()
	harness.Poll(m.t, "everything to be given back", within, func() error {
		for _, e := range []*smallEngine{m.p, m.d} {
			if n := e.Metrics(m.t)[harness.KVUsage]; n != 0 {
				return fmt.Errorf("%s: share of blocks in use %v", e.name, n)
			}
		}
		for _, s := range []*harness.Sidecar{m.prefill, m.decode} {
			if n := s.Status.Metrics(m.t)[harness.Inflight]; n != 0 {
				return fmt.Errorf("%s: %s = %v", s.Name, harness.Inflight, n)
			}
		}
		return nil
	})
	m.slowest = max(m.slowest, time.Since(begin))
}

// goesOn checks that the engines live and that the next text is what the prefill engine says alone.
func (m *matrix) goesOn() {
	m.t.Helper()
	for _, e := range []*smallEngine{m.p, m.d} {
		if _, err := e.Get(m.t.Context(), "/health"); err != nil {
			m.t.Errorf("%s: %v", e.name, err)
		}
	}
	m.frontend.WaitServing(m.t, harness.RealModel) // an engine that stood still for long is out of routing for a moment
	r := m.request(20)
	r.Stream = false
	through, alone := m.frontend.Ask(m.t, r), m.p.Ask(m.t, r)
	if through.Status != 200 || through.Text == "" || through.Text != alone.Text {
		m.t.Errorf("through the pair %d %q\nalone %q", through.Status, through.Text, alone.Text)
	}
}

// testKills lets clients go at each moment: the frontend kills their requests, those in the prefill leg as soon as they are in
// the other one. Nothing goes on before the worker knows.
func (m *matrix) testKills() {
	for _, mo := range moments() {
		m.on(mo.name, func() {
			for range mo.rounds {
				mo.run(m, 1, func(all []*leaver) {
					holder := mo.holder(m)
					cancels := holder.Status.Metrics(m.t)[harness.Cancels]
					for _, l := range all {
						l.leave()
					}
					if holder == m.decode {
						holder.WaitCancels(m.t, cancels+float64(len(all)))
					}
				})
				m.settle(released)
			}
			m.goesOn()
		})
		m.cancelled(mo.rounds, mo.name)
	}
	const ends, tokens = 3, 20
	m.on("around the last token", func() {
		for read := tokens - ends + 1; read <= tokens; read++ {
			r := m.request(tokens)
			s := m.frontend.Open(m.t, r)
			s.ReadChunks(m.t, min(read, tokens-1))
			if read == tokens {
				s.ReadAll(m.t)
			}
			s.Close()
			m.settle(released)
		}
		m.goesOn()
	})
	m.cancelled(ends, "around the last token")
	const random = 15
	m.on("at a random moment", func() {
		for range random {
			l := m.send(m.request(20))
			pause(m.t, time.Duration(rand.IntN(250))*time.Millisecond)
			l.leave()
			// The frontend may have gone between prefill and decode, or before the first sidecar: then nobody can release P.
			m.settle(expired)
		}
		m.goesOn()
	})
	m.cancelled(random, "at a random moment")
}

// testResets kills the frontend itself at those moments, with several requests each: every connection is reset.
func (m *matrix) testResets() {
	const requests = 3
	for _, mo := range moments() {
		m.on(mo.name, func() {
			mo.run(m, requests, func(all []*leaver) {
				holder := mo.holder(m)
				cancels := holder.Status.Metrics(m.t)[harness.Cancels]
				m.frontend.Signal(syscall.SIGKILL)
				<-m.frontend.Done()
				for _, l := range all {
					l.leave()
				}
				holder.WaitCancels(m.t, cancels+float64(len(all)))
			})
			m.settle(released)
			m.newFrontend()
			m.goesOn()
		})
		m.cancelled(requests, mo.name)
	}
}

// on runs a part as a subtest.
func (m *matrix) on(name string, f func()) {
	outer := m.t
	defer func() { m.t = outer }()
	outer.Run(name, func(t *testing.T) {
		m.t = t
		f()
	})
}

// testCrowd keeps 16 clients busy for two minutes. Some leave at random moments; the others get the right text.
func (m *matrix) testCrowd(length time.Duration) {
	const clients, prompts = 16, 12
	known := make([]harness.Request, prompts)
	want := make([]string, prompts)
	for i := range known {
		known[i] = m.request(5 + i*3)
		known[i].Stream = false
		want[i] = m.p.Ask(m.t, known[i]).Text
	}
	m.settle(released)
	ctx, cancel := context.WithTimeout(m.t.Context(), length)
	defer cancel()
	var mu sync.Mutex
	counts := map[string]int{} // guarded by mu
	count := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		counts[what]++
	}
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				i := rand.IntN(prompts)
				r := known[i]
				if leaves := rand.IntN(2) == 0; leaves {
					r.Prompt = fmt.Sprintf("%d/%d: %s", c, n, text[:rand.IntN(600)])
					gone := make(chan struct{})
					timer := time.AfterFunc(time.Duration(rand.IntN(1500))*time.Millisecond, func() { close(gone) })
					err := m.frontend.Abandon(m.t, r, gone)
					timer.Stop()
					if err == nil {
						count("left")
					}
					continue
				}
				a, err := m.frontend.TryAsk(m.t.Context(), r)
				switch {
				case err != nil:
					m.t.Errorf("request %d: %v", i, err)
					count("failed")
					return
				case a.Status != 200:
					m.t.Errorf("request %d: %d %s", i, a.Status, a.Body)
					count("failed")
				case a.Text != want[i]:
					m.t.Errorf("request %d says %q, want %q", i, a.Text, want[i])
					count("wrong")
				default:
					count("right")
				}
			}
		})
	}
	wg.Wait()
	m.slowest = 0
	m.settle(expired)
	m.goesOn()
	m.cancelled(counts["left"], fmt.Sprintf("of %d clients in %v, at random moments; %d other answers right, %d wrong, %d failed",
		clients, length, counts["right"], counts["wrong"], counts["failed"]))
	if counts["right"] < 25 || counts["left"] < 25 { // of what a machine that has other work, too, still made
		m.t.Errorf("too few for a crowd: %v", counts)
	}
}
