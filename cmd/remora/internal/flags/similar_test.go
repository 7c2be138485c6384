package flags

import (
	"math"
	"strings"
	"testing"
)

func TestJaro(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want float64
	}{
		// The first three are the examples of the literature.
		{"MARTHA", "MARHTA", 0.944444},
		{"DIXON", "DICKSONX", 0.766667},
		{"DWAYNE", "DUANE", 0.822222},
		{"same", "same", 1},
		{"abc", "xyz", 0},
		{"", "x", 0},
		{"a", "a", 1},
		{"é", "é", 1},
	} {
		if got := jaro([]rune(c.a), []rune(c.b)); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("jaro(%q, %q) = %f, want %f", c.a, c.b, got, c.want)
		}
	}
}

func TestSimilar(t *testing.T) {
	words := []string{"agg", "prefill", "decode"}
	for text, want := range map[string]string{
		"pre": "prefill", "decoed": "decode", "zz": "", "": "", "agg": "agg", strings.Repeat("prefill", 1000): "",
	} {
		if got := similar(text, words); got != want {
			t.Errorf("similar(%.20q) = %q, want %q", text, got, want)
		}
	}
}
