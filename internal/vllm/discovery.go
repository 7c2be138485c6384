package vllm

import (
	"context"
	"fmt"
	"math"
	"strings"

	pb "remora/proto/vllm"
)

// Discovery is what an engine tells of its model and itself, checked and computed for one worker.
type Discovery struct {
	ModelID            string // a local path or a hub id
	ServedName         string
	Aliases            []string
	SupportsLoRA       bool
	SupportsMultimodal bool
	ReasoningParser    string
	ToolCallParser     string

	EngineVersion string  // as the engine spells it
	Version       Version // zero when that spelling says nothing
	InstanceID    string
	ContextLength uint32 // 0: not told
	BlockSize     uint32 // tokens a KV block, the attention's own where the engine tells it; 0: not told
	BlocksPerRank uint64 // KV blocks of one local rank; 0: not told
	MaxRunning    uint64 // requests; 0: not told
	MaxBatched    uint64 // tokens; 0: not told
	MaxLoRAs      uint32

	Ranks       LocalRanks
	Parallelism *Parallelism // nil when the engine sent none
	RL          *RL          // nil when the engine sent none

	// Notes are doubts about the answers that do not stand in the way of serving, for the log at WARN.
	Notes []string
}

// Parallelism is how the engine is spread out.
type Parallelism struct {
	Tensor, Pipeline, Data, DataRank, DecodeContext uint32
	World                                           uint64
	DataLocal                                       uint32 // 0: not told
}

// RL are the engine's abilities for reinforcement learning.
type RL struct {
	WeightTransfer        bool
	WeightTransferBackend string
	SleepMode             bool
	DraftWeightUpdates    bool
}

// Discover asks for model and server and checks the answers. Answers that no vLLM engine can give are of kind Protocol.
func (c *Client) Discover(ctx context.Context) (Discovery, error) {
	control := pb.NewControlClient(c.pick())
	model, err := control.GetModelInfo(ctx, &pb.GetModelInfoRequest{})
	if err != nil {
		return Discovery{}, statusOf("GetModelInfo", err).Err()
	}
	server, err := control.GetServerInfo(ctx, &pb.GetServerInfoRequest{})
	if err != nil {
		return Discovery{}, statusOf("GetServerInfo", err).Err()
	}
	return discovered(model, server)
}

func discovered(model *pb.ModelInfo, server *pb.ServerInfo) (Discovery, error) {
	switch {
	case server.GetApiVersion() != "vllm":
		return Discovery{}, protocol("GetServerInfo: api_version is %q, not \"vllm\"", server.GetApiVersion())
	case strings.TrimSpace(model.GetModelId()) == "":
		return Discovery{}, protocol("GetModelInfo: model_id is blank")
	case strings.TrimSpace(model.GetServedModelName()) == "":
		return Discovery{}, protocol("GetModelInfo: served_model_name is blank")
	case !model.GetSupportsTokenIdsInput():
		return Discovery{}, protocol("GetModelInfo: the model %q does not take token ids as input", model.GetModelId())
	}
	version, _ := ParseVersion(server.GetEngineVersion())
	out := Discovery{
		ModelID:            model.GetModelId(),
		ServedName:         model.GetServedModelName(),
		Aliases:            model.GetServedModelAliases(),
		SupportsLoRA:       model.GetSupportsLora(),
		SupportsMultimodal: model.GetSupportsMultimodal(),
		ReasoningParser:    model.GetReasoningParser(),
		ToolCallParser:     model.GetToolCallParser(),
		EngineVersion:      server.GetEngineVersion(),
		Version:            version,
		InstanceID:         server.GetInstanceId(),
		ContextLength:      server.GetMaxModelLen(),
		BlockSize:          server.GetKvBlockSize(),
		MaxRunning:         server.GetMaxRunningRequests(),
		MaxBatched:         server.GetMaxBatchedTokens(),
		MaxLoRAs:           server.GetMaxLoras(),
	}
	if effective := server.GetEffectiveAttentionBlockSize(); effective > math.MaxUint32 {
		return Discovery{}, protocol("GetServerInfo: effective_attention_block_size %d is out of range", effective)
	} else if effective != 0 {
		out.BlockSize = uint32(effective)
	}
	if p := server.GetParallelism(); p != nil {
		out.Parallelism = &Parallelism{
			Tensor: p.GetTensorParallelSize(), Pipeline: p.GetPipelineParallelSize(),
			Data: p.GetDataParallelSize(), DataRank: p.GetDataParallelRank(),
			DecodeContext: p.GetDecodeContextParallelSize(), World: p.GetWorldSize(), DataLocal: p.GetDataParallelSizeLocal(),
		}
	}
	if rl := server.GetRl(); rl != nil {
		out.RL = &RL{
			WeightTransfer: rl.GetWeightTransferEnabled(), WeightTransferBackend: rl.GetWeightTransferBackend(),
			SleepMode: rl.GetSleepModeEnabled(), DraftWeightUpdates: rl.GetDraftWeightUpdatesEnabled(),
		}
	}
	ranks, note, err := localRanks(out.Parallelism)
	if err != nil {
		return Discovery{}, err
	}
	out.Ranks = ranks
	out.Notes = appendNote(out.Notes, note)
	out.BlocksPerRank, note = perRank(server.GetTotalKvBlocks(), ranks.Count)
	out.Notes = appendNote(out.Notes, note)
	return out, nil
}

func appendNote(notes []string, text string) []string {
	if text == "" {
		return notes
	}
	return append(notes, text)
}

// perRank divides the engine's block count, which is a sum over its local ranks.
func perRank(total uint64, ranks uint32) (blocks uint64, note string) {
	count := uint64(ranks)
	switch {
	case total == 0:
		return 0, ""
	case total < count:
		return 1, fmt.Sprintf("total_kv_blocks %d is less than one for each of %d ranks; 1 is published", total, ranks)
	case total%count != 0:
		return total / count, fmt.Sprintf("total_kv_blocks %d does not divide by %d ranks; the remainder is not published", total, ranks)
	default:
		return total / count, ""
	}
}
