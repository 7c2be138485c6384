package main

import (
	"context"
	"log/slog"
)

// runSidecar serves until stop ends, and at once ends when cut does.
func runSidecar(_, _ context.Context, _ sidecarConfig, _ *slog.Logger) error {
	return refusal("the worker is not wired")
}
