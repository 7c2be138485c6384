package worker

import (
	"encoding/json"
	"testing"

	"remora/internal/dynamo/discovery"
	"remora/internal/dynamo/protocol"
	"remora/internal/vllm/vllmtest"
)

// TestRanks: a worker in front of ranks 4 to 7 of 8 says so in its card, with the blocks of one rank; a request goes to the rank
// that it names by its global number; one that names no rank is left to the engine; a rank that is elsewhere is refused before
// the engine hears of it, and the refusal names the range.
func TestRanks(t *testing.T) {
	four, five, three, eight := uint32(4), uint32(5), uint32(3), uint32(8)
	for name, tt := range map[string]struct {
		role            protocol.Role
		rank, forPrefix *uint32
		want            string // what the engine is asked for in its metadata, or that the request is refused
	}{
		"aggregated":                      {protocol.Aggregated, &five, nil, "5"},
		"aggregated, none":                {protocol.Aggregated, nil, nil, ""},
		"aggregated, the prefill's":       {protocol.Aggregated, nil, &five, ""},
		"aggregated, below":               {protocol.Aggregated, &three, nil, "refused"},
		"aggregated, above":               {protocol.Aggregated, &eight, nil, "refused"},
		"prefill, its own first":          {protocol.Prefill, &three, &five, "5"},
		"prefill, the common one":         {protocol.Prefill, &four, nil, "4"},
		"prefill, its own is elsewhere":   {protocol.Prefill, &four, &three, "refused"},
		"decode":                          {protocol.Decode, &four, &three, "4"},
		"decode, none":                    {protocol.Decode, nil, &five, ""},
		"decode, the rank of the prefill": {protocol.Decode, &three, &five, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			inWhole(t, tt.role, func(w *whole) {
				w.dpRank, w.prefillRank = tt.rank, tt.forPrefix
				w.engine.Set(func(b *vllmtest.Behaviour) {
					p := b.Server.GetParallelism()
					p.DataParallelSize, p.DataParallelRank, p.DataParallelSizeLocal = 8, 4, 4
					b.Server.TotalKvBlocks = 4 * 65
				})
			}, func(w *whole) {
				target := w.target()
				var card struct {
					Card struct {
						Runtime struct {
							Start  uint32 `json:"data_parallel_start_rank"`
							Size   uint32 `json:"data_parallel_size"`
							Blocks uint64 `json:"total_kv_blocks"`
						} `json:"runtime_config"`
					} `json:"card_json"`
				}
				if err := json.Unmarshal([]byte(w.published(discovery.ModelCards)), &card); err != nil {
					w.t.Error(err)
				}
				if r := card.Card.Runtime; r.Start != 4 || r.Size != 4 || r.Blocks != 65 {
					w.t.Errorf("card %+v", r)
				}
				got := w.mustSend(target, "x").read()
				if tt.want == "refused" {
					if got != "prologue(Backend.InvalidArgument)" || w.engine.Count(vllmtest.Received, "x") != 0 {
						w.t.Errorf("read %q, the engine saw %d", got, w.engine.Count(vllmtest.Received, "x"))
					}
					return
				}
				if event := w.engine.Await(w.t, vllmtest.Received, "x"); event.Rank != tt.want {
					w.t.Errorf("rank %q, want %q; read %q", event.Rank, tt.want, got)
				}
			})
		})
	}
}
