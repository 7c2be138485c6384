package calibration

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestScenario(t *testing.T) {
	rows, err := Rows()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSortedFunc(rows, func(a, b Row) int {
		return strings.Compare(map[bool]string{true: "x"}[a.Fatal], map[bool]string{true: "x"}[b.Fatal])
	}) {
		t.Error("a fatal row comes before others")
	}
	for text, want := range map[string]string{
		"end a OK":                             "line 1: before the first row",
		"row a\nrules r\nwait 1s\nrow a":       "line 4: a row has one name of its own",
		"row a b":                              "line 1: a row has one name of its own",
		"row a\nrules r\n\n# x\nnonsense a":    `line 5: unknown step "nonsense"`,
		"row a\nrules r\nfree P # 1s":          "line 3: free needs 2 words",
		"row a\nwait 1s":                       "row a shows no rule or has no steps",
		"row a\nrules r\nfatal\nrow b\nwait 1": "row a shows no rule or has no steps",
	} {
		if _, err := parse(text); !errors.Is(err, ErrScenario) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestPrompts(t *testing.T) {
	a, b := prompt("a", 40), prompt("b", 40)
	if !slices.Equal(a[:30], prompt("a", 30)) || slices.Equal(a, b) || len(a) != 40 {
		t.Error(a, b)
	}
	for _, id := range a {
		if id < 'a' || id > 'z' {
			t.Error(id)
		}
	}
}
