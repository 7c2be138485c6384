// Package sleep owns the pause that ends with a context, which every loop that tries again needs. It starts no goroutine, and
// its timer does not outlive the call.
package sleep

import (
	"context"
	"time"
)

// For waits for a time, or until ctx ends, and reports whether ctx lasted. A time of 0 or less only looks at ctx.
func For(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
