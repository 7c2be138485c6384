package vllm

import (
	"context"

	pb "remora/proto/vllm"
)

// Abort ends every live request of the engine that bears one of the ids. Their streams end with ABORTED. Unknown ids are
// ignored by the engine, also when their request is only on its way: abort a request after its headers. The call is bounded
// by the context and by Config.AbortTimeout.
func (c *Client) Abort(ctx context.Context, ids ...string) error {
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.AbortTimeout)
	defer cancel()
	_, err := pb.NewControlClient(c.aside()).Abort(ctx, &pb.AbortRequest{RequestIds: ids})
	return statusOf("Abort", err).Err()
}
