package chaos

import (
	"time"

	"remora/internal/sim/core"
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
