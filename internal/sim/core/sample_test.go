package core

import (
	"math"
	"slices"
	"testing"
)

func TestSampling(t *testing.T) {
	ids := prompt(9, 1)
	run := func(change func(*Request)) ([]uint32, Output) {
		b := newBench(t, nil)
		req := greedy("r", ids, 20)
		change(&req)
		return b.run(b.p, req)
	}
	base, _ := run(func(*Request) {})
	same := func(name string, got []uint32) {
		t.Helper()
		if key(got) != key(base) {
			t.Errorf("%s: %v, want the greedy text %v", name, got, base)
		}
	}

	got, out := run(func(r *Request) { r.Sampling.Bias = map[uint32]float64{505: 90} })
	if len(got) != 1 || out.Reason != Stop || out.StopToken != 505 || !out.StopEOS {
		t.Errorf("end-of-sequence by bias: %v %+v", got, out)
	}
	got, out = run(func(r *Request) { r.Sampling.Bias, r.MinTokens = map[uint32]float64{505: 90}, 3 })
	if len(got) != 4 || key(got[:3]) != key(base[:3]) || out.Reason != Stop {
		t.Errorf("after three tokens: %v %+v", got, out)
	}
	got, out = run(func(r *Request) { r.Sampling.Bias, r.IgnoreEOS = map[uint32]float64{505: 90}, true })
	if len(got) != 20 || out.Reason != Length {
		t.Errorf("ignored end-of-sequence: %d tokens, %+v", len(got), out)
	}
	got, out = run(func(r *Request) { r.StopTokens = []uint32{base[4]} })
	if at := slices.Index(base, base[4]); len(got) != at+1 || out.Reason != Stop || out.StopToken != base[4] || out.StopEOS {
		t.Errorf("stop id: %v %+v", got, out)
	}
	got, out = run(func(r *Request) { r.StopTokens, r.MinTokens = []uint32{base[1]}, 7 })
	if len(got) < 7 || slices.Contains(got[:7], base[1]) {
		t.Errorf("stop id before the least number of tokens: %v %+v", got, out)
	}
	got, _ = run(func(r *Request) { r.Sampling.Allowed = []uint32{300, 301} })
	if slices.ContainsFunc(got, func(id uint32) bool { return id != 300 && id != 301 }) {
		t.Errorf("allowed ids: %v", got)
	}
	got, _ = run(func(r *Request) { r.Sampling.BadWords = [][]uint32{{base[0], base[1]}} })
	if got[0] != base[0] || got[1] == base[1] {
		t.Errorf("bad words: %v", got)
	}
	got, _ = run(func(r *Request) { r.Sampling.FrequencyPenalty = 2; r.Sampling.Bias = map[uint32]float64{300: 12} })
	if n := count(got, 300); n < 2 || n == 20 {
		t.Errorf("frequency penalty against a bias: %d of 20 are biased: %v", n, got)
	}
	got, _ = run(func(r *Request) { r.Sampling.RepetitionPenalty = 1e9 })
	if n := len(slices.Compact(slices.Sorted(slices.Values(got)))); n < 19 {
		t.Errorf("repetition penalty: only %d different of 20: %v", n, got)
	}
	got, _ = run(func(r *Request) { r.Sampling.PresencePenalty, r.Sampling.RepetitionPenalty = 0, 1 })
	same("neutral penalties", got)
	got, out = run(func(r *Request) { r.Sampling.Choices = [][]uint32{{300, 301, 302}, {300, 7}} })
	if out.Reason != Stop || !out.StopEOS || key(got[:2]) != "300 301" && key(got[:2]) != "300 7" || got[len(got)-1] != 505 {
		t.Errorf("choices: %v %+v", got, out)
	}

	hot := func(seed uint64) []uint32 {
		got, _ := run(func(r *Request) { r.Sampling.Temperature, r.Sampling.Seed = 1.5, seed })
		return got
	}
	first, again, other := hot(1), hot(1), hot(2)
	if key(first) != key(again) || key(first) == key(other) || key(first) == key(base) {
		t.Errorf("seeds: %v %v %v, greedy %v", first, again, other, base)
	}
	for name, change := range map[string]func(*Sampling){
		"top-k 1":      func(p *Sampling) { p.TopK = 1 },
		"tiny top-p":   func(p *Sampling) { p.TopP = 1e-9 },
		"min-p 1":      func(p *Sampling) { p.MinP = 1 },
		"near to zero": func(p *Sampling) { p.Temperature = 1e-6 },
	} {
		got, _ := run(func(r *Request) {
			r.Sampling.Temperature, r.Sampling.Seed = 1.5, 1
			change(&r.Sampling)
		})
		same(name, got)
	}
}

func count(tokens []uint32, id uint32) int {
	n := 0
	for _, t := range tokens {
		if t == id {
			n++
		}
	}
	return n
}

func TestLogprobs(t *testing.T) {
	b := newBench(t, nil)
	five, none := 5, 0
	req := greedy("r", prompt(9, 1), 20)
	req.Sampling.Logprobs, req.PromptLogprobs = &five, &none
	b.run(b.p, req)
	for i, out := range b.outs["r"] {
		tok := out.Token
		if tok.Rank != 1 || tok.Logprob >= 0 || len(tok.Candidates) != 5 || tok.Candidates[0] != tok.Score {
			t.Fatalf("token %d: %+v", i, *tok)
		}
		sum := 0.0
		for k, c := range tok.Candidates {
			sum += math.Exp(c.Logprob)
			if c.Rank != k+1 || k > 0 && c.Logprob > tok.Candidates[k-1].Logprob {
				t.Fatalf("token %d: candidates %+v", i, tok.Candidates)
			}
		}
		if sum > 1+1e-9 || sum < 0.05 { // five of 64 equal ones inside a character
			t.Errorf("token %d: the best five have %v", i, sum)
		}
		if scored := len(out.PromptScores); (i == 0) != (scored == 9) {
			t.Errorf("token %d: %d prompt scores", i, scored)
		}
	}
	scores := b.outs["r"][0].PromptScores
	if scores[0].Logprob != 0 || scores[0].Rank != 0 || scores[1].Rank < 1 || scores[1].Logprob >= 0 {
		t.Errorf("prompt scores %+v", scores)
	}

	b = newBench(t, nil)
	req = greedy("ids", prompt(9, 1), 2)
	req.Sampling.Logprobs, req.Sampling.LogprobIDs = &none, []uint32{400, 300}
	b.run(b.p, req)
	if c := b.outs["ids"][0].Token.Candidates; len(c) != 2 || c[0].ID != 400 || c[0].Rank != 1 || c[1].ID != 300 || c[1].Rank != 2 {
		t.Errorf("chosen candidates %+v", c)
	}
	b = newBench(t, nil)
	req = greedy("biased", prompt(9, 1), 2)
	req.Sampling.Logprobs, req.Sampling.Bias = &none, map[uint32]float64{505: 90}
	b.run(b.p, req)
	if tok := b.outs["biased"][0].Token; tok.ID != 505 || tok.Rank < 100 || tok.Logprob > -5 {
		t.Errorf("a forced token is rated by the model's own logits: %+v", *tok)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no block size": func(c *Config) { c.BlockSize = 0 },
		"null only":     func(c *Config) { c.Blocks = 1 },
		"too long":      func(c *Config) { c.MaxModelLen = c.Blocks * c.BlockSize },
		"short steps":   func(c *Config) { c.MaxBatchedTokens = c.MaxSeqs - 1 },
		"no lease":      func(c *Config) { c.Lease = 0 },
		"no words":      func(c *Config) { c.Vocab.Words = nil },
		"word outside":  func(c *Config) { c.Vocab.Words = []uint32{512} },
		"eos outside":   func(c *Config) { c.Vocab.EOS = 512 },
	} {
		cfg := testConfig("x")
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Rules: death-streams, blocks-empty.
func TestDeath(t *testing.T) {
	b := newBench(t, nil)
	ids := prompt(9, 1)
	_, out := b.run(b.p, prefill("p", ids))
	params := out.HandOff.Params("p", 1)
	params["remote_block_ids"] = []any{}
	if err := b.d.Add(greedy("other", ids, 50)); err != nil {
		t.Fatal(err)
	}
	b.step()
	if err := b.d.Add(Request{ID: "d", Prompt: ids, MaxTokens: 5, Transfer: ParseTransfer(params)}); err != nil {
		t.Fatal(err)
	}
	b.d.Schedule(b.now)
	for _, out := range b.d.Take() {
		b.outs[out.ID] = append(b.outs[out.ID], out)
	}
	for _, id := range []string{"other", "d"} {
		if _, out := b.result(id); out.Reason != Fatal {
			t.Errorf("%s ended with %v", id, out.Reason)
		}
	}
	b.d.Cancel("other", Aborted)
	b.d.Apply(b.now)
	if err := b.d.Add(greedy("late", ids, 5)); err == nil || !b.d.Dead() || len(b.d.Take()) != 0 {
		t.Error("the dead engine goes on")
	}
	if _, ok := b.d.NextDeadline(); ok || b.d.Schedule(b.now).Busy {
		t.Error("the dead engine has work")
	}
}

// FuzzTransfer: whatever a hand-off says, the engine neither panics nor loses blocks while it lives.
func FuzzTransfer(f *testing.F) {
	f.Add(uint16(9), 0, 3.0, "remote_port", true)
	f.Add(uint16(1), 2, -1.0, "tp_size", false)
	f.Add(uint16(30), 1, 1e9, "remote_block_ids", true)
	f.Fuzz(func(t *testing.T, n uint16, blocks int, id float64, drop string, answer bool) {
		b := newBench(t, nil)
		list := make([]any, max(0, blocks%20))
		for i := range list {
			list[i] = id + float64(i)
		}
		params := (&HandOff{EngineID: "P", RequestID: "r"}).Params("p", 1)
		params["remote_block_ids"] = []any{list}
		delete(params, drop)
		src := ParseTransfer(params)
		if err := b.d.Add(Request{ID: "d", Prompt: prompt(int(n%40)+1, 1), MaxTokens: 3, Transfer: src}); err != nil {
			t.Fatal(err)
		}
		b.stall = !answer
		for range 10 {
			b.step()
		}
		b.d.Cancel("d", Aborted)
		if b.stall {
			b.unstall()
		}
		b.step()
		if s := b.d.Stats(); !s.Dead && s.UsedBlocks != 0 && (src.Consume == nil || src.Consume.Defect != MissingKey) {
			t.Fatalf("%+v", s)
		}
	})
}
