package translate

import (
	"slices"

	"remora/internal/dynamo/protocol"
)

// extraArgs is what a request's extra_args come down to.
type extraArgs struct {
	bypass      bool
	transfer    protocol.Value // kv_transfer_params, of a kind yet to be checked
	hasTransfer bool
}

// nvextFields are the extra response fields that a frontend can fill without the engine's help.
var nvextFields = []string{"worker_id", "timing", "completion_token_ids", "prompt_token_ids", "prompt_logprobs"}

// extras reads extra_args. A key that nobody here understands is refused rather than dropped: it changes what the client gets.
func (c *converter) extras() (extraArgs, *Refusal) {
	args := c.req.ExtraArgs
	out := extraArgs{transfer: c.legacy.transfer, hasTransfer: c.legacy.hasTransfer, bypass: c.legacy.bypass}
	switch args.Kind {
	case protocol.KindNull:
		return out, nil
	case protocol.KindMap:
	default:
		return out, refuse("extra_args must be an object")
	}
	if _, ok := args.Get(routingKey); ok && c.form != mediaFeatures {
		return out, refuse("extra_args.%s is given without preprocessed features", routingKey)
	}
	if nvext, ok := args.Get("nvext"); ok {
		if refusal := c.nvext(nvext); refusal != nil {
			return out, refusal
		}
	}
	for i := range args.Map {
		member := &args.Map[i]
		switch member.Key {
		case "nvext", legacyKey, routingKey, "bypass_prefix_cache", "skip_reading_prefix_cache":
		case "kv_transfer_params":
			out.transfer, out.hasTransfer = member.Value, true
		case "messages", "formatted_prompt", "mm_hashes":
			// What the frontend made of the prompt and its media on the way here; the hashes have been used.
			if c.form == mediaNone {
				return out, refuse("extra_args.%s is given without media", member.Key)
			}
		default:
			return out, refuse("unknown key %q in extra_args", member.Key)
		}
	}
	// The alias first, so that the other name wins even when it says false.
	for _, key := range []string{"skip_reading_prefix_cache", "bypass_prefix_cache"} {
		v, ok := args.Get(key)
		if !ok {
			continue
		}
		if v.Kind != protocol.KindBool {
			return out, refuse("extra_args.%s must be a boolean", key)
		}
		out.bypass = v.Bool
	}
	return out, nil
}

// nvext checks the part of a client's nvext that some frontends pass on. Its keys are consumed one by one; what is left over is
// refused under the name of the whole.
func (c *converter) nvext(v protocol.Value) *Refusal {
	unknown := func() *Refusal { return refuse("unknown key %q in extra_args", "nvext") }
	if v.Kind != protocol.KindMap {
		return unknown()
	}
	for i := range v.Map {
		value := v.Map[i].Value
		switch v.Map[i].Key {
		case "cache_salt":
			// It must agree with what the router hashed, or its prefix index would point at blocks of another tenant.
			salt := c.req.Routing.CacheSalt
			if value.Kind != protocol.KindString || value.Str == "" || salt == nil || *salt != value.Str {
				return refuse("extra_args.nvext.cache_salt must be a non-empty string equal to routing.cache_salt")
			}
		case "token_in":
			if value.Kind != protocol.KindBool || !value.Bool {
				return refuse("extra_args.nvext.token_in must be true")
			}
		case "extra_fields":
			if refusal := extraFields(value); refusal != nil {
				return refusal
			}
		default:
			return unknown()
		}
	}
	return nil
}

func extraFields(v protocol.Value) *Refusal {
	if v.Kind != protocol.KindList {
		return refuse("extra_args.nvext.extra_fields must be a list")
	}
	for i := range v.List {
		if v.List[i].Kind != protocol.KindString || !slices.Contains(nvextFields, v.List[i].Str) {
			return refuse("extra_args.nvext.extra_fields[%d] is not supported", i)
		}
	}
	return nil
}
