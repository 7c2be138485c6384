package load

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Result is one measurement.
type Result struct {
	Tally

	Seconds  float64            `json:"seconds"`           // of the measured span
	Tokens   int64              `json:"tokens"`            // that arrived in it
	Requests int                `json:"requests"`          // that ended in it (Loop)
	CPU      map[string]float64 `json:"cpu"`               // used in it, in microseconds, by process
	RSS      map[string]int64   `json:"rss"`               // in bytes, at its end, with the streams open (Hold)
	Codec    string             `json:"codec"`             // of the bodies
	Mallocs  *float64           `json:"mallocs,omitempty"` // of a sidecar written in Go
	First    Latency            `json:"first"`             // from the request to its first token
	Later    Latency            `json:"later"`             // from the engine's stamp to here
}

// patience is how long nothing may happen before a run is given up.
const patience = 30 * time.Second

var errStuck = errors.New("nothing has happened for a while")

// wait waits, for as long as ctx lasts.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// HoldConfig says how to hold streams.
type HoldConfig struct {
	Streams  int
	Prompt   int
	Interval time.Duration // between the tokens of a stream; 0: as fast as can be
	Warm     time.Duration // after the last stream has its first token
	Window   time.Duration // that is measured
	Probes   int           // requests that measure the first token, one after the other, after the window
	Metrics  string        // URL of the sidecar's metrics; empty: allocations are not counted
}

// Hold keeps streams open: it opens them one by one, measures a window in which all run, and kills them.
func (c *Client) Hold(ctx context.Context, cfg HoldConfig, watched Watched) (result Result, err error) {
	const forever = 100_000_000
	shape := Shape{Prompt: cfg.Prompt, Tokens: forever, Interval: cfg.Interval}
	t, err := newTemplate(c.worker, shape, c.address)
	if err != nil {
		return result, err
	}
	c.expect(cfg.Streams+cfg.Probes, make(chan struct{}, cfg.Streams+cfg.Probes), nil)
	// Spread over the interval, so that the tokens of the streams do not come in step.
	gap := max(cfg.Interval/time.Duration(cfg.Streams), time.Millisecond)
	opening := time.Now()
	for i := range cfg.Streams {
		if err = wait(ctx, time.Until(opening.Add(time.Duration(i)*gap))); err != nil {
			return result, err
		}
		if err = c.senders[i%len(c.senders)].send(t, shape); err != nil {
			return result, err
		}
	}
	if err = c.begun(ctx, cfg.Streams); err != nil {
		return Result{Tally: c.Tally()}, err
	}
	if err = wait(ctx, cfg.Warm); err != nil {
		return result, err
	}

	count := mallocs{url: cfg.Metrics}
	if err = count.begin(ctx); err != nil {
		return result, err
	}
	first, later := newHistogram(), newHistogram()
	c.measure(nil, later)
	cpu, err := watched.cpu()
	if err != nil {
		return result, err
	}
	begun, before := time.Now(), c.Tally()
	if err = wait(ctx, cfg.Window); err != nil {
		return result, err
	}
	after := c.Tally()
	result.Seconds = time.Since(begun).Seconds()
	if result.CPU, err = watched.span(cpu); err != nil {
		return result, err
	}
	c.measure(nil, nil)
	if result.Mallocs, err = count.end(ctx); err != nil {
		return result, err
	}
	if result.RSS, err = watched.memory(); err != nil {
		return result, err
	}
	if err = c.probe(ctx, cfg, first); err != nil {
		return result, err
	}
	result.Tokens = after.Tokens - before.Tokens
	result.First, result.Later = first.latency(), later.latency()
	// Before the kill: whatever ended by then was not meant to.
	result.Tally = c.Tally()
	c.killAll()
	return result, nil
}

// begun waits until every stream has had a token.
func (c *Client) begun(ctx context.Context, streams int) error {
	for since := time.Now(); ; {
		now := c.Tally()
		switch {
		case now.Errors > 0 || time.Since(since) > patience:
			return fmt.Errorf("%w: %d of %d streams have begun", errStuck, now.Started, streams)
		case now.Started >= streams:
			return nil
		}
		if err := wait(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// probe measures first tokens while the streams run.
func (c *Client) probe(ctx context.Context, cfg HoldConfig, first *histogram) error {
	shape := Shape{Prompt: cfg.Prompt, Tokens: 2, Interval: time.Millisecond}
	t, err := newTemplate(c.worker, shape, c.address)
	if err != nil {
		return err
	}
	c.measure(first, nil)
	defer c.measure(nil, nil)
	for i := range cfg.Probes {
		if err := c.senders[i%len(c.senders)].send(t, shape); err != nil {
			return err
		}
		select {
		case <-c.done:
		case <-time.After(patience):
			return fmt.Errorf("%w: probe %d of %d", errStuck, i, cfg.Probes)
		}
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// LoopConfig says how to send short requests.
type LoopConfig struct {
	Shape

	Requests int    // that are measured
	Warm     int    // sent before them
	AtOnce   int    // under way at a time
	Killed   int    // so many of ten are killed: in turn at the dial-back, after the first and after the second token
	Metrics  string // URL of the sidecar's metrics; empty: allocations are not counted
}

// Loop sends short requests and waits for the last.
func (c *Client) Loop(ctx context.Context, cfg LoopConfig, watched Watched) (result Result, err error) {
	t, err := newTemplate(c.worker, cfg.Shape, c.address)
	if err != nil {
		return result, err
	}
	if cfg.Warm > 0 {
		if _, err = c.batch(ctx, t, cfg, cfg.Warm); err != nil {
			return Result{Tally: c.Tally()}, err
		}
	}
	count := mallocs{url: cfg.Metrics}
	if err = count.begin(ctx); err != nil {
		return result, err
	}
	first, later := newHistogram(), newHistogram()
	c.measure(first, later)
	defer c.measure(nil, nil)
	cpu, err := watched.cpu()
	if err != nil {
		return result, err
	}
	begun := time.Now()
	result.Tally, err = c.batch(ctx, t, cfg, cfg.Requests)
	if err != nil {
		return result, err
	}
	result.Seconds = time.Since(begun).Seconds()
	if result.CPU, err = watched.span(cpu); err != nil {
		return result, err
	}
	if result.Mallocs, err = count.end(ctx); err != nil {
		return result, err
	}
	result.Tokens, result.Requests = result.Tally.Tokens, cfg.Requests
	result.First, result.Later = first.latency(), later.latency()
	result.RSS, err = watched.memory()
	return result, err
}

// batch sends n requests and waits for them.
func (c *Client) batch(ctx context.Context, t *template, cfg LoopConfig, n int) (Tally, error) {
	over := make(chan struct{}, n)
	c.expect(n, over, func(i int) int {
		if i%10 >= cfg.Killed {
			return -1
		}
		return i % 3
	})
	open := 0
	await := func() error {
		select {
		case <-over:
			open--
			return nil
		case <-time.After(patience):
			return fmt.Errorf("%w: %d requests are open", errStuck, open)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for i := range n {
		for open >= cfg.AtOnce {
			if err := await(); err != nil {
				return c.Tally(), err
			}
		}
		if err := c.senders[i%len(c.senders)].send(t, cfg.Shape); err != nil {
			return c.Tally(), err
		}
		open++
	}
	for open > 0 {
		if err := await(); err != nil {
			return c.Tally(), err
		}
	}
	return c.Tally(), nil
}
