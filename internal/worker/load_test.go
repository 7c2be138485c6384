package worker

import (
	"slices"
	"testing"

	"remora/internal/dynamo/protocol"
	"remora/internal/handoff"
	"remora/internal/routing"
	"remora/internal/translate"
	"remora/internal/vllm"
	pb "remora/proto/vllm"
)

// idle is an engine that takes requests and does nothing, and the stream of each.
type idle struct {
	vllm.Stream
	engine
}

func (idle) Open(*pb.GenerateRequest, *uint32, vllm.Sink) vllm.Stream { return idle{} }

// TestAtEngine: what counts as load is what has been sent and has not ended; a prompt with media has no names.
func TestAtEngine(t *testing.T) {
	rank, maxTokens := uint32(3), uint32(100)
	s := &service{engine: idle{}, live: map[string]*request{}}
	at := map[string]*request{}
	for _, name := range []string{"waiting", "sent", "over", "media"} {
		body := &protocol.PreprocessedRequest{Model: "tiny", TokenIDs: []uint32{1, 2, 3}, StopConditions: protocol.StopConditions{MaxTokens: &maxTokens}}
		body.Routing = protocol.Routing{DPRank: &rank}
		engine := &translate.Engine{Role: protocol.Aggregated, ServedName: "tiny", ModelID: "tiny", BlockSize: 16, RankStart: 2, RankCount: 2}
		call, refusal := engine.Convert(name, body)
		if refusal != nil {
			t.Fatal(refusal.Err)
		}
		r := &request{svc: s, call: call, ended: make(chan struct{})}
		s.live[name], at[name] = r, r
		if name == "media" {
			call.Request.Media = []*pb.MediaItem{{}}
		}
		if name != "waiting" {
			r.carryOut(handoff.Action{Kind: handoff.ActSubmit}, occasion{})
		}
	}
	close(at["over"].ended)
	seen := map[*routing.Prompt]routing.Request{}
	for r := range s.atEngine {
		seen[r.Prompt] = r
	}
	if len(seen) != 2 {
		t.Errorf("%d requests at the engine, want 2", len(seen))
	}
	for name, prompt := range map[string][]uint32{"sent": {1, 2, 3}, "media": nil} {
		r := seen[&at[name].prompt]
		if r.Tokens != 3 || r.Rank == nil || *r.Rank != rank || !slices.Equal(at[name].prompt.Tokens, prompt) {
			t.Errorf("%s: %+v, prompt %v", name, r, at[name].prompt.Tokens)
		}
	}
}
