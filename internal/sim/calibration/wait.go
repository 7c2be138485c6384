package calibration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"remora/internal/sleep"
)

// patience bounds every wait that the scenario gives no limit for.
const patience = 30 * time.Second

// over waits for a call's end.
func over(ctx context.Context, c *call) error { return signal(ctx, c.done) }

var errPatience = errors.New("waited long enough")

func signal(ctx context.Context, ready <-chan struct{}) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-ready:
		return nil
	case <-timer.C:
		return errPatience
	case <-ctx.Done():
		return ctx.Err()
	}
}

func wait(ctx context.Context, text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrScenario, err)
	}
	if !sleep.For(ctx, d) {
		return ctx.Err()
	}
	return nil
}

// window reads 2s, which is at most two seconds, or 10s..13s.
func window(text string) (low, high time.Duration, err error) {
	from, to, both := strings.Cut(text, "..")
	if !both {
		from, to = "0s", text
	}
	if low, err = time.ParseDuration(from); err == nil {
		high, err = time.ParseDuration(to)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %w", ErrScenario, err)
	}
	return low, high, nil
}

// pollEvery is the pause between two looks at an engine.
const pollEvery = 20 * time.Millisecond

// poll looks until ok, or until within has passed, and returns how long it took since the given time.
func poll(ctx context.Context, since time.Time, within time.Duration, look func() (ok bool, err error)) (time.Duration, error) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		ok, err := look()
		took := time.Since(since)
		if err != nil || ok {
			return took, err
		}
		if took > within {
			return took, fmt.Errorf("not within %v", within)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return took, ctx.Err()
		}
	}
}
