package vllm

import (
	"context"
	"fmt"
	"strings"
)

// Rediscover asks an engine that is back what it is now: it waits until both services serve, discovers, and compares with
// what was discovered before (SameServing). The context bounds all of it. Of the kinds of failure, Protocol means that
// something else has taken the engine's place, and trying again does not help; the new Discovery is returned with it when
// there is one.
func (c *Client) Rediscover(ctx context.Context, before Discovery) (Discovery, error) {
	for _, service := range []string{ControlService, InferenceService} {
		if err := c.WaitServing(ctx, service); err != nil {
			return Discovery{}, err
		}
	}
	now, err := c.Discover(ctx)
	if err != nil {
		return Discovery{}, err
	}
	return now, before.SameServing(now)
}

// SameServing is SameIdentity and more: requests accepted and hand-offs made under one discovery are good under the other,
// because the context length and the KV block size are the same as well.
func (d Discovery) SameServing(other Discovery) error {
	differ := d.identityDiffers(other)
	differ.compare("max_model_len", fmt.Sprint(d.ContextLength), fmt.Sprint(other.ContextLength))
	differ.compare("KV block size", fmt.Sprint(d.BlockSize), fmt.Sprint(other.BlockSize))
	return differ.err()
}

// SameIdentity is nil when both discoveries are of the same model on an engine of the same shape, else an error of kind
// Protocol that prints both sides of what differs. Sizes, limits, version and instance may change with a restart.
func (d Discovery) SameIdentity(other Discovery) error {
	differ := d.identityDiffers(other)
	return differ.err()
}

// differences are texts of what is not the same.
type differences []string

func (d *differences) compare(name, before, now string) {
	if before != now {
		*d = append(*d, fmt.Sprintf("%s was %s and is %s", name, before, now))
	}
}

func (d *differences) compareText(name, before, now string) {
	d.compare(name, fmt.Sprintf("%q", before), fmt.Sprintf("%q", now))
}

func (d *differences) err() error {
	if len(*d) == 0 {
		return nil
	}
	return protocol("the engine is not the one that was discovered first: %s", strings.Join(*d, "; "))
}

func (d Discovery) identityDiffers(other Discovery) differences {
	var differ differences
	differ.compareText("model_id", d.ModelID, other.ModelID)
	differ.compareText("served_model_name", d.ServedName, other.ServedName)
	differ.compare("served_model_aliases", fmt.Sprintf("%q", d.Aliases), fmt.Sprintf("%q", other.Aliases))
	differ.compareText("reasoning_parser", d.ReasoningParser, other.ReasoningParser)
	differ.compareText("tool_call_parser", d.ToolCallParser, other.ToolCallParser)
	differ.compare("supports_lora", fmt.Sprint(d.SupportsLoRA), fmt.Sprint(other.SupportsLoRA))
	differ.compare("max_loras", fmt.Sprint(d.MaxLoRAs), fmt.Sprint(other.MaxLoRAs))
	differ.compare("parallelism", d.Parallelism.String(), other.Parallelism.String())
	differ.compare("rl", d.RL.String(), other.RL.String())
	return differ
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
