package main

import (
	"fmt"
	"time"
)

// part is what one run of engine and sidecar is put through.
type part struct {
	name  string
	once  bool // in the first round only
	steps []step
}

// step is one run of the client.
type step struct {
	name string   // prefix of its metrics
	args []string // the client's
	kind kind
}

// kind says what is made of a step's result.
type kind uint8

const (
	perToken   kind = iota // CPU per token, memory at the end of the window, latency
	perRequest             // CPU per request
	burst                  // memory after it
)

func hold(streams int, interval, window time.Duration, probes int) step {
	name := fmt.Sprintf("paced%d", streams)
	if interval == 0 {
		name = fmt.Sprintf("flat%d", streams)
	}
	return step{name: name, kind: perToken, args: []string{
		"-hold", fmt.Sprint(streams), "-interval", interval.String(), "-window", window.String(), "-probes", fmt.Sprint(probes),
		"-warm", min(window/4, 2*time.Second).String(),
	}}
}

func short(prompt, requests, atOnce int) step {
	return step{name: fmt.Sprintf("short%d", prompt), kind: perRequest, args: []string{
		"-prompt", fmt.Sprint(prompt), "-requests", fmt.Sprint(requests), "-warm-requests", fmt.Sprint(max(requests/10, 1)),
		"-at-once", fmt.Sprint(atOnce), "-tokens", "2", "-interval", "2ms",
	}}
}

// bursts are waves of streams with a quiet moment after each.
func bursts(waves, streams, tokens int) []step {
	steps := make([]step, waves)
	for i := range steps {
		steps[i] = step{name: fmt.Sprintf("burst%d", i+1), kind: burst, args: []string{
			"-requests", fmt.Sprint(streams), "-at-once", fmt.Sprint(streams), "-tokens", fmt.Sprint(tokens), "-interval", "20ms",
		}}
	}
	return steps
}

func churn(requests int) []step {
	cycle := func(name string, n int) step {
		return step{name: name, kind: burst, args: []string{
			"-requests", fmt.Sprint(n), "-at-once", "64", "-tokens", "2", "-interval", "2ms", "-killed", "3",
		}}
	}
	return []step{cycle("churn1", max(requests/50, 1)), cycle("churn2", requests)}
}

const longPrompt = 128_000

// fullPlan is what one round of one side does: about two and a half minutes, and the churn.
func fullPlan(churned int) []part {
	const window = 8 * time.Second
	plan := []part{
		{name: "paced", steps: []step{
			hold(1, 20*time.Millisecond, 15*time.Second, 100), hold(64, 20*time.Millisecond, window, 100),
			hold(256, 20*time.Millisecond, window, 100), hold(1000, 100*time.Millisecond, window, 100),
		}},
		// Each by itself: a sidecar that has broken under one must not fail the next.
		{name: "flat", steps: []step{hold(64, 0, 5*time.Second, 0)}},
		{name: "flat", steps: []step{hold(256, 0, 5*time.Second, 0)}},
		{name: "flat", steps: []step{hold(1000, 0, 5*time.Second, 0)}},
		{name: "short", steps: []step{short(128, 4000, 16), short(8000, 2000, 16), short(longPrompt, 50, 1)}},
		{name: "bursts", steps: bursts(8, 1000, 50)},
	}
	if churned > 0 {
		plan = append(plan, part{name: "churn", once: true, steps: churn(churned)})
	}
	return plan
}

// quickPlan runs each kind of step once, for a moment.
func quickPlan() []part {
	const window = 300 * time.Millisecond
	return []part{
		{name: "paced", steps: []step{hold(1, 20*time.Millisecond, window, 3), hold(64, 20*time.Millisecond, window, 3)}},
		{name: "flat", steps: []step{hold(64, 0, window, 0)}},
		{name: "short", steps: []step{short(128, 100, 4), short(8000, 50, 4), short(longPrompt, 3, 1)}},
		{name: "bursts", steps: bursts(2, 100, 5)},
		{name: "churn", steps: churn(500)},
	}
}
