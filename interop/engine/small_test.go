package engine

import (
	"testing"
	"time"
)

// TestSmallPair drives a real pair with little memory and a short lease: first behind two sidecars and the stock frontend,
// with clients that leave at every moment and in every way; then alone, through the calibration, whose last rows cost it its
// life.
func TestSmallPair(t *testing.T) {
	p, d := startSmallPair(t)
	t.Run("leaving", func(t *testing.T) {
		m := newMatrix(t, p, d)
		m.part("kills", m.testKills)
		m.part("resets", m.testResets)
		m.part("crowd", func() { m.testCrowd(2 * time.Minute) })
		m.on("death", m.testDeath)
	})
	t.Run("calibration", func(t *testing.T) { calibrate(t, p, d) })
}
