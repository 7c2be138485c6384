package worker

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"remora/internal/handoff"
	pb "remora/proto/vllm"
)

// TestMessageEvent: what releases blocks, ends a request or holds blocks anew is read off the message, convertible or not.
func TestMessageEvent(t *testing.T) {
	message := handoff.Event{Kind: handoff.EventMessage}
	with := func(change func(e *handoff.Event)) handoff.Event {
		e := message
		change(&e)
		return e
	}
	for text, want := range map[string]handoff.Event{
		`{}`: message,
		`{"prompt_info":{"num_prompt_tokens":3}}`: message,
		`{"outputs":{}}`: message,
		`{"outputs":{"num_tokens":1,"token_ids":[7]}}`:         with(func(e *handoff.Event) { e.Tokens = true }),
		`{"outputs":{"num_tokens":2}}`:                         with(func(e *handoff.Event) { e.Tokens = true }),
		`{"outputs":{"finish_info":{"finish_reason":"STOP"}}}`: with(func(e *handoff.Event) { e.Finish = handoff.FinishedWhole }),
		`{"outputs":{"finish_info":{}}}`:                       with(func(e *handoff.Event) { e.Finish = handoff.FinishedWhole }),
		`{"outputs":{"finish_info":{"finish_reason":"ABORTED","kv_transfer_params":{"a":1}}}}`: with(func(e *handoff.Event) {
			e.Finish = handoff.FinishedAborted
		}),
		`{"outputs":{"num_tokens":1,"finish_info":{"finish_reason":"LENGTH","kv_transfer_params":{"a":1}}}}`: with(func(e *handoff.Event) {
			e.Tokens, e.Finish, e.Params = true, handoff.FinishedWhole, true
		}),
	} {
		var m pb.GenerateResponse
		if err := protojson.Unmarshal([]byte(text), &m); err != nil {
			t.Fatal(text, err)
		}
		if got := MessageEvent(&m); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}
