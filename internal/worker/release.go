package worker

import (
	"log/slog"
	"time"

	"remora/internal/vllm"
	pb "remora/proto/vllm"
)

// release has the engine fetch a hand-off that its request will not use, so that the prefill engine frees the blocks now and
// not at the end of their lease (M10): a request under an id of its own, with a prompt of one token, that ends by itself. It
// reads one block, which is never hashed, so the engine's prefix cache stays clean (measured on 0.32.0). Its output is ignored.
//
// A hand-off that has become too old by now may name blocks that are somebody else's: it is left to its lease. Called with the
// request's mu held.
func (s *service) release(r *request) {
	if !s.releases || r.claim == nil {
		return
	}
	log := r.log
	if s.handoffs.stale(r.claim, r.sent, time.Since(r.started)) {
		s.metrics.HandoffReleased(false)
		log.Warn("hand-off of a refused request is too old to be released; its blocks wait for the lease")
		return
	}
	id := r.engineID + "-release-" + suffix()
	out := &releasing{id: id, log: log, done: make(chan vllm.Status, 1)}
	stream := s.engine.Open(&pb.GenerateRequest{
		RequestId: id, Model: s.translate.ServedName,
		Prompt:   &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: []uint32{0}}},
		Stopping: &pb.StoppingCriteria{MaxNewTokens: 1},
		Kv:       &pb.KVCacheParameters{KvTransferParams: r.claim.params},
	}, r.rank(), out)
	s.releasing.Add(1)
	s.background.Go(func() {
		defer s.releasing.Add(-1)
		limit := time.NewTimer(s.machine.DrainDeadline)
		defer limit.Stop()
		select {
		case status := <-out.done:
			s.metrics.HandoffReleased(status == vllm.Status{})
			if status != (vllm.Status{}) {
				log.Warn("hand-off of a refused request can't be released; its blocks wait for the lease", "status", status.String())
			}
			return
		case <-limit.C:
		case <-s.ctx.Done():
		}
		s.metrics.HandoffReleased(false)
		log.Warn("hand-off of a refused request was not released in time; its blocks may wait for the lease", "engine_id", id)
		stream.Drop()
		<-out.done
	})
}

// releasing is the sink of a release: nothing of it is anybody's answer.
type releasing struct {
	id   string
	log  *slog.Logger
	done chan vllm.Status // room for the one status
}

// OnHeaders implements vllm.Sink.
func (*releasing) OnHeaders(bool) {}

// OnMessages implements vllm.Sink.
func (*releasing) OnMessages([]*pb.GenerateResponse, bool) {}

// OnEnd implements vllm.Sink.
func (r *releasing) OnEnd(status vllm.Status) { r.done <- status }
