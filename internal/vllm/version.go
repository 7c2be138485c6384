package vllm

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is an engine's release. The zero Version is an unknown one, older than all others.
type Version struct{ Major, Minor, Patch int }

// ParseVersion reads the front of a version text, "0.32.0", "v0.32", "0.32.1rc1", "0.33.0.dev41+g1a2b3c4", and reports
// false when there are no two numbers at its front. What follows them is of no account here.
func ParseVersion(text string) (Version, bool) {
	rest := strings.TrimPrefix(strings.TrimSpace(text), "v")
	var numbers [3]int
	for i := range numbers {
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
		number, err := strconv.Atoi(digits)
		if err != nil {
			// No digits, or too many for a version.
			if i < 2 || digits != "" {
				return Version{}, false
			}
			break
		}
		numbers[i] = number
		after, dot := strings.CutPrefix(rest[len(digits):], ".")
		if !dot {
			if i == 0 {
				return Version{}, false
			}
			break
		}
		rest = after
	}
	return Version{numbers[0], numbers[1], numbers[2]}, true
}

// AtLeast reports whether the version is that release or a later one.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// String is major.minor.patch.
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }
