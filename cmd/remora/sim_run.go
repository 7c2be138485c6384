package main

import (
	"context"
	"io"
)

// runSim serves until stop ends.
func runSim(_, _ context.Context, _ simConfig, _ io.Writer) error {
	return refusal("the simulator is not wired")
}
