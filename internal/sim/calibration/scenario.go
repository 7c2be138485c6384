package calibration

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
)

//go:embed scenario.txt
var scenario string

// ErrScenario is wrapped by what is wrong with the text of a scenario.
var ErrScenario = errors.New("calibration: scenario")

// Row is one row of the measured tables with the steps that show it.
type Row struct {
	Name  string
	Rules []string // the simulator's rules that it shows
	Fatal bool     // costs engines: run it after all others

	steps []step
}

type step struct {
	line int
	verb string
	args []string
}

// verbs says how many words each needs at least; see the head of scenario.txt.
func verbs() map[string]int {
	return map[string]int{
		"prefill": 2, "open": 3, "edit": 3, "headers": 1, "tokens": 2, "wait": 1, "mark": 0, "drop": 1, "abort": 2, "end": 2,
		"free": 2, "used": 2, "waiting": 2, "running": 2, "reuse": 1, "release": 1, "stall": 1, "kill": 1, "restart": 1,
	}
}

// Rows returns the scenario, fatal rows last.
func Rows() ([]Row, error) {
	rows, err := parse(scenario)
	slices.SortStableFunc(rows, func(a, b Row) int {
		switch {
		case a.Fatal == b.Fatal:
			return 0
		case a.Fatal:
			return 1
		default:
			return -1
		}
	})
	return rows, err
}

// parse reads the lines of a scenario. The first wrong one is the error.
func parse(text string) ([]Row, error) {
	var rows []Row
	names := map[string]bool{}
	n := 0
	for raw := range strings.Lines(text) {
		n++
		raw, _, _ = strings.Cut(raw, "#")
		words := strings.Fields(raw)
		if len(words) == 0 {
			continue
		}
		verb, args := words[0], words[1:]
		if verb == "row" {
			if len(args) != 1 || names[args[0]] {
				return nil, fmt.Errorf("%w: line %d: a row has one name of its own", ErrScenario, n)
			}
			names[args[0]] = true
			rows = append(rows, Row{Name: args[0]})
			continue
		}
		if len(rows) == 0 {
			return nil, fmt.Errorf("%w: line %d: before the first row", ErrScenario, n)
		}
		row := &rows[len(rows)-1]
		switch least, known := verbs()[verb]; {
		case verb == "rules":
			row.Rules = append(row.Rules, args...)
		case verb == "fatal":
			row.Fatal = true
		case !known:
			return nil, fmt.Errorf("%w: line %d: unknown step %q", ErrScenario, n, verb)
		case len(args) < least:
			return nil, fmt.Errorf("%w: line %d: %s needs %d words", ErrScenario, n, verb, least)
		default:
			row.steps = append(row.steps, step{line: n, verb: verb, args: args})
		}
	}
	for _, row := range rows {
		if len(row.Rules) == 0 || len(row.steps) == 0 {
			return nil, fmt.Errorf("%w: row %s shows no rule or has no steps", ErrScenario, row.Name)
		}
	}
	return rows, nil
}
