package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestSummary(t *testing.T) {
	t.Parallel()
	const (
		pass    = `{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}` + "\n"
		skipOut = `{"Action":"output","Package":"p","Test":"TestS","Output":"=== RUN   TestS\n"}` + "\n" +
			`{"Action":"output","Package":"p","Test":"TestS","Output":"    a_test.go:3: needs a moon\n"}` + "\n" +
			`{"Action":"skip","Package":"p","Test":"TestS"}` + "\n"
		fail = `{"Action":"output","Package":"p","Test":"TestF","Output":"    a_test.go:9: got 1\n"}` + "\n" +
			`{"Action":"fail","Package":"p","Test":"TestF"}` + "\n"
		packageFail = `{"Action":"output","Package":"p","Output":"panic: no\n"}` + "\n" + `{"Action":"fail","Package":"p"}` + "\n"
	)
	for _, tc := range []struct {
		name, events string
		noSkips      bool
		ok           bool
		want         []string // must stand in the output, in this order
	}{
		{"all well", pass, true, true, []string{"\n1 passed, 0 failed\n"}},
		{"nothing ran", "", true, true, []string{"\n0 passed, 0 failed\n"}},
		{"skip tells why", pass + skipOut, false, true, []string{"TestS: a_test.go:3: needs a moon", "\n1 passed, 0 failed, 1 skipped\n"}},
		{"skip fails in CI", pass + skipOut, true, false, []string{"count as failed", "\n1 passed, 1 failed\n"}},
		{"a discarded fuzz input is none", strings.ReplaceAll(pass+skipOut, "TestS", "FuzzS/1"), true, true, []string{"\n1 passed, 0 failed\n"}},
		{"a failed test is counted once", fail + packageFail, true, false, []string{"--- FAILED p TestF", "got 1", "\n0 passed, 1 failed\n"}},
		{"a package that fails alone counts", packageFail, true, false, []string{"panic: no", "\n0 passed, 1 failed\n"}},
		{
			"a test binary that died says why",
			`{"Action":"output","Package":"p","Test":"TestD","Output":"SIGSEGV: no\n"}` + "\n" + packageFail, true, false,
			[]string{"panic: no", "--- NOT ENDED p TestD\nSIGSEGV: no\n", "\n0 passed, 1 failed\n"},
		},
		{
			"a result of a package is shown", `{"Action":"output","Package":"p","Output":"== 3 equal\n"}` + "\n" + pass, true, true,
			[]string{"== 3 equal\n", "\n1 passed, 0 failed\n"},
		},
		{
			"a summary of a passing test is shown",
			`{"Action":"output","Package":"p","Test":"TestW","Output":"    w_test.go:9: SUMMARY: 3 sequences\n"}` + "\n" + pass, true, true,
			[]string{"    TestW: 3 sequences\n", "\n1 passed, 0 failed\n"},
		},
		{
			"a summary in parts is put together and folded",
			`{"Action":"output","Package":"p","Test":"TestW","Output":"    w_test.go:9: SUMMARY: 3 of` + strings.Repeat("x", wide) + `"}` + "\n" +
				`{"Action":"output","Package":"p","Test":"TestV","Output":"    v_test.go:9: SUMMARY: 1\n"}` + "\n" +
				`{"Action":"output","Package":"p","Test":"TestW","Output":"; 4; 5\n"}` + "\n" + pass, true, true,
			[]string{"    TestV: 1\n    TestW: 3 ofxx", "x;\n        4;\n        5\n", "\n1 passed, 0 failed\n"},
		},
		{
			"a long test gets a line, its parts do not",
			strings.ReplaceAll(pass, "0.1", "21.4") + strings.ReplaceAll(strings.ReplaceAll(pass, "0.1", "25"), "TestA", "TestA/x"), true, true,
			[]string{"    TestA: passed in 21 s\n\n2 passed, 0 failed\n"},
		},
		{"other lines are passed on", "warning\n" + pass, true, true, []string{"warning\n", "\n1 passed, 0 failed\n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			s := newSummary(&out)
			s.read(strings.NewReader(tc.events))
			if ok := s.close(tc.noSkips); ok != tc.ok {
				t.Errorf("close() = %v, want %v", ok, tc.ok)
			}
			rest := out.String()
			for _, want := range tc.want {
				_, after, found := strings.Cut(rest, want)
				if !found {
					t.Fatalf("output lacks %q:\n%s", want, out.String())
				}
				rest = after
			}
		})
	}
}

func TestRuns(t *testing.T) {
	t.Parallel()
	got := slices.Collect(runs([]string{"-race", "./...", "--", "-C", "x", "./..."}))
	if len(got) != 2 || !slices.Equal(got[0], []string{"-race", "./..."}) || !slices.Equal(got[1], []string{"-C", "x", "./..."}) {
		t.Errorf("runs = %q", got)
	}
}
