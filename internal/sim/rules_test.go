package sim

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"remora/internal/sim/calibration"
	"remora/internal/sim/core"
	pb "remora/proto/vllm"
)

// calibrationRow begins the citations by rows.
const calibrationRow = "calibration row "

// citations returns the tests and the calibration rows that cite each rule: tests do in a line of their comment that begins
// with "Rules:" and ends with a full stop.
func citations(t *testing.T) map[string][]string {
	t.Helper()
	cites := map[string][]string{}
	list := regexp.MustCompile(`(?s)\bRules: ([a-z0-9, \n-]+)\.`)
	for _, dir := range []string{".", "core", "kvpub"} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range tree.Decls {
				f, ok := decl.(*ast.FuncDecl)
				if !ok || !strings.HasPrefix(f.Name.Name, "Test") {
					continue
				}
				for _, m := range list.FindAllStringSubmatch(f.Doc.Text(), -1) {
					for _, rule := range strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }) {
						cites[rule] = append(cites[rule], filepath.Join(dir, f.Name.Name))
					}
				}
			}
		}
	}
	rows, err := calibration.Rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		for _, rule := range row.Rules {
			cites[rule] = append(cites[rule], calibrationRow+row.Name)
		}
	}
	return cites
}

// TestRulesAreShown: every rule is cited by a test or says why it is outside; nothing cites a rule that is not there.
func TestRulesAreShown(t *testing.T) {
	cites := citations(t)
	known := map[string]bool{}
	shown, calibrated := 0, 0
	for _, rule := range Rules() {
		if known[rule.Name] || rule.Name == "" || rule.Section == "" || rule.Row == "" {
			t.Errorf("rule %+v has no name of its own, or nothing to say", rule)
		}
		known[rule.Name] = true
		switch by := cites[rule.Name]; {
		case rule.Outside != "" && len(by) > 0:
			t.Errorf("rule %s is outside and cited by %v", rule.Name, by)
		case rule.Outside == "" && len(by) == 0:
			t.Errorf("rule %s (%s: %s) is cited by no test", rule.Name, rule.Section, rule.Row)
		case rule.Outside == "":
			shown++
			if slices.ContainsFunc(by, func(name string) bool { return strings.HasPrefix(name, calibrationRow) }) {
				calibrated++
			}
		}
	}
	for rule, by := range cites {
		if !known[rule] {
			t.Errorf("%v cites the rule %s, which is not there", by, rule)
		}
	}
	t.Logf("rules: %d, %d of them shown by tests, %d by calibration rows that a real pair is held to as well", len(known), shown, calibrated)
}

// TestResetBeforeHandler: a request whose client has gone before the handler looks at it is never submitted. As a decode it
// leaves P alone with its lease.
//
// Rules: drop-before-handler, d-reset-before-handler.
func TestResetBeforeHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, _ := pair(t, nil)
		prompt := words(30, 1)
		h := p.generate(t, prefillRequest(t, "p", prompt)).handOff(t)
		gone, leave := context.WithCancel(t.Context())
		leave()
		for range 50 { // it must not be luck
			headers := false
			err := (&inference{s: d.Server}).generate(gone, decodeRequest("r", prompt, 5, h),
				func() error { headers = true; return nil }, func(*pb.GenerateResponse) error { return nil })
			if status.Code(err) != codes.Canceled || headers {
				t.Fatalf("%v, headers %v", err, headers)
			}
		}
		time.Sleep(11 * time.Second)
		if s := d.Stats(); s.Finished != [core.Fatal + 1]int{} || s.Steps != 0 {
			t.Errorf("D has worked: %+v", s.Counters)
		}
		if s := p.Stats(); s.Held != 1 {
			t.Errorf("P: %+v", s)
		}
		time.Sleep(1100 * time.Millisecond)
		wantBase(t, p)
	})
}

// TestAbortOvertakesItsRequest: the id is not registered yet, so nothing is aborted.
//
// Rules: abort-early-lost.
func TestAbortOvertakesItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", nil)
		e.abort(t, "r")
		if r := e.generate(t, request("r", words(9, 1), 5)); r.finish().GetFinishReason() != pb.FinishInfo_LENGTH {
			t.Errorf("%v %v", r.err, r.finish())
		}
	})
}

// TestManyStreams: there is no limit for the requests of one connection.
//
// Rules: many-streams.
func TestManyStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, network{}, "e", nil)
		streams := make([]grpc.ServerStreamingClient[pb.GenerateResponse], 230)
		for i := range streams {
			streams[i] = e.submit(t.Context(), t, request("r", words(9, 1), 50))
		}
		synctest.Wait()
		if s := e.Stats(); s.Running+s.Waiting != len(streams) {
			t.Errorf("%+v", s)
		}
		e.abort(t, "r")
		for _, stream := range streams {
			if r := readAll(stream); r.finish().GetFinishReason() != pb.FinishInfo_ABORTED {
				t.Errorf("%v %v", r.err, r.finish())
			}
		}
		wantBase(t, e)
	})
}
