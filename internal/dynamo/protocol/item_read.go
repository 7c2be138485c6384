package protocol

import (
	"errors"
	"fmt"
	"strings"
)

// ParseItem reads the body of one data frame. final is the wrapper's complete_final; a final frame may have no item, which
// leaves item zero. An item with an error object is an error with or without the event, and the event alone is one of kind
// Unknown.
func ParseItem(codec Codec, body []byte) (item Item, final bool, err error) {
	var data, complete bool // which keys were given
	err = document(codec, body, func(r *reader, key []byte) (err error) {
		switch string(key) {
		case "data":
			return r.orNull(func() error {
				item, data = Item{}, true
				return r.annotated(&item)
			})
		case "complete_final":
			complete = true
			final, err = r.boolean()
			return err
		default:
			return r.skip()
		}
	})
	switch {
	case err != nil:
	case !complete:
		err = &FieldError{Path: "complete_final", Err: errMissing}
	case !final && !data:
		err = &FieldError{Path: "data", Err: errMissing}
	}
	if err != nil {
		return Item{}, false, fmt.Errorf("response item: %w", err)
	}
	return item, final, nil
}

func (r *reader) annotated(item *Item) error {
	var (
		event   string
		comment []string
	)
	err := r.object(func(key []byte) error {
		switch string(key) {
		case "data":
			return optional(r, &item.Data, (*reader).output)
		case "event":
			return r.strOrEmpty(&event)
		case "comment":
			return list(r, &comment, (*reader).str)
		case "error":
			return optional(r, &item.Error, (*reader).error)
		default:
			return r.skip()
		}
	})
	if err == nil && event == "error" && item.Error == nil {
		item.Error = &Error{Kind: ErrorUnknown, Message: strings.Join(comment, "; ")}
	}
	if item.Error != nil {
		item.Data = nil
	}
	return err
}

func (r *reader) output() (o EngineOutput, err error) {
	err = r.object(func(key []byte) error { return o.readField(r, key) })
	if err == nil && o.TokenIDs == nil {
		err = &FieldError{Path: "token_ids", Err: errMissing}
	}
	return o, err
}

func (o *EngineOutput) readField(r *reader, key []byte) (err error) {
	switch string(key) {
	case "token_ids":
		return r.u32s(&o.TokenIDs)
	case "text":
		return optional(r, &o.Text, (*reader).str)
	case "log_probs":
		return list(r, &o.LogProbs, (*reader).f64)
	case "top_logprobs":
		return list(r, &o.TopLogprobs, func(r *reader) (position []TopLogprob, err error) {
			err = list(r, &position, (*reader).topLogprob)
			return position, err
		})
	case "finish_reason":
		o.FinishReason, o.FinishMessage = FinishNone, ""
		return r.orNull(func() error { return r.finishReason(o) })
	case "stop_reason":
		o.StopReason, err = r.stopReason()
	case "index":
		return optional(r, &o.Index, (*reader).u32)
	case "disaggregated_params":
		o.DisaggregatedParams, err = r.value()
	case "encoder_result":
		o.EncoderResult, err = r.mapValue()
	case "worker_trace_link":
		return optional(r, &o.WorkerTraceLink, (*reader).traceLink)
	case "completion_usage":
		return optional(r, &o.Usage, (*reader).usage)
	case "engine_data":
		o.EngineData, err = r.value()
	default:
		return r.skip()
	}
	return err
}

func (r *reader) topLogprob() (p TopLogprob, err error) {
	err = r.object(func(key []byte) (err error) {
		switch string(key) {
		case "rank":
			p.Rank, err = r.u32()
		case "token_id":
			p.TokenID, err = r.u32()
		case "logprob":
			p.Logprob, err = r.f64()
		default:
			return r.skip()
		}
		return err
	})
	return p, err
}

// finishReason reads every form that frontends read: a word, "error", "error: text" and {"error":text}.
func (r *reader) finishReason(o *EngineOutput) error {
	kind, err := r.peek()
	if err != nil {
		return err
	}
	if kind == KindMap {
		return r.finishError(o)
	}
	word, err := r.str()
	if err != nil {
		return err
	}
	switch reason := FinishReason(word); reason {
	case FinishEOS, FinishLength, FinishStop, FinishCancelled, FinishContentFilter, FinishError:
		o.FinishReason = reason
		return nil
	case "abort":
		o.FinishReason = FinishCancelled
		return nil
	case FinishNone: // an empty word is as unknown as any other
	}
	if message, ok := strings.CutPrefix(word, "error: "); ok {
		o.FinishReason, o.FinishMessage = FinishError, message
		return nil
	}
	return fmt.Errorf("unknown word %q", word)
}

func (r *reader) finishError(o *EngineOutput) error {
	err := r.object(func(key []byte) (err error) {
		if string(key) != "error" {
			return errors.New("unknown variant")
		}
		o.FinishReason = FinishError
		o.FinishMessage, err = r.str()
		return err
	})
	if err == nil && o.FinishReason != FinishError {
		err = errors.New("a map without a variant")
	}
	return err
}

func (r *reader) stopReason() (Value, error) {
	v, err := r.value()
	if err != nil {
		return v, err
	}
	switch v.Kind {
	case KindNull, KindString, KindInt, KindUint:
		return v, nil
	case KindList:
		for i := range v.List {
			if k := v.List[i].Kind; k != KindInt && k != KindUint {
				return v, within(fmt.Sprintf("[%d]", i), kindError{KindInt, k})
			}
		}
		return v, nil
	case KindBool, KindFloat, KindBytes, KindMap:
	}
	return v, fmt.Errorf("want a string, an integer or a list of integers, got %s", v.Kind.noun())
}

func (r *reader) usage() (u Usage, err error) {
	err = r.object(func(key []byte) (err error) {
		switch string(key) {
		case "prompt_tokens":
			u.PromptTokens, err = r.u32()
		case "completion_tokens":
			u.CompletionTokens, err = r.u32()
		case "total_tokens":
			u.TotalTokens, err = r.u32()
		case "prompt_tokens_details":
			u.CachedTokens = nil
			return r.optionalObject(func(r *reader, key []byte) error {
				if string(key) == "cached_tokens" {
					return optional(r, &u.CachedTokens, (*reader).u32)
				}
				return r.skip()
			})
		default:
			return r.skip()
		}
		return err
	})
	return u, err
}
