package sim

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"remora/internal/sim/core"
	pb "remora/proto/vllm"
)

// PauseGeneration stops the engine from starting requests; they are taken in and stay silent. Those that run, and those whose KV
// is being fetched, are aborted (ABORT and no mode), waited for (WAIT) or kept (KEEP). It waits for the leases of held hand-offs
// and for transfers whose request has ended. Unless told otherwise it then forgets the prefix cache; with KEEP it takes the blocks
// of those that run, which compute them anew afterwards.
func (c *control) PauseGeneration(ctx context.Context, req *pb.PauseGenerationRequest) (*pb.PauseGenerationResponse, error) {
	level := core.PauseNew
	switch req.GetMode() {
	case pb.PauseMode_PAUSE_MODE_UNSPECIFIED, pb.PauseMode_PAUSE_MODE_ABORT, pb.PauseMode_PAUSE_MODE_WAIT:
	case pb.PauseMode_PAUSE_MODE_KEEP:
		level = core.PauseAll
	default:
		return nil, invalid("unknown pause mode %d", req.GetMode())
	}
	err := c.utility(ctx, "pause_scheduler", func(l *loop) {
		l.engine.SetPause(level)
		if mode := req.GetMode(); mode == pb.PauseMode_PAUSE_MODE_UNSPECIFIED || mode == pb.PauseMode_PAUSE_MODE_ABORT {
			for id := range l.streams {
				l.engine.Cancel(id, core.Aborted)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	if err := c.drained(ctx, level); err != nil {
		return nil, err
	}
	if req.ClearCache == nil || req.GetClearCache() {
		err := c.utility(ctx, "reset_prefix_cache", func(l *loop) {
			if !l.engine.ClearCache(level == core.PauseAll) {
				c.s.cfg.Log.Warn("the prefix cache is not cleared: some blocks are in use")
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return &pb.PauseGenerationResponse{}, nil
}

// drained returns when no block is in use any more or, where running requests are kept, none of a request that has ended.
func (c *control) drained(ctx context.Context, level core.Pause) error {
	tick := time.NewTicker(c.s.cfg.StepTime)
	defer tick.Stop()
	for {
		if !slices.ContainsFunc(c.s.RankStats(), func(st core.Stats) bool {
			return !st.Dead && (st.Held+st.RecvPending > 0 || level == core.PauseNew && st.UsedBlocks > 0)
		}) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-c.s.stopping:
			return errStopping()
		}
	}
}

// ResumeGeneration ends a pause.
func (c *control) ResumeGeneration(ctx context.Context, _ *pb.ResumeGenerationRequest) (*pb.ResumeGenerationResponse, error) {
	err := c.utility(ctx, "resume_scheduler", func(l *loop) { l.engine.SetPause(core.PauseNone) })
	return &pb.ResumeGenerationResponse{}, err
}

// IsPaused says whether a pause is on.
func (c *control) IsPaused(ctx context.Context, _ *pb.IsPausedRequest) (*pb.IsPausedResponse, error) {
	paused := false
	err := c.utility(ctx, "is_scheduler_paused", func(l *loop) { paused = l.engine.Paused() != core.PauseNone })
	return &pb.IsPausedResponse{Paused: paused}, err
}

// utility runs f on the engine core of each rank, one after the other, as calls that only the engine cores can answer do: a
// dead one answers none.
func (c *control) utility(ctx context.Context, name string, f func(*loop)) error {
	for _, r := range c.s.ranks {
		dead := false
		err := r.loop.call(ctx, func() {
			if dead = r.loop.engine.Dead(); !dead {
				f(r.loop)
			}
		})
		switch {
		case dead:
			return status.Errorf(codes.Internal, "%s failed: engine-core error: engine core reported fatal failure", name)
		case err != nil && ctx.Err() != nil:
			return status.FromContextError(ctx.Err()).Err()
		case err != nil:
			return errStopping()
		}
	}
	return nil
}
