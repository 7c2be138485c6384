package vllm

import (
	"fmt"
	"strings"
)

// SameIdentity is nil when both discoveries are of the same model on an engine of the same shape, else an error of kind
// Protocol that prints both sides of what differs. Sizes, limits, version and instance may change with a restart.
func (d Discovery) SameIdentity(other Discovery) error {
	var differ []string
	compare := func(name, before, now string) {
		if before != now {
			differ = append(differ, fmt.Sprintf("%s was %s and is %s", name, before, now))
		}
	}
	compareText := func(name, before, now string) {
		compare(name, fmt.Sprintf("%q", before), fmt.Sprintf("%q", now))
	}
	compareText("model_id", d.ModelID, other.ModelID)
	compareText("served_model_name", d.ServedName, other.ServedName)
	compare("served_model_aliases", fmt.Sprintf("%q", d.Aliases), fmt.Sprintf("%q", other.Aliases))
	compareText("reasoning_parser", d.ReasoningParser, other.ReasoningParser)
	compareText("tool_call_parser", d.ToolCallParser, other.ToolCallParser)
	compare("supports_lora", fmt.Sprint(d.SupportsLoRA), fmt.Sprint(other.SupportsLoRA))
	compare("max_loras", fmt.Sprint(d.MaxLoRAs), fmt.Sprint(other.MaxLoRAs))
	compare("parallelism", d.Parallelism.String(), other.Parallelism.String())
	compare("rl", d.RL.String(), other.RL.String())
	if differ == nil {
		return nil
	}
	return protocol("the engine is not the one that was discovered first: %s", strings.Join(differ, "; "))
}

// String names every part, "absent" for nil.
func (p *Parallelism) String() string {
	if p == nil {
		return "absent"
	}
	return fmt.Sprintf("{tensor %d, pipeline %d, data %d, data rank %d, decode context %d, world %d, data local %d}",
		p.Tensor, p.Pipeline, p.Data, p.DataRank, p.DecodeContext, p.World, p.DataLocal)
}

// String names every part, "absent" for nil.
func (r *RL) String() string {
	if r == nil {
		return "absent"
	}
	return fmt.Sprintf("{weight transfer %v, backend %q, sleep mode %v, draft weight updates %v}",
		r.WeightTransfer, r.WeightTransferBackend, r.SleepMode, r.DraftWeightUpdates)
}
