package sleep

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	for _, tc := range []struct {
		name   string
		d, end time.Duration // end of the context; 0: it has ended, below: it never does
		lasts  bool
		after  time.Duration
	}{
		{"whole", time.Second, -1, true, time.Second},
		{"cut short", time.Second, time.Millisecond, false, time.Millisecond},
		{"ended before", time.Second, 0, false, 0},
		{"nothing", 0, -1, true, 0},
		{"nothing, ended before", -1, 0, false, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				switch {
				case tc.end == 0:
					cancel()
				case tc.end > 0:
					time.AfterFunc(tc.end, cancel)
				}
				start := time.Now()
				if got := For(ctx, tc.d); got != tc.lasts || time.Since(start) != tc.after {
					t.Errorf("%v after %v, want %v after %v", got, time.Since(start), tc.lasts, tc.after)
				}
			})
		})
	}
}
