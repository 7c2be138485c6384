// Package remora_test holds the rules that no single package can keep: what a package must say about itself, which room
// may import which, what the production path must not link, and what may not stand anywhere in the tree. Each failure
// names the rule; to change a rule, change the table here.
package remora_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "remora/"

// arrows lists for each room the rooms that it imports, and no other may it import. A room covers the packages below it; the
// longest match counts. Tests may import what they like.
var arrows = map[string][]string{
	"cmd/remora":                {"cmd", "internal"},
	"internal/handoff":          {}, // pure: what it knows are its own events and actions
	"internal/dynamo/protocol":  {},
	"internal/tinymodel":        {},
	"internal/rawconn":          {},
	"internal/vllm":             {"internal/vllm", "internal/rawconn", "internal/zmq", "proto"},
	"internal/translate":        {"internal/dynamo/protocol", "proto"},
	"internal/zmq":              {}, // a leaf: sockets, whatever goes over them
	"internal/kvevents":         {"internal/zmq"},
	"internal/dynamo/modelcard": {"internal/dynamo/protocol"},
	"internal/dynamo/discovery": {},
	"internal/dynamo/status":    {},
	// The stores and planes of services stand apart: what a worker does not use at run time, its room does not know.
	"internal/dynamo/discovery/etcd":         {"internal/dynamo/discovery"},
	"internal/dynamo/requestplane/natsplane": {"internal/dynamo/requestplane", "internal/dynamo/discovery"},
	"internal/dynamo/requestplane":           {"internal/dynamo/protocol", "internal/rawconn"},
	"internal/dynamo/eventplane":             {"internal/dynamo/protocol"},
	"internal/kvrelay":                       {"internal/kvevents", "internal/dynamo/eventplane"},
	"internal/routing":                       {"internal/dynamo", "internal/kvevents", "internal/kvrelay", "internal/zmq"},
	"internal/worker": {
		"internal/handoff", "internal/translate", "internal/vllm", "internal/dynamo",
		"internal/kvevents", "internal/routing", "proto",
	},
	"internal/sim": {"internal/sim", "internal/tinymodel", "internal/zmq", "proto"},
	// A Dynamo client like any other: it meets workers on the wire alone.
	"internal/frontdoor": {"internal/dynamo", "internal/tinymodel"},
	// Tests alone import these; see TestRoomsOfTests.
	"internal/chaos":                            {},
	"internal/memnet":                           {},
	"internal/vllm/vllmtest":                    {"internal/memnet", "proto"},
	"internal/dynamo/eventplane/eventplanetest": {"internal/dynamo/eventplane"},

	"proto":             {},
	"interop":           {"interop", "internal/tinymodel"},                                // meets Remora as a program
	"bench":             {"bench", "internal/dynamo", "internal/tinymodel", "proto"},      // likewise
	"bench/cmd/profile": {"internal/dynamo", "internal/vllm", "internal/worker", "bench"}, // has a worker inside
	"tools":             {},
	everywhere:          {},
}

// everywhere is the one room that all others may import: a pause that ends with a context is nobody's own.
const everywhere = "internal/sleep"

// heavy are module paths that the rooms of the hot path must not link. The clients of etcd and NATS are in the binary, for a
// worker uses them where it is told to; but only cmd/remora, which reads that, and the two packages around them know of them.
// Kubernetes' is in no binary.
var heavy = regexp.MustCompile(`^(go\.etcd\.io|k8s\.io|sigs\.k8s\.io|github\.com/nats-io)/|^remora/internal/(sim|frontdoor|tinymodel)(/|$)`)

// pkg is what `go list -json` says about a package, as far as it is used here.
type pkg struct {
	Dir          string
	ImportPath   string
	Name         string
	GoFiles      []string
	Imports      []string
	TestGoFiles  []string
	XTestGoFiles []string
}

// packages lists those of all modules.
func packages(t *testing.T) []pkg {
	t.Helper()
	var all []pkg
	for _, dir := range []string{".", "interop", "bench"} { // three modules, one tree
		dec := json.NewDecoder(bytes.NewReader(run(t, "go", "list", "-C", dir, "-json=Dir,ImportPath,Name,GoFiles,Imports,TestGoFiles,XTestGoFiles", "./...")))
		for dec.More() {
			var p pkg
			if err := dec.Decode(&p); err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
		}
	}
	return all
}

func run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return out
}

// room returns the longest key of arrows that covers an import path.
func room(importPath string) (string, bool) {
	path := strings.TrimPrefix(importPath, module)
	for path != "." {
		if _, ok := arrows[path]; ok {
			return path, true
		}
		path = filepath.Dir(path)
	}
	return "", false
}

func TestImportArrows(t *testing.T) {
	used := map[string]map[string]bool{} // by room and what it may import
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue // tests only, like this package
		}
		name, ok := room(p.ImportPath)
		if !ok {
			t.Errorf("%s belongs to no room: say in arrows what it may import", p.ImportPath)
			continue
		}
		if used[name] == nil {
			used[name] = map[string]bool{}
		}
		for _, imported := range p.Imports {
			path, own := strings.CutPrefix(imported, module)
			if !own || path == everywhere {
				continue
			}
			i := slices.IndexFunc(arrows[name], func(a string) bool { return path == a || strings.HasPrefix(path, a+"/") })
			if i < 0 {
				t.Errorf("%s imports %s, which its room %s may not", p.ImportPath, imported, name)
				continue
			}
			used[name][arrows[name][i]] = true
		}
	}
	for name, allowed := range arrows {
		for _, arrow := range allowed {
			if !used[name][arrow] {
				t.Errorf("%s may import %s and does not: take the arrow away", name, arrow)
			}
		}
	}
}

// roomsOfTests are what programs must not link.
var roomsOfTests = []string{"internal/chaos", "internal/memnet", "internal/vllm/vllmtest", "internal/dynamo/eventplane/eventplanetest"}

func TestRoomsOfTests(t *testing.T) {
	for _, program := range packages(t) {
		if program.Name != "main" {
			continue
		}
		for dep := range strings.Lines(string(run(t, "go", "list", "-C", program.Dir, "-deps", "."))) {
			if path, own := strings.CutPrefix(strings.TrimSpace(dep), module); own && slices.Contains(roomsOfTests, path) {
				t.Errorf("%s links %s, which is for tests", program.ImportPath, path)
			}
		}
	}
}

// TestReadmeHasTheRooms wants each folder that holds packages in the README's table, above all that it imports: the table is the
// order in which a stranger reads.
func TestReadmeHasTheRooms(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, layout, _ := strings.Cut(string(text), "\n## Layout\n")
	place := func(room string) int { return strings.Index(layout, "`"+room+"`") }
	for _, pattern := range []string{"cmd/*", "internal/*", "internal/dynamo/*", "proto", "interop", "bench", "tools"} {
		rooms, err := filepath.Glob(pattern)
		if err != nil || len(rooms) == 0 {
			t.Errorf("%s: %d rooms, %v", pattern, len(rooms), err)
		}
		for _, room := range rooms {
			if room != "internal/dynamo" && place(room) < 0 {
				t.Errorf("%s is not in the README's layout", room)
			}
		}
	}
	for from, allowed := range arrows {
		for _, to := range allowed {
			if strings.HasPrefix(from, "internal/") && from != to && place(from) >= 0 && place(to) >= 0 && place(to) < place(from) {
				t.Errorf("the README's layout has %s above %s, which imports it", to, from)
			}
		}
	}
}

func TestSidecarPathIsLean(t *testing.T) {
	for dep := range strings.Lines(string(run(t, "go", "list", "-deps", "./internal/worker"))) {
		if dep = strings.TrimSpace(dep); heavy.MatchString(dep) {
			t.Errorf("internal/worker links %s", dep)
		}
	}
}

// TestPackageComments wants more of a package comment than a title: what the package owns, in two sentences at least. The
// sentences about goroutines and cancelling are for a reviewer to check.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 || strings.HasPrefix(p.ImportPath, module+"proto/") {
			continue // generated code speaks through its proto files
		}
		var comments []string
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc != nil {
				comments = append(comments, f.Doc.Text())
			}
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command " + filepath.Base(p.ImportPath) + " "
		}
		switch {
		case len(comments) != 1:
			t.Errorf("%s has %d package comments, want 1", p.ImportPath, len(comments))
		case !strings.HasPrefix(comments[0], want):
			t.Errorf("%s: the package comment does not begin with %q", p.ImportPath, want)
		case len(strings.TrimSpace(comments[0])) <= len(new(doc.Package).Synopsis(comments[0]))+20:
			t.Errorf("%s: the package comment is one sentence; say what it owns, what it starts and who ends that", p.ImportPath)
		}
	}
}

// TestNoWallClock lets tests sleep only in files that use synctest, where time is not the wall's.
func TestNoWallClock(t *testing.T) {
	for _, p := range packages(t) {
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote("testing/synctest") }) {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Sleep" {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" {
						t.Errorf("%s sleeps on the wall clock: wait for the event itself, or use synctest", set.Position(n.Pos()))
					}
				}
				return true
			})
		}
	}
}

// fileURL finds links; machinePath finds folders of one particular machine.
var (
	fileURL     = regexp.MustCompile(`\b(?:https?|tcp|nats|etcd)://[^\s"'<>)\]},\x60|\\]+`)
	machinePath = regexp.MustCompile(`(^|[\s"'=(:\x60])/(work|farm|root|home/[a-z]+)/|/tmp/lab\b`)
)

// TestNoForeignPlaces keeps hosts out of the tree that are not loopback, a placeholder or reserved for examples, and with
// them the hosts of package registries; and the folders of the machine that somebody worked on.
func TestNoForeignPlaces(t *testing.T) {
	placeholder := regexp.MustCompile(`^(\*|\$|%|\[|127\.|0\.0\.0\.0|10\.|192\.|localhost|host|[a-z]+$|.*\.(example|test|invalid|local|internal)$|.*example\.(com|org|net)$)`)
	for name := range strings.SplitSeq(string(run(t, "git", "ls-files", "-z")), "\x00") {
		if name == "" || name == "policy_test.go" || strings.HasSuffix(name, ".pb.go") || strings.Contains(name, "testdata/") {
			continue
		}
		text, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue // removed in the work tree
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, link := range fileURL.FindAllString(line, -1) {
				u, err := url.Parse(link)
				if err == nil && u.Hostname() != "" && !placeholder.MatchString(u.Hostname()) {
					t.Errorf("%s:%d names the host %s", name, i+1, u.Hostname())
				}
			}
			if at := machinePath.FindString(line); at != "" {
				t.Errorf("%s:%d names a folder of one machine: %s", name, i+1, strings.TrimSpace(at))
			}
		}
	}
}
