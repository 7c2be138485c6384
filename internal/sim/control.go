package sim

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "remora/proto/vllm"
)

// control is the service vllm.Control. What a real engine refuses when it was started without LoRA, weight transfer and sleep
// mode is refused with its code. Pausing is in pause.go.
type control struct {
	pb.UnimplementedControlServer

	s *Server
}

// GetServerInfo describes the engine: of the local ranks the first and how many, of blocks the sum over them, of everything
// else what one of them has. It answers for a dead one too.
func (c *control) GetServerInfo(context.Context, *pb.GetServerInfoRequest) (*pb.ServerInfo, error) {
	cfg := c.s.cfg
	blockSize := uint64(cfg.BlockSize)
	return &pb.ServerInfo{
		EngineVersion: cfg.EngineVersion,
		ApiVersion:    "vllm",
		InstanceId:    c.s.instanceID,
		Parallelism: &pb.ParallelismInfo{
			TensorParallelSize:        1,
			PipelineParallelSize:      1,
			DataParallelSize:          uint32(cfg.DataParallelSize),
			DataParallelRank:          uint32(cfg.DataParallelStartRank),
			DecodeContextParallelSize: 1,
			WorldSize:                 1, // of one rank
			DataParallelSizeLocal:     uint32(cfg.DataParallelSizeLocal),
		},
		MaxModelLen:                 uint32(cfg.MaxModelLen),
		KvBlockSize:                 uint32(cfg.BlockSize),
		TotalKvBlocks:               uint64(cfg.Blocks) * uint64(cfg.DataParallelSizeLocal),
		MaxRunningRequests:          uint64(cfg.MaxSeqs),
		MaxBatchedTokens:            uint64(cfg.MaxBatchedTokens),
		Rl:                          &pb.RlCapabilities{},
		EffectiveAttentionBlockSize: &blockSize,
	}, nil
}

// GetModelInfo describes the model.
func (c *control) GetModelInfo(context.Context, *pb.GetModelInfoRequest) (*pb.ModelInfo, error) {
	return &pb.ModelInfo{
		ModelId:               c.s.cfg.Model,
		ServedModelName:       c.s.cfg.ServedName,
		ServedModelAliases:    c.s.cfg.Aliases,
		SupportsTextInput:     true,
		SupportsTokenIdsInput: true,
		SupportsMultimodal:    c.s.cfg.Multimodal,
	}, nil
}

// Abort ends every live request that bears one of the ids. It never fails.
func (c *control) Abort(ctx context.Context, req *pb.AbortRequest) (*pb.AbortResponse, error) {
	if c.s.faults.on(NoAbort) {
		return nil, status.Error(codes.Unimplemented, "")
	}
	ids := make(map[string]bool, len(req.GetRequestIds()))
	for _, id := range req.GetRequestIds() {
		if id != "" {
			ids[id] = true
		}
	}
	for _, r := range c.s.ranks {
		if err := r.loop.abort(ctx, ids); err != nil && ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return &pb.AbortResponse{}, nil
}

func noLora() error {
	return status.Error(codes.FailedPrecondition, "engine was not started with LoRA enabled")
}

// LoadLora is refused.
func (c *control) LoadLora(context.Context, *pb.LoadLoraRequest) (*pb.LoadLoraResponse, error) {
	return nil, noLora()
}

// UnloadLora is refused.
func (c *control) UnloadLora(context.Context, *pb.UnloadLoraRequest) (*pb.UnloadLoraResponse, error) {
	return nil, noLora()
}

// ListLoras is refused.
func (c *control) ListLoras(context.Context, *pb.ListLorasRequest) (*pb.ListLorasResponse, error) {
	return nil, noLora()
}

func noSleep() error {
	return status.Error(codes.FailedPrecondition, "sleep mode is not configured")
}

// Sleep is refused.
func (c *control) Sleep(context.Context, *pb.SleepRequest) (*pb.SleepResponse, error) {
	return nil, noSleep()
}

// WakeUp is refused.
func (c *control) WakeUp(context.Context, *pb.WakeUpRequest) (*pb.WakeUpResponse, error) {
	return nil, noSleep()
}

// IsSleeping is refused.
func (c *control) IsSleeping(context.Context, *pb.IsSleepingRequest) (*pb.IsSleepingResponse, error) {
	return nil, noSleep()
}

func noWeights() error {
	return status.Error(codes.FailedPrecondition, "weight transfer is not configured")
}

// InitWeightTransferEngine is refused.
func (c *control) InitWeightTransferEngine(context.Context, *pb.InitWeightTransferEngineRequest) (*pb.InitWeightTransferEngineResponse, error) {
	return nil, noWeights()
}

// StartWeightUpdate is refused.
func (c *control) StartWeightUpdate(context.Context, *pb.StartWeightUpdateRequest) (*pb.StartWeightUpdateResponse, error) {
	return nil, noWeights()
}

// StartDraftWeightUpdate is refused.
func (c *control) StartDraftWeightUpdate(context.Context, *pb.StartDraftWeightUpdateRequest) (*pb.StartDraftWeightUpdateResponse, error) {
	return nil, noWeights()
}

// UpdateWeights is refused.
func (c *control) UpdateWeights(context.Context, *pb.UpdateWeightsRequest) (*pb.UpdateWeightsResponse, error) {
	return nil, noWeights()
}

// FinishWeightUpdate is refused.
func (c *control) FinishWeightUpdate(context.Context, *pb.FinishWeightUpdateRequest) (*pb.FinishWeightUpdateResponse, error) {
	return nil, noWeights()
}
