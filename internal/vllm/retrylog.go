package vllm

import (
	"context"
	"log/slog"
	"time"
)

// retryLogEvery is how often an unchanged cause is logged again.
const retryLogEvery = 30 * time.Second

// retryLog writes the causes of repeated attempts: when the text changes, else at most each 30 s. It belongs to the
// goroutine that retries.
type retryLog struct {
	log        *slog.Logger
	last       string
	at         time.Time
	suppressed int
}

func (r *retryLog) note(ctx context.Context, level slog.Level, cause, message string, args ...any) {
	if !r.log.Enabled(ctx, level) {
		return
	}
	now := time.Now()
	if cause == r.last && now.Sub(r.at) < retryLogEvery {
		r.suppressed++
		return
	}
	r.log.Log(ctx, level, message, append(args, "cause", cause, "suppressed", r.suppressed)...)
	r.last, r.at, r.suppressed = cause, now, 0
}
