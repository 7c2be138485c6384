package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// side is one of the sidecars, and what was measured of it.
type side struct {
	name    string
	argv    []string // without the endpoint
	file    string   // that holds its code
	samples map[string][]float64
	errors  map[string]int // by scenario
	texts   []string       // of the first errors
}

// sides are those that the options ask for, Remora first.
func (o options) sides() ([]*side, error) {
	if o.remora == "" {
		return nil, errors.New("-remora or REMORA_BIN must name Remora's binary")
	}
	argv := []string{o.remora, "sidecar"}
	if o.engine != "" {
		argv = append(argv, "--engine-transport", o.engine)
	}
	sides := []*side{newSide("Remora", o.remora, argv...)}
	if o.rust != "" {
		python := filepath.Join(o.rust, "bin", "python")
		if _, err := os.Stat(python); err != nil {
			return nil, fmt.Errorf("the stock Dynamo: %w", err)
		}
		code, err := filepath.Glob(filepath.Join(o.rust, "lib", "python3*", "site-packages", "dynamo", "_core*.so"))
		if err != nil || len(code) != 1 {
			return nil, fmt.Errorf("the stock Dynamo's library: %d files found (%w)", len(code), os.ErrNotExist)
		}
		sides = append(sides, newSide("Rust", code[0], python, "-m", "dynamo.vllm.sidecar"))
	}
	for _, s := range sides {
		info, err := os.Stat(s.file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		s.add("size", float64(info.Size())/1e6)
	}
	return sides, nil
}

func newSide(name, file string, argv ...string) *side {
	return &side{name: name, argv: argv, file: file, samples: map[string][]float64{}, errors: map[string]int{}}
}

func (s *side) add(metric string, value float64) {
	s.samples[metric] = append(s.samples[metric], value)
}

// failed books answers that went wrong.
func (s *side) failed(scenario string, n int, texts []string) {
	const most = 10
	s.errors[scenario] += n
	for _, text := range texts {
		if len(s.texts) < most {
			s.texts = append(s.texts, s.name+", "+scenario+": "+text)
		}
	}
}

// wrong is the number of answers that went wrong.
func (s *side) wrong() int {
	n := 0
	for _, wrong := range s.errors {
		n += wrong
	}
	return n
}
