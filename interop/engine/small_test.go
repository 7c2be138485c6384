package engine

import "testing"

// TestSmallPair drives a real pair with little memory and a short lease: the calibration.
func TestSmallPair(t *testing.T) {
	p, d := startSmallPair(t)
	t.Run("calibration", func(t *testing.T) { calibrate(t, p, d) })
}
