package chaos

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"remora/internal/memnet"
	"remora/internal/sim"
	"remora/internal/sim/core"
	pb "remora/proto/vllm"
)

// Prompts come in families that share beginnings, so that prefix caches hit and blocks are shared.
const (
	prompts  = 120
	families = 4
	longest  = 24 // tokens of an answer
)

func promptIDs(i int) []uint32 {
	family, member := uint32(i%families), i/families
	ids := make([]uint32, 1+member*36/(prompts/families))
	for pos := range ids {
		ids[pos] = 256 + (uint32(pos)*7+family*11)%40
	}
	if member%3 == 0 {
		ids[len(ids)-1]++ // forks in its last token
	}
	return ids
}

// oracle knows the text of each prompt on one engine alone.
type oracle map[int][]uint32

func (o oracle) text(prompt int) []uint32 {
	if text, ok := o[prompt]; ok {
		return text
	}
	e, err := core.New(coreConfig("alone"))
	if err != nil {
		panic(err)
	}
	if err := e.Add(core.Request{ID: "x", Prompt: promptIDs(prompt), MaxTokens: longest}); err != nil {
		panic(err)
	}
	var text []uint32
	for now := time.Duration(0); len(text) < longest; now += time.Millisecond {
		e.Schedule(now)
		e.Apply(now)
		for _, out := range e.Take() {
			text = append(text, out.Token.ID)
		}
	}
	o[prompt] = text
	return text
}

// simulatedTexts is what a simulated engine of the storms, alone, says to each prompt.
func simulatedTexts(t *testing.T, model string) map[int][]uint32 {
	t.Helper()
	texts := map[int][]uint32{}
	synctest.Test(t, func(t *testing.T) {
		engine, err := sim.New(sim.Config{Model: model, ServedName: "model", BlockSize: blockSize, Blocks: 4000, MaxModelLen: 128, Seed: stormSeed})
		if err != nil {
			t.Fatal(err)
		}
		front := memnet.Listen(64 << 10)
		conn, err := grpc.NewClient("passthrough:///alone", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return front.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := engine.Run(ctx, sim.Listeners{GRPC: front}); err != nil {
				t.Error(err)
			}
		})
		for i := range prompts {
			answer, err := pb.NewInferenceClient(conn).Generate(t.Context(), &pb.GenerateRequest{
				RequestId: fmt.Sprint(i), Prompt: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: promptIDs(i)}},
				Stopping: &pb.StoppingCriteria{MaxNewTokens: longest, IgnoreEos: true}, Response: &pb.ResponseOptions{OutputTokenIds: true},
			})
			if err != nil {
				t.Fatal(err)
			}
			texts[i] = answer.GetOutputs().GetTokenIds()
		}
		_ = conn.Close()
		stop()
		running.Wait()
	})
	return texts
}
