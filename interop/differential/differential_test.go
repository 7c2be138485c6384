package differential

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"remora/internal/dynamo/protocol"
	"remora/internal/vllm/vllmtest"
	"remora/interop/harness"
)

var full = flag.Bool("full", false, "every case in all of its roles and both encodings, and the groups that start sidecars for each case")

// group is a list of cases under the name by which the listed differences know them.
type group struct {
	name  string
	cases []testCase
}

// groups are the cases that share a pair of sidecars for each role.
var groups = []group{
	{"conversion", conversionCases},
	{"responses", responseCases},
	{"logprobs", logprobCases},
	{"errors", errorCases},
	{"engine", badEngineCases},
	{"requests", badRequestCases},
	{"cancel", cancelCases},
}

// TestMain lets more cases run side by side than there are processors, since they wait most of the time, and says at the end
// what the run came to. A full run that has passed must have needed every difference that is listed.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	harness.Main(func() int { return sum(m.Run()) })
}

func sum(code int) int {
	fmt.Fprintf(os.Stdout, "== differential: %d equal, %d better by design, %d different\n", counted.equal, counted.listed, counted.different)
	if run := flag.Lookup("test.run").Value.String(); code == 0 && *full && (run == "" || run == ".") {
		for _, d := range differences {
			if counted.used[d.name] == 0 {
				fmt.Fprintf(os.Stdout, "no case needs the difference %q any more\n", d.name)
				code = 1
			}
		}
	}
	return code
}

// TestRequests runs every case that needs no sidecar of its own.
func TestRequests(t *testing.T) {
	for _, letter := range "apd" {
		role := letters[letter]
		t.Run(string(role), func(t *testing.T) {
			p := newPair(t, role, func(b *vllmtest.Behaviour) { b.Deaf = true }, nil)
			t.Run("registration", func(t *testing.T) { p.registration(t, setups[0].name) })
			for _, g := range groups {
				t.Run(g.name, func(t *testing.T) { p.runAll(t, letter, g.name, g.cases) })
			}
			t.Run("status", p.pages)
		})
	}
}

// TestMedia runs the cases that need an engine that takes media. Remora's aggregated worker speaks to it through the other
// transport than the rest, so that both of them carry large requests.
func TestMedia(t *testing.T) {
	for _, letter := range "apd" {
		t.Run(string(letters[letter]), func(t *testing.T) {
			var env []string
			if letter == 'a' {
				env = []string{"REMORA_ENGINE_TRANSPORT=grpc"}
			}
			p := newPair(t, letters[letter], func(b *vllmtest.Behaviour) { b.Model.SupportsMultimodal = true }, env)
			for _, g := range mediaGroups {
				t.Run(g.name, func(t *testing.T) { p.runAll(t, letter, g.name, g.cases) })
			}
		})
	}
}

// runAll runs those cases of a group that make sense in a role.
func (p *pair) runAll(t *testing.T, letter rune, group string, cases []testCase) {
	t.Helper()
	for i := range cases {
		c := &cases[i]
		if !c.in(letter) {
			continue
		}
		t.Run(c.name, func(t *testing.T) { c.runIn(t, p, group, protocol.MsgPack) })
		if *full {
			t.Run(c.name+" in JSON", func(t *testing.T) { c.runIn(t, p, group, protocol.JSON) })
		}
	}
}

func (c *testCase) runIn(t *testing.T, p *pair, group string, codec protocol.Codec) {
	t.Helper()
	if !c.large {
		t.Parallel()
	}
	c.run(t, p, group, codec)
}

// in tells whether the case runs in a role.
func (c *testCase) in(letter rune) bool {
	roles := c.roles
	if roles == "" {
		roles = "apd"
	}
	if !*full {
		roles = roles[:1]
	}
	for _, r := range roles {
		if r == letter {
			return true
		}
	}
	return false
}
