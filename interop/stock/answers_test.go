package stock

import (
	"encoding/json"
	"strings"
	"testing"

	"remora/interop/harness"
)

func TestAggregatedRust(t *testing.T) { answers(t, aggregated(t, harness.Rust).Frontend) }

func TestAggregatedRemora(t *testing.T) {
	f := aggregated(t, harness.Remora).Frontend
	answers(t, f)
	withLogprobs(t, f)
}

// answers asks what every deployment must be able to answer.
func answers(t *testing.T, f *harness.Frontend) {
	t.Run("completion", func(t *testing.T) { sameStreamed(t, f, prompt(story[:200])) })
	t.Run("chat", func(t *testing.T) { sameStreamed(t, f, chat("Who are you?")) })
	t.Run("token ids", func(t *testing.T) {
		r := prompt("")
		r.Prompt = []int{72, 101, 108, 108, 111}
		sameStreamed(t, f, r)
	})
	t.Run("one token", func(t *testing.T) {
		r := prompt("x")
		r.MaxTokens = 1
		sameStreamed(t, f, r)
	})
	t.Run("stop string", func(t *testing.T) { stopString(t, f) })
	t.Run("a prompt that is too long", func(t *testing.T) {
		a := f.Ask(t, prompt(strings.Repeat("zq ", 20000)))
		if a.Status != 400 {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
		good(t, f, prompt("still there?")) // a client's mistake does not cost the worker its place
	})
}

// withLogprobs asks for what works only where the decode worker leaves an item's text to the frontend. The Rust sidecar
// fills it in, with "", and the stock frontend then gives no logprobs.
func withLogprobs(t *testing.T, f *harness.Frontend) {
	t.Run("logprobs of a chat", func(t *testing.T) {
		r := chat("Which?")
		r.Logprobs, r.TopLogprobs = true, 2
		var content struct {
			Content []struct {
				Logprob     float64           `json:"logprob"`
				TopLogprobs []json.RawMessage `json:"top_logprobs"`
			} `json:"content"`
		}
		onlyLogprobs(t, f, r, &content)
		if len(content.Content) != r.MaxTokens {
			t.Fatalf("logprobs of %d tokens, want %d", len(content.Content), r.MaxTokens)
		}
		for i, c := range content.Content {
			if c.Logprob > 0 || len(c.TopLogprobs) < r.TopLogprobs {
				t.Errorf("token %d: logprob %v and %d alternatives", i, c.Logprob, len(c.TopLogprobs))
			}
		}
	})
	t.Run("logprobs of a completion", func(t *testing.T) {
		r := prompt("Which?")
		r.Logprobs = 2
		var content struct {
			TokenLogprobs []float64 `json:"token_logprobs"`
		}
		onlyLogprobs(t, f, r, &content)
		if len(content.TokenLogprobs) != r.MaxTokens {
			t.Fatalf("logprobs of %d tokens, want %d", len(content.TokenLogprobs), r.MaxTokens)
		}
	})
}

// good asks and wants all the tokens.
func good(t *testing.T, f *harness.Frontend, r harness.Request) harness.Answer {
	t.Helper()
	a := f.Ask(t, r)
	if a.Status != 200 || a.Error != "" {
		t.Fatalf("status %d, error %q: %s", a.Status, a.Error, a.Body)
	}
	return a
}

// sameStreamed wants the whole answer, the same again when it is streamed, and the right counts with both.
func sameStreamed(t *testing.T, f *harness.Frontend, r harness.Request) {
	t.Helper()
	whole := good(t, f, r)
	r.Stream, r.StreamOptions = true, &harness.StreamOptions{IncludeUsage: true}
	streamed := good(t, f, r)
	if whole.Text != streamed.Text {
		t.Errorf("whole    %q\nstreamed %q", whole.Text, streamed.Text)
	}
	for name, a := range map[string]harness.Answer{"whole": whole, "streamed": streamed} {
		if a.Finish != "length" || a.Usage.Completion != r.MaxTokens || a.Usage.Prompt == 0 {
			t.Errorf("%s: finish %q, usage %+v, want length and %d tokens", name, a.Finish, a.Usage, r.MaxTokens)
		}
		if r.MaxTokens > 1 && strings.Trim(a.Text, "\ufffd") == "" {
			t.Errorf("%s: text %q", name, a.Text)
		}
	}
}

// stopString takes a piece of an answer and asks again with it as stop string.
func stopString(t *testing.T, f *harness.Frontend) {
	t.Helper()
	r := prompt("Tell me when to stop.")
	text := good(t, f, r).Text
	middle := []rune(text)
	stop := string(middle[len(middle)/2 : len(middle)/2+3])
	want, _, _ := strings.Cut(text, stop)
	r.Stop = []string{stop}
	for _, r.Stream = range []bool{false, true} {
		a := good(t, f, r)
		if a.Text != want || a.Finish != "stop" {
			t.Errorf("stream %v, stop at %q: %q, finish %q; want %q", r.Stream, stop, a.Text, a.Finish, want)
		}
	}
}

// onlyLogprobs decodes the logprobs of an answer's only choice.
func onlyLogprobs(t *testing.T, f *harness.Frontend, r harness.Request, into any) {
	t.Helper()
	a := good(t, f, r)
	if len(a.Logprobs) != 1 {
		t.Fatalf("%d choices with logprobs: %s", len(a.Logprobs), a.Body)
	}
	if err := json.Unmarshal(a.Logprobs[0], into); err != nil {
		t.Fatal(err)
	}
}
