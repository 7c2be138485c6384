package stock

import (
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"remora/interop/harness"
)

// TestFrontDoorSaysTheSame asks `remora up` and a stock frontend the same. Its simulated engines are the same too, so equal
// texts mean that the small front door's tokenizer, chat template, stop handling and counts are the stock frontend's.
func TestFrontDoorSaysTheSame(t *testing.T) {
	above := aggregated(t, harness.Remora).Frontend
	requests := map[string]harness.Request{
		"completion":     prompt("Hi"),
		"long":           prompt(story[:700]),
		"token ids":      {Model: model, Prompt: []int{72, 105, 32, 400, 401}, MaxTokens: 20},
		"chat":           chat("Who are you?"),
		"other scripts":  chat("Wer bist du? 你是谁? 🐟 <|end|>"),
		"one token":      {Model: model, Prompt: "x", MaxTokens: 1},
		"many, streamed": {Model: model, Prompt: "x", MaxTokens: 100},
	}
	for mode, args := range map[string][]string{"pair": nil, "aggregated": {"--aggregated"}} {
		t.Run(mode, func(t *testing.T) {
			up := harness.StartUp(t, args...)
			if ids := up.Models(t); !slices.Equal(ids, []string{model}) {
				t.Fatalf("models %q", ids)
			}
			for name, r := range requests {
				for _, r.Stream = range []bool{false, true} {
					r.StreamOptions = nil
					if r.Stream {
						r.StreamOptions = &harness.StreamOptions{IncludeUsage: true}
					}
					want, got := above.Ask(t, r), up.Ask(t, r)
					want.Usage.PromptDetails = got.Usage.PromptDetails // what was cached depends on who asked before
					if got.Text != want.Text || got.Finish != want.Finish || got.Usage != want.Usage || got.Status != want.Status {
						t.Errorf("%s, stream %v:\nfront door     %q %s %+v %d %s\nstock frontend %q %s %+v %d",
							name, r.Stream, got.Text, got.Finish, got.Usage, got.Status, got.Error, want.Text, want.Finish, want.Usage, want.Status)
					}
				}
			}
		})
	}
}

// TestUpTellsHowToUseIt starts the program as `make run` does, follows its advice, and stops it as Ctrl-C does.
func TestUpTellsHowToUseIt(t *testing.T) {
	up := harness.StartUp(t)
	for _, want := range []string{"curl ", up.URL} {
		if !strings.Contains(up.Log(), want) {
			t.Errorf("it does not print %q:\n%s", want, up.Log())
		}
	}
	s := up.Open(t, harness.Request{
		Model: model, MaxTokens: 50, Messages: []harness.Message{{Role: "user", Content: "Hello"}},
	})
	s.ReadAll(t)
	if s.Status != http.StatusOK || s.Chunks < 10 || s.Finish != "length" {
		t.Errorf("status %d, %d chunks, finish %q", s.Status, s.Chunks, s.Finish)
	}
	up.Signal(syscall.SIGINT)
	if code := up.WaitExit(t, harness.Grace); code != 0 {
		t.Errorf("exit status %d after an interrupt", code)
	}
}
