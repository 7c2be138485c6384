package kvevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"remora/internal/sleep"
	"remora/internal/zmq"
)

// Source is where the events of one data parallel rank come from.
type Source struct {
	// Rank is the data parallel rank.
	Rank uint32
	// Endpoint is the engine's PUB socket, Topic the prefix of the topics that are wanted.
	Endpoint zmq.Endpoint
	Topic    string
	// Replay is the engine's ROUTER socket for what has been published before; the zero Endpoint if it has none.
	Replay zmq.Endpoint
}

// Consumer takes the events of one rank, one call after the other. A call may block: then the engine is held back, and what it
// drops is asked for later.
type Consumer interface {
	// Batch brings the next batch. It follows the one before without a hole, unless a Gap or a Reset came between. It is good
	// until the call returns.
	Batch(b *Batch)
	// Reset voids everything that is known: the engine has been started anew, or it cannot be told whether it has.
	Reset(why string)
	// Gap tells that this many batches have been lost for good. What is known is as good as without them. The first call of
	// all may be a Gap: what the engine had published before and does not remember.
	Gap(lost uint64, why string)
}

const (
	// silence is how long the first message of a replay answer may take, connecting included. Engines look for requests
	// between two batches and every 0.1 s.
	silence = 5 * time.Second
	// between is how long the next one may take.
	between = time.Second
	// quiet is how many attempts to connect are made until it is said once more that they fail; that is after half a minute.
	quiet = 40
)

// messageLimits bound what an engine may send at once: a batch that stores ten million tokens has 30 MiB.
var messageLimits = zmq.Limits{Bytes: 32 << 20, Frames: 4} //nolint:gochecknoglobals // a constant that Go cannot spell

// Reader reads one rank's events and repairs what a PUB socket loses.
type Reader struct {
	source   Source
	consumer Consumer
	log      *slog.Logger
	stats    stats

	// Set before Run, by tests alone.
	dialEvents, dialReplay func(ctx context.Context) (net.Conn, error)

	mu      sync.Mutex // guards all below, and serialises the calls of consumer
	machine machine
	decoder Decoder
	latest  question // the one that counts; the zero question: none

	wake chan struct{} // one element when latest has changed
}

// question is a request for a replay.
type question struct {
	ctx    context.Context // ends when it has become pointless
	cancel context.CancelFunc
	number uint64
	from   uint64
	pause  time.Duration
}

func newQuestion(ctx context.Context, a action) question {
	ctx, cancel := context.WithCancel(ctx)
	return question{ctx: ctx, cancel: cancel, number: a.ask, from: a.from, pause: a.pause}
}

// NewReader returns a reader that has not started. A nil log is silent.
func NewReader(source Source, consumer Consumer, log *slog.Logger) *Reader {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	r := &Reader{
		source: source, consumer: consumer, log: log.With("dp_rank", source.Rank),
		machine: machine{replay: source.Replay != zmq.Endpoint{}},
		wake:    make(chan struct{}, 1),
	}
	return r
}

// Run reads until the context ends, which is nil, or fails at once because the endpoint is none to connect to. It has one
// goroutine beside the caller's, for replays, and waits for it. A Reader runs once.
func (r *Reader) Run(ctx context.Context) error {
	var replays sync.WaitGroup
	inner, cancel := context.WithCancel(ctx)
	replays.Go(func() { r.replays(inner) })
	sub := zmq.Sub{Endpoint: r.source.Endpoint, Topic: r.source.Topic, Limits: messageLimits, Dial: r.dialEvents}
	err := sub.Run(ctx, &subscription{r: r, ctx: ctx})
	cancel()
	replays.Wait()
	if errors.Is(err, zmq.ErrEndpoint) {
		return err
	}
	return nil
}

// subscription is the Reader as its live connection sees it.
type subscription struct {
	r        *Reader
	ctx      context.Context // of Run
	failures int             // since the last connection
}

func (s *subscription) Connected() {
	s.r.stats.connections.Add(1)
	s.failures = 0
	s.r.log.Info("connected to the engine's KV events", "endpoint", s.r.source.Endpoint)
	s.r.step(s.ctx, func(m *machine) []action { return m.connected() })
}

func (s *subscription) Disconnected(err error) {
	level := slog.LevelDebug
	if s.failures++; s.failures == 1 || s.failures == quiet {
		level = slog.LevelWarn // at once, and when it lasts
	}
	s.r.log.Log(s.ctx, level, "no connection to the engine's KV events; trying again", "endpoint", s.r.source.Endpoint, "error", err)
	s.r.step(s.ctx, func(m *machine) []action { return m.disconnected() })
}

func (s *subscription) Message(frames [][]byte) {
	m, err := parseLive(frames)
	if err != nil {
		s.r.malformed(err)
		return
	}
	s.r.step(s.ctx, func(machine *machine) []action { return machine.live(m) })
}

func (r *Reader) malformed(err error) {
	if r.stats.malformed.Add(1) == 1 {
		r.log.Warn("passing over a KV event message that is none; further ones are only counted", "error", err)
	}
}

// step puts an input into the machine and does what it says. ctx is that of Run.
func (r *Reader) step(ctx context.Context, input func(m *machine) []action) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	for _, a := range input(&r.machine) {
		switch a.kind {
		case deliver:
			r.deliver(a.message)
		case gap:
			r.gap(a.lost, a.why)
		case reset:
			r.stats.resets.Add(1)
			r.log.Warn("the engine's KV events begin anew", "reason", a.why)
			r.consumer.Reset(a.why)
		case ask:
			r.put(newQuestion(ctx, a))
		case hush:
			r.put(question{})
		}
	}
}

// put replaces the question; mu is held.
func (r *Reader) put(q question) {
	if r.latest.cancel != nil {
		r.latest.cancel()
	}
	r.latest = q
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Reader) deliver(m message) {
	batch, err := r.decoder.Decode(m.seq, m.payload)
	if err != nil {
		r.stats.undecodable.Add(1)
		r.gap(1, err.Error())
		return
	}
	r.stats.batches.Add(1)
	r.stats.events.Add(uint64(len(batch.Events)))
	if batch.Skipped > 0 && r.stats.skipped.Add(uint64(batch.Skipped)) == uint64(batch.Skipped) {
		r.log.Warn("passing over a KV event that is not understood; further ones are only counted", "reason", batch.SkippedWhy)
	}
	r.consumer.Batch(&batch)
}

func (r *Reader) gap(lost uint64, why string) {
	r.stats.gaps.Add(1)
	r.stats.lost.Add(lost)
	r.log.Warn("KV event batches are lost", "batches", lost, "reason", why)
	r.consumer.Gap(lost, why)
}

// replays asks the machine's questions until the context ends.
func (r *Reader) replays(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			r.mu.Lock()
			r.put(question{})
			r.mu.Unlock()
			return
		case <-r.wake:
		}
		r.mu.Lock()
		q := r.latest
		r.mu.Unlock()
		if q.ctx == nil || !sleep.For(q.ctx, q.pause) {
			continue
		}
		r.stats.replays.Add(1)
		err := r.ask(ctx, q)
		if q.ctx.Err() != nil {
			continue // nobody wants to know any more
		}
		if err != nil {
			r.log.Warn("a replay of KV events failed", "endpoint", r.source.Replay, "error", err)
		}
		r.step(ctx, func(m *machine) []action { return m.answered(q.number, err) })
	}
}

// ask sends one request and hands on its answer up to the end marker. A silence that is too long ends it, too: an end marker
// may be lost.
func (r *Reader) ask(run context.Context, q question) error {
	start, cancel := context.WithTimeout(q.ctx, silence)
	defer cancel()
	conn, err := r.dial(start)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err = conn.Send(start, replayRequest(q.from)...); err != nil {
		return err
	}
	for within := silence; ; within = between {
		m, end, err := receive(q.ctx, conn, within)
		switch {
		case errors.Is(err, ErrMessage):
			r.malformed(err)
			return err
		case err != nil:
			return err
		case end:
			return nil
		}
		r.stats.replayed.Add(1)
		r.step(run, func(machine *machine) []action { return machine.replayed(q.number, m) })
	}
}

func (r *Reader) dial(ctx context.Context) (*zmq.Conn, error) {
	if r.dialReplay == nil {
		return zmq.DialDealer(ctx, r.source.Replay, messageLimits)
	}
	raw, err := r.dialReplay(ctx)
	if err != nil {
		return nil, err
	}
	return zmq.NewDealer(ctx, raw, messageLimits)
}

func receive(ctx context.Context, conn *zmq.Conn, within time.Duration) (m message, end bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	frames, err := conn.Receive(ctx)
	if err != nil {
		return message{}, false, fmt.Errorf("the answer has no end: %w", err)
	}
	return parseReplayed(frames)
}
